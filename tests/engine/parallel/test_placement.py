"""Which rank holds what: the parts tile every tensor, and reading them reads nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.model import NemotronH
from openrecipes.engine.parallel.parts import from_checkpoint, from_seed
from openrecipes.engine.parallel.placement import placement
from openrecipes.engine.weights import Checkpoint, export, shapes
from openrecipes.errors import InputError
from openrecipes.layouts.grid import RankGrid
from tests.engine.parallel.matrix import LAYOUTS
from tests.engine.parallel.trial import MODELS, layout
from tests.engine.step.jobs import model as small_model

SUPER = layout(tp=4, dp=2, ep=8, sequence_parallel=True)


def grid_of(name: str) -> tuple[RankGrid, NemotronHConfig]:
    chosen, model = (SUPER, "wide") if name == "Super" else LAYOUTS[name]
    return RankGrid(chosen, chosen.world_size), NemotronHConfig.from_hf(MODELS[model])


@pytest.mark.parametrize("name", ["Super", *LAYOUTS])
def test_the_parts_tile_every_tensor_evenly(name: str) -> None:
    grid, config = grid_of(name)
    for tensor, shape in shapes(config).items():
        placed = placement(tensor, config, grid.sizes)
        holders = torch.zeros(shape, dtype=torch.int64)
        by_part: dict[tuple[int, ...], set[str]] = {}
        for rank in range(grid.world_size):
            place = grid.coordinates(rank)
            part = placed.part(shape, place, grid.sizes)
            holders[part] += 1
            by_part.setdefault(placed.index(place, grid.sizes), set()).add(str(part))
        assert holders.unique().numel() == 1, tensor  # nothing is left out or held more often
        assert all(len(parts) == 1 for parts in by_part.values())  # one index, one part


def test_experts_of_super_tile_the_whole_stage() -> None:
    grid, config = grid_of("Super")
    name = "backbone.layers.1.mixer.experts.up_proj"
    placed = placement(name, config, grid.sizes)
    held = [placed.index(grid.coordinates(rank), grid.sizes) for rank in range(8)]
    assert held == [(rank,) for rank in range(8)]


def test_a_key_value_head_is_shared_by_the_ranks_whose_heads_read_it() -> None:
    grid, config = grid_of("TP4")
    placed = placement("backbone.layers.2.mixer.k_proj.weight", config, grid.sizes)
    heads = [placed.index(grid.coordinates(rank), grid.sizes) for rank in range(4)]
    assert heads == [(0,), (0,), (1,), (1,)]


def test_random_weights_do_not_depend_on_the_layout() -> None:
    grid, config = grid_of("TP2 DP2 EP4 ETP1")
    read = from_seed(config, 5)
    for name, shape in shapes(config).items():
        whole = read(name, shape, tuple(slice(0, size) for size in shape))
        placed = placement(name, config, grid.sizes)
        part = placed.part(shape, grid.coordinates(3), grid.sizes)
        assert read(name, shape, part).equal(whole[part]), name


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import json

    from tests.engine.step.jobs import CONFIG

    folder = tmp_path_factory.mktemp("checkpoint")
    file = folder / "config.json"
    file.write_text(json.dumps(CONFIG))
    state = small_model().state_dict()
    export(folder / "weights", state.__getitem__, file)
    return folder / "weights"


def test_a_rank_reads_its_part_of_a_checkpoint_and_nothing_else(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes = count_reads(monkeypatch)
    origin = Checkpoint(checkpoint)
    config = origin.config
    read = from_checkpoint(origin)
    chosen = layout(tp=2, cp=2, ep=2, etp=2, sequence_parallel=True)
    grid = RankGrid(chosen, 4)
    whole = small_model().state_dict()
    for rank in range(4):
        read_bytes.clear()
        held = 0
        for name, shape in shapes(config).items():
            placed = placement(name, config, grid.sizes)
            part = placed.part(shape, grid.coordinates(rank), grid.sizes)
            found = read(name, shape, part)
            assert found.equal(whole[name][part]), name
            held += found.numel()
        assert sum(read_bytes) == held
        assert held < 0.5 * sum(tensor.numel() for tensor in whole.values())


def test_a_tensor_of_another_shape_is_named(checkpoint: Path) -> None:
    read = from_checkpoint(Checkpoint(checkpoint))
    with pytest.raises(InputError, match="lm_head"):
        read("lm_head.weight", torch.Size((48, 32)), (slice(0, 24), slice(0, 32)))


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Elements read by each access to a safetensors file."""
    seen: list[int] = []

    class Slice:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getitem__(self, part: Any) -> torch.Tensor:
            found = self.inner[part]
            seen.append(found.numel())
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    def whole(self: Checkpoint, tensor: str) -> torch.Tensor:
        found = self._handle(tensor).get_tensor(tensor)
        seen.append(found.numel())
        return found

    monkeypatch.setattr(Checkpoint, "_slice", lambda s, t: Slice(s._handle(t).get_slice(t)))
    monkeypatch.setattr(Checkpoint, "tensor", whole)
    return seen


def test_names_are_those_of_the_one_process_model() -> None:
    with torch.device("meta"):
        model = NemotronH(NemotronHConfig.from_hf(MODELS["moe"]))
    assert list(shapes(model.config)) == list(model.state_dict())
