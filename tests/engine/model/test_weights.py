"""Checkpoints in and out: exact, complete, or refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from openrecipes.architectures.configs import models
from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.model import NemotronH, initialise
from openrecipes.engine.weights import Checkpoint, export, load
from openrecipes.engine.weights.checkpoint import INDEX, SINGLE
from openrecipes.errors import InputError

from .conftest import NANO, SUPER, Oracle, make_oracle, random_batch, relative


def reader(model: NemotronH) -> Callable[[str], torch.Tensor]:
    return model.state_dict().__getitem__


def raw_bytes(folder: Path) -> dict[str, tuple[torch.dtype, bytes]]:
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            found[name] = (tensor.dtype, tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A sharded checkpoint as published ones are: bf16, some fp32, MTP weights, a tokenizer."""
    folder = tmp_path / "original"
    make_oracle(SUPER, folder)
    tensors = {
        name: tensor if "gate." in name or name.endswith("A_log") else tensor.bfloat16()
        for name, tensor in load_file(folder / SINGLE).items()
    }
    tensors["mtp.layers.0.mixer.q_proj.weight"] = torch.randn(4, 5).bfloat16()
    tensors["mtp.layers.1.mixer.experts.0.up_proj.weight"] = torch.randn(3, 2).half()
    names = sorted(tensors)
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {name: files[i % 2] for i, name in enumerate(names)}
    for file in files:
        part = {name: tensors[name] for name in names if weight_map[name] == file}
        save_file(part, folder / file, {"format": "pt", "made": "here"})
    (folder / SINGLE).unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "tokenizer.json").write_text('{"a": 1}')
    return folder


def test_import_then_export_changes_no_byte(original: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint(original)
    model = NemotronH(checkpoint.config)
    load(model, checkpoint)  # into fp32
    target = tmp_path / "exported"
    export(target, reader(model), checkpoint)
    assert raw_bytes(target) == raw_bytes(original)
    assert {p.name for p in target.iterdir()} == {p.name for p in original.iterdir()}
    for name in ("config.json", "tokenizer.json", INDEX):
        assert (target / name).read_bytes() == (original / name).read_bytes()
    with safe_open(target / "model-00001-of-00002.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "made": "here"}
    weight_map = json.loads((target / INDEX).read_text())["weight_map"]
    assert all(tensor in load_file(target / file) for tensor, file in weight_map.items())


def test_a_trained_parameter_arrives_and_nothing_else_moves(original: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint(original)
    model = NemotronH(checkpoint.config)
    load(model, checkpoint)
    with torch.no_grad():
        model.backbone.layers[0].mixer.B_proj.weight.zero_()
    export(tmp_path / "exported", reader(model), checkpoint)
    before, after = raw_bytes(original), raw_bytes(tmp_path / "exported")
    assert [n for n in before if before[n] != after[n]] == [
        "backbone.layers.0.mixer.in_proj.weight"
    ]


def test_an_export_gives_the_same_logits_in_transformers(oracle: Oracle, tmp_path: Path) -> None:
    from transformers import NemotronHForCausalLM

    from .conftest import limit_time_steps

    model = oracle.ours()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    export(tmp_path / "out", reader(model), Checkpoint(oracle.path))
    loaded, told = NemotronHForCausalLM.from_pretrained(
        tmp_path / "out", dtype="auto", output_loading_info=True
    )
    assert not any(told[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    limit_time_steps(loaded, {"time_step_limit": model.config.time_step_limit})
    batch = random_batch(96, (60,))
    with torch.no_grad():
        expected = loaded(input_ids=batch.input_ids).logits[0]
    assert relative(model.logits(batch)[0], expected) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_random_model_is_exported_in_shards(dtype: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    raw = NANO | {"dtype": dtype, "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    file.write_text(json.dumps(raw))
    model = NemotronH(NemotronHConfig.from_hf(raw))
    initialise(model, 0)
    model.to_precision(torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    export(tmp_path / "out", reader(model), file, shard_bytes=40_000)
    assert (tmp_path / "out" / "config.json").read_bytes() == file.read_bytes()
    shards = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 2
    assert all(s.stat().st_size < 60_000 for s in shards)
    back = NemotronH(model.config).to_precision(torch.float32)
    load(back, Checkpoint(tmp_path / "out"))
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor.float()), name


def test_a_stage_and_a_slice_read_only_their_part(original: Path) -> None:
    checkpoint = Checkpoint(original)
    whole, stage = NemotronH(checkpoint.config), NemotronH(checkpoint.config, range(3, 5))
    load(whole, checkpoint)
    load(stage, checkpoint)
    moe = "backbone.layers.3.mixer.experts.up_proj"
    stack = whole.state_dict()[moe]
    assert torch.equal(stage.backbone.layers[0].mixer.experts.up_proj, stack)
    assert torch.equal(checkpoint.parameter(moe, slice(4, 8)).float(), stack[4:8])
    name = "backbone.layers.0.mixer.C_conv.weight"
    rows = checkpoint.parameter(name, slice(16, 32)).float()
    assert torch.equal(rows, whole.state_dict()[name][16:32])


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE)


@pytest.fixture
def small(oracle: Oracle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(oracle.path, tmp_path / "small"))


def test_a_missing_tensor_is_named(small: Path) -> None:
    edit(small, lambda t: t.pop("backbone.layers.0.mixer.out_proj.weight"))
    checkpoint = Checkpoint(small)
    with pytest.raises(InputError, match=r"layers\.0\.mixer\.out_proj"):
        load(NemotronH(checkpoint.config), checkpoint)


@pytest.mark.parametrize("rows", [3, 500])
def test_a_wrong_shape_is_named(small: Path, rows: int) -> None:
    edit(small, lambda t: t.update({"backbone.layers.0.mixer.in_proj.weight": torch.ones(rows, 9)}))
    checkpoint = Checkpoint(small)
    with pytest.raises(InputError, match=r"layers\.0\.mixer\.\w+_proj"):
        load(NemotronH(checkpoint.config), checkpoint)


def test_an_unknown_tensor_is_not_lost_silently(small: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint(small)
    model = NemotronH(checkpoint.config)
    load(model, checkpoint)
    edit(small, lambda t: t.update({"backbone.layers.0.mixer.other": torch.ones(2)}))
    with pytest.raises(InputError, match=r"mixer\.other"):
        export(tmp_path / "out", reader(model), Checkpoint(small))


def test_a_cut_file_and_a_foreign_folder_are_refused(small: Path, tmp_path: Path) -> None:
    (small / SINGLE).write_bytes((small / SINGLE).read_bytes()[:100])
    with pytest.raises(InputError, match=SINGLE):
        Checkpoint(small)
    (small / SINGLE).unlink()
    with pytest.raises(InputError, match="safetensors"):
        Checkpoint(small)
    with pytest.raises(InputError, match="no such directory"):
        Checkpoint(tmp_path / "nowhere")


def test_an_index_may_not_point_outside(original: Path) -> None:
    index = json.loads((original / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = "../elsewhere.safetensors"
    (original / INDEX).write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"lm_head\.weight"):
        Checkpoint(original)


def test_quantized_weights_are_refused_with_the_bf16_name(tmp_path: Path) -> None:
    super_ = next(m for m in models() if "Super" in m.name)
    folder = tmp_path / "whatever"
    folder.mkdir()
    shutil.copyfile(super_.config_path, folder / "config.json")
    save_file(
        {"backbone.layers.0.mixer.in_proj.weight": torch.zeros(2).to(torch.float8_e4m3fn)},
        folder / SINGLE,
    )
    with pytest.raises(InputError, match="nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"):
        Checkpoint(folder)


@pytest.mark.parametrize("how", ["scale", "config"])
def test_other_signs_of_quantization(how: str, small: Path) -> None:
    if how == "scale":
        edit(small, lambda t: t.update({"backbone.x.weight_scale": torch.ones(1)}))
    else:
        raw = json.loads((small / "config.json").read_text())
        (small / "config.json").write_text(json.dumps(raw | {"quantization_config": {"a": 1}}))
    with pytest.raises(InputError, match="quantized"):
        Checkpoint(small)


def test_export_does_not_overwrite(small: Path) -> None:
    checkpoint = Checkpoint(small)
    with pytest.raises(InputError, match="not empty"):
        export(small, lambda name: torch.zeros(1), checkpoint)
