"""Writing a Hugging Face safetensors directory, named, typed and sharded as the original."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.model import NemotronH, keeps_fp32
from openrecipes.engine.weights.checkpoint import INDEX, SINGLE, Checkpoint, metadata_of
from openrecipes.engine.weights.names import Holding, holdings
from openrecipes.errors import InputError
from openrecipes.files import atomic_path, read_json, write_json

SHARD_BYTES = 5 * 10**9

Read = Callable[[str], Tensor]


def export(
    target: Path, read: Read, origin: Checkpoint | Path, *, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a whole model to a new or empty directory.

    Args:
        target: the directory.
        read: gives a whole parameter or buffer by its name, on any device and in any dtype.
        origin: the checkpoint that the model came from: its names, dtypes, shards, config,
            tokenizer and multi-token-prediction weights are kept; or, for a model that started
            at random, its config.json, whose ``dtype`` is then the weights' (fp32 where absent).
        shard_bytes: the most bytes of weights in one file of a model that started at random.

    Raises:
        InputError: the directory holds something already.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            "choose another directory", file=target, found="exists already, and is not empty"
        )
    target.mkdir(parents=True, exist_ok=True)
    if isinstance(origin, Checkpoint):
        _export_like(target, read, origin)
    else:
        _export_new(target, read, origin, shard_bytes)


def shapes(config: NemotronHConfig) -> dict[str, torch.Size]:
    """Names and shapes of all of a model's parameters and buffers."""
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in NemotronH(config).state_dict().items()}


def _export_like(target: Path, read: Read, origin: Checkpoint) -> None:
    names = list(shapes(origin.config))
    held = {
        origin.tensor_name(tensor): holding
        for tensor, holding in holdings(origin.config, names).items()
    }
    origin.extras(names)  # refuses what would be lost
    shards: dict[str, list[str]] = {}
    for tensor, file in origin.files.items():
        shards.setdefault(file, []).append(tensor)
    for file, tensors in shards.items():
        once = cache(read)
        content = {
            tensor: _assemble(held[tensor], once).to(origin.dtype(tensor))
            if tensor in held
            else origin.tensor(tensor)
            for tensor in tensors
        }
        _write(target / file, content, metadata_of(origin.path / file))
    for path in sorted(origin.path.iterdir()):
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copyfile(path, target / path.name)


def _export_new(target: Path, read: Read, config_file: Path, shard_bytes: int) -> None:
    raw = read_json(config_file)
    config = NemotronHConfig.from_hf(raw)
    dtype = export_dtype(raw)
    sizes = shapes(config)

    plan: list[dict[str, Holding]] = [{}]
    used, total = 0, 0
    for tensor, holding in holdings(config, sizes).items():
        elements = sum(sizes[name].numel() for name in holding.parameters)
        if holding.entry is not None:
            elements //= sizes[holding.parameters[0]][0]
        size = elements * (4 if keeps_fp32(tensor) else dtype.itemsize)
        if plan[-1] and used + size > shard_bytes:
            plan.append({})
            used = 0
        plan[-1][tensor] = holding
        used += size
        total += size

    weight_map: dict[str, str] = {}
    for number, shard in enumerate(plan, start=1):
        many = len(plan) > 1
        file = f"model-{number:05d}-of-{len(plan):05d}.safetensors" if many else SINGLE
        once = cache(read)
        content = {
            tensor: _assemble(holding, once).to(torch.float32 if keeps_fp32(tensor) else dtype)
            for tensor, holding in shard.items()
        }
        _write(target / file, content, {"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    if len(plan) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(target / INDEX, index)
    shutil.copyfile(config_file, target / "config.json")


def _assemble(holding: Holding, read: Read) -> Tensor:
    """A checkpoint tensor, on the CPU."""
    if holding.entry is not None:
        return read(holding.parameters[0])[holding.entry].detach().cpu()
    parts = [read(name).detach().cpu() for name in holding.parameters]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole.unsqueeze(1) if holding.channel_first else whole


def _write(path: Path, content: dict[str, Tensor], metadata: dict[str, str]) -> None:
    with atomic_path(path) as temporary:
        save_file({name: t.contiguous() for name, t in content.items()}, temporary, metadata)


def export_dtype(raw: Mapping[str, Any]) -> torch.dtype:
    """The dtype that a model made from this config is exported in; InputError for another."""
    name = raw.get("dtype", raw.get("torch_dtype")) or "float32"
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(str(name))
    if dtype is None:
        raise InputError(
            "correct the model's config.json",
            field="dtype",
            found=name,
            expected="float32 or bfloat16",
        )
    return dtype
