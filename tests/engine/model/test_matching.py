"""A checkpoint that is another model than its config.json is refused before training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from openrecipes.engine.weights.checkpoint import SINGLE
from openrecipes.engine.weights.matching import check_checkpoint
from openrecipes.errors import InputError
from tests.engine.model.conftest import NANO, SUPER, make_oracle


@pytest.mark.parametrize("config", [NANO, SUPER], ids=["nano", "super"])
def test_what_transformers_writes_matches(config: dict[str, object], tmp_path: Path) -> None:
    make_oracle(config, tmp_path)
    check_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("in_proj.weight", lambda t: torch.cat([t, t])),
        ("in_proj.weight", lambda t: t[:-1]),
        ("conv1d.weight", lambda t: t[:, :, 1:]),
        ("experts.1.up_proj.weight", lambda t: t[:, 1:]),
        ("A_log", lambda t: t[1:]),
    ],
    ids=["longer", "shorter", "kernel", "one expert", "heads"],
)
def test_another_shape_is_named(part: str, change: object, tmp_path: Path) -> None:
    make_oracle(NANO, tmp_path)
    tensors = load_file(tmp_path / SINGLE)
    name = next(name for name in tensors if name.endswith(part))
    assert callable(change)
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, tmp_path / SINGLE)
    with pytest.raises(InputError) as error:
        check_checkpoint(tmp_path)
    assert error.value.field == name


def test_groups_of_another_config_are_refused(tmp_path: Path) -> None:
    make_oracle(NANO, tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["n_groups"] = 1
    file.write_text(json.dumps(config))
    with pytest.raises(InputError, match="in_proj"):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize(("add", "drop"), [("other", None), (None, "norm_f.weight")])
def test_a_tensor_too_many_or_too_few_is_named(
    add: str | None, drop: str | None, tmp_path: Path
) -> None:
    make_oracle(NANO, tmp_path)
    tensors = load_file(tmp_path / SINGLE)
    name = next((n for n in tensors if drop and n.endswith(drop)), "model.layers.0.mixer.other")
    if add:
        tensors[name] = torch.zeros(2)
    else:
        del tensors[name]
    save_file(tensors, tmp_path / SINGLE)
    with pytest.raises(InputError) as error:
        check_checkpoint(tmp_path)
    assert error.value.field == name
