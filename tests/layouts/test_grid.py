import itertools

import pytest

from openrecipes.errors import InputError
from openrecipes.layouts.grid import RankGrid, stage_ranges
from openrecipes.layouts.layout import Layout

SUPER = Layout(tp=4, pp=2, cp=1, ep=8, etp=1, dp=2)
LAYOUTS = [
    SUPER,
    Layout(tp=1, pp=2, cp=1, ep=4, etp=1, dp=4),
    Layout(tp=2, pp=2, cp=2, ep=2, etp=2, dp=2),
    Layout(tp=1, pp=1, cp=1, ep=1, etp=2, dp=4),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_addresses_lead_back_to_the_rank(layout):
    grid = RankGrid(layout, layout.world_size)
    for rank in range(layout.world_size):
        place = grid.coordinates(rank)
        assert grid.rank(pp=place.pp, dp=place.dp, cp=place.cp, tp=place.tp) == rank
        assert grid.expert_rank(pp=place.pp, edp=place.edp, ep=place.ep, etp=place.etp) == rank


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", ["tp", "cp", "dp", "pp", "etp", "ep", "edp"])
def test_groups_part_the_ranks(layout, axis):
    grid = RankGrid(layout, layout.world_size)
    groups = grid.groups(axis)
    assert sorted(itertools.chain(*groups)) == list(range(layout.world_size))
    assert {len(group) for group in groups} == {grid.sizes[axis]}
    assert all(
        [getattr(grid.coordinates(rank), axis) for rank in group] == list(range(len(group)))
        for group in groups
    )


def test_supers_experts_cover_a_whole_stage():
    grid = RankGrid(SUPER, 16)
    assert grid.groups("ep") == [list(range(8)), list(range(8, 16))]
    assert grid.groups("tp")[0] == [0, 1, 2, 3]
    assert grid.groups("dp")[0] == [0, 4]
    assert grid.groups("pp")[0] == [0, 8]
    assert grid.group_of(13, "dp") == [9, 13]
    assert grid.experts(7, 512) == range(448, 512)


def test_sizes_that_do_not_tile_are_refused():
    with pytest.raises(InputError):
        RankGrid(SUPER, 8)
    with pytest.raises(InputError):
        RankGrid(SUPER.model_copy(update={"ep": 16}), 16)


def test_interleaved_stages_go_round_the_ranks():
    layout = Layout(tp=1, pp=2, vpp=2, ep=1, etp=1, dp=1)
    grid = RankGrid(layout, 2)
    assert grid.chunks(0, 8) == [range(0, 2), range(4, 6)]
    assert grid.chunks(1, 8) == [range(2, 4), range(6, 8)]


def test_an_uneven_split_holds_every_layer_once():
    layout = Layout(tp=1, pp=2, ep=1, etp=1, dp=1, layer_split=(20, 32))
    assert stage_ranges(layout, 52) == [range(0, 20), range(20, 52)]
    with pytest.raises(InputError):
        stage_ranges(layout, 50)
