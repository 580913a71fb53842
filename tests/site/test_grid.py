from __future__ import annotations

import pytest

from openrecipes.layouts.layout import Layout
from openrecipes.site.grid import grid


def layout(**axes: object) -> Layout:
    return Layout.model_validate({"tp": 1, "pp": 1, "ep": 1, "etp": 1, "dp": 1, **axes})


def test_tensor_slices_are_neighbours_and_stages_are_far() -> None:
    picture = grid(layout(tp=4, pp=2, ep=8, dp=2), 16, 8)
    assert picture is not None
    assert [node.name for node in picture.nodes] == ["Node 0", "Node 1"]
    cells = [cell for node in picture.nodes for cell in node.gpus]
    assert [cell.stage for cell in cells] == [0] * 8 + [1] * 8
    assert cells[5].coordinates.replace("\u00a0", " ") == "PP 0, TP 1, EP 5, DP 1"
    tensor = {strip.kind: strip for strip in cells[5].strips}["tensor"]
    assert tensor.slices == ((25.0, 25.0),)


def test_an_uneven_split_and_virtual_stages_are_drawn_to_scale() -> None:
    uneven = grid(layout(pp=2, layer_split=[10, 30]), 2, 2)
    assert uneven is not None
    assert [c.strips[0].slices for c in uneven.nodes[0].gpus] == [((0.0, 25.0),), ((25.0, 75.0),)]
    virtual = grid(layout(pp=2, vpp=2), 2, 2)
    assert virtual is not None
    assert virtual.nodes[0].gpus[1].strips[0].slices == ((25.0, 25.0), (75.0, 25.0))


@pytest.mark.parametrize("count", [3, 16])
def test_a_layout_that_does_not_fit_has_no_picture(count: int) -> None:
    assert grid(layout(tp=2, pp=2, dp=2), count, 8) is None


def test_large_jobs_show_the_pattern() -> None:
    picture = grid(layout(tp=8, pp=8, dp=16), 1024, 8)
    assert picture is not None
    assert sum(len(node.gpus) for node in picture.nodes) == 64
    assert "64 of 1,024 GPUs" in picture.more
