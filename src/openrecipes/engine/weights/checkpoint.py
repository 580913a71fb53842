"""Reading a Hugging Face safetensors directory, memory-mapped, one parameter at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from openrecipes.architectures.configs import find, models
from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.weights.names import Rows, Stack, source
from openrecipes.errors import InputError
from openrecipes.files import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_OUR_PREFIX, _OTHER_PREFIX = "backbone.", "model."


class Checkpoint:
    """A Hugging Face checkpoint of a NemotronH model.

    Attributes:
        path: its directory.
        raw_config: ``config.json`` as it stands there.
        config: the same, read.
        files: tensor name to the file that holds it.

    Raises:
        InputError: not such a checkpoint, incomplete, or quantized.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise InputError("give a checkpoint directory", file=path, found="no such directory")
        self.path = path
        self.raw_config = read_json(path / "config.json")
        try:
            self.config = NemotronHConfig.from_hf(self.raw_config)
        except InputError as error:
            error.file = str(path / "config.json")
            raise
        self._open: dict[str, Any] = {}
        self.files = self._read_index()
        self.prefix = (
            _OTHER_PREFIX if f"{_OTHER_PREFIX}embeddings.weight" in self.files else _OUR_PREFIX
        )
        self._refuse_quantized()

    def tensor_name(self, name: str) -> str:
        """A name that starts with ``backbone.``, as this checkpoint spells it."""
        return name.replace(_OUR_PREFIX, self.prefix, 1) if name.startswith(_OUR_PREFIX) else name

    def dtype(self, tensor: str) -> torch.dtype:
        """The stored dtype of a tensor."""
        return _DTYPES[self._slice(tensor).get_dtype()]

    def tensor(self, tensor: str) -> Tensor:
        """A whole tensor under the checkpoint's own name, as stored."""
        return self._handle(tensor).get_tensor(tensor)

    def parameter(self, name: str, *part: slice) -> Tensor:
        """A parameter under the model's name, in the stored dtype.

        Args:
            name: the whole-model name.
            part: the part that is wanted, per dimension (heads, experts, vocabulary, ...); nothing
                else is read.

        Raises:
            InputError: the checkpoint lacks it, or has it in another shape.
        """
        kept = source(self.config, name)
        rows, inside = (part[0] if part else slice(None)), part[1:]
        if isinstance(kept, Stack):
            names = [self._known(self.tensor_name(tensor)) for tensor in kept.tensors[rows]]
            if not inside:
                return torch.stack([self.tensor(tensor) for tensor in names])
            return torch.stack([self._slice(tensor)[inside] for tensor in names])
        view = self._slice(self._known(self.tensor_name(kept.tensor)))
        start, stop = self._span(kept, view.get_shape())
        wanted = range(start, stop)[rows]
        between = (slice(None),) if kept.channel_first else ()
        read = view[(slice(wanted.start, wanted.stop), *between, *inside)]
        return read.squeeze(1) if kept.channel_first else read

    def stored_shape(self, tensor: str) -> list[int]:
        """The shape of a tensor under the checkpoint's own name; InputError where it is missing."""
        return list(self._slice(self._known(tensor)).get_shape())

    def shape(self, name: str) -> list[int]:
        """The stored shape of a parameter under the model's name; what it raises `parameter` does.

        Of a stack of experts the first is looked at.
        """
        kept = source(self.config, name)
        if isinstance(kept, Stack):
            first = self._known(self.tensor_name(kept.tensors[0]))
            return [len(kept.tensors), *self._slice(first).get_shape()]
        stored = self._slice(self._known(self.tensor_name(kept.tensor))).get_shape()
        start, stop = self._span(kept, stored)
        return [stop - start, *stored[2 if kept.channel_first else 1 :]]

    def _span(self, kept: Rows, shape: list[int]) -> tuple[int, int]:
        held = shape[0] if shape else 1
        stop = held if kept.stop is None else kept.stop
        if stop > held:
            raise self._wrong_shape(kept, shape)
        return kept.start, stop

    def extras(self, names: Iterable[str]) -> list[str]:
        """Tensors that no parameter of these names holds: multi-token prediction, carried along.

        Raises:
            InputError: there are others, which would be lost silently.
        """
        known: set[str] = set()
        for name in names:
            kept = source(self.config, name)
            tensors = kept.tensors if isinstance(kept, Stack) else (kept.tensor,)
            known.update(self.tensor_name(tensor) for tensor in tensors)
        extra = sorted(set(self.files) - known)
        for tensor in extra:
            if not tensor.startswith("mtp."):
                raise InputError(
                    "give a checkpoint that matches its config.json",
                    file=self.path,
                    field=tensor,
                    found="a tensor that the model does not have",
                )
        return extra

    def _read_index(self) -> dict[str, str]:
        index = self.path / INDEX
        if not index.exists():
            if not (self.path / SINGLE).exists():
                raise InputError(
                    "give a Hugging Face checkpoint in safetensors format",
                    file=self.path,
                    found=f"neither {INDEX} nor {SINGLE}",
                )
            return dict.fromkeys(self._handle_of(SINGLE).keys(), SINGLE)
        document = read_json(index)
        files = document.get("weight_map") if isinstance(document, dict) else None
        if not isinstance(files, dict) or not files:
            raise InputError("download it again", file=index, field="weight_map", found=files)
        for tensor, file in files.items():
            if not isinstance(file, str) or Path(file).name != file:
                expected = "the name of a file beside it"
                raise InputError(
                    "download it again", file=index, field=tensor, found=file, expected=expected
                )
            if tensor not in self._handle_of(file).keys():  # noqa: SIM118 - not a mapping
                raise InputError(
                    "download it again", file=self.path / file, field=tensor, found="no such tensor"
                )
        return files

    def _refuse_quantized(self) -> None:
        scaled = next((name for name in self.files if name.endswith("_scale")), None)
        odd = next((n for n in self.files if self._slice(n).get_dtype() not in _DTYPES), None)
        told = self.raw_config.get("quantization_config")
        if scaled is None and odd is None and told is None:
            return
        found = "quantization_config" if told is not None else scaled or odd
        if odd is not None:
            found = f"{odd} in {self._slice(odd).get_dtype()}"
        raise InputError(
            f"train from the bf16 checkpoint{self._bf16_name()}",
            file=self.path,
            found=f"quantized weights ({found})",
            expected="bf16 or fp32 weights",
        )

    def _bf16_name(self) -> str:
        """ ", <id>" of the model's bf16 checkpoint, known from the config or the folder's name."""
        shape = replace(self.config, num_nextn_predict_layers=0, mtp_pattern="")
        for model in models():
            if model.config().get("model_type") != "nemotron_h":
                continue
            other = NemotronHConfig.from_hf(model.config())
            if replace(other, num_nextn_predict_layers=0, mtp_pattern="") == shape:
                return f", {model.hugging_face}"
        folder = find(self.path.resolve().name)
        return f", {folder.hugging_face}" if folder else ""

    def _known(self, tensor: str) -> str:
        if tensor not in self.files:
            raise InputError(
                "give a checkpoint that matches its config.json",
                file=self.path,
                field=tensor,
                found="no such tensor",
            )
        return tensor

    def _wrong_shape(self, kept: Rows, shape: list[int]) -> InputError:
        return InputError(
            "give a checkpoint that matches its config.json",
            file=self.path,
            field=kept.tensor,
            found=f"shape {shape}",
            expected=f"at least {kept.stop} rows",
        )

    def _handle(self, tensor: str) -> Any:
        return self._handle_of(self.files[tensor])

    def _slice(self, tensor: str) -> Any:
        return self._handle(tensor).get_slice(tensor)

    def _handle_of(self, file: str) -> Any:
        if file not in self._open:
            try:
                self._open[file] = safe_open(self.path / file, framework="pt")
            except FileNotFoundError:
                raise InputError(
                    "download it again", file=self.path / file, found="no such file"
                ) from None
            except (SafetensorError, OSError) as error:
                raise InputError(
                    "download it again", file=self.path / file, found=str(error)
                ) from None
        return self._open[file]


def metadata_of(path: Path) -> dict[str, str]:
    """The free metadata of a safetensors file."""
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    return dict(header.get("__metadata__", {}))
