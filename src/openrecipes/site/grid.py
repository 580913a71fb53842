"""The layout as a picture: which GPU holds which stage, slice and experts.

The order of ranks is the rank grid's (room ``layouts``).
"""

from __future__ import annotations

from dataclasses import dataclass

from openrecipes.errors import InputError
from openrecipes.layouts.grid import RankGrid, stage_ranges
from openrecipes.layouts.layout import Layout
from openrecipes.site import words

#: More GPUs than this say nothing new; the pattern repeats.
MOST_GPUS = 64


@dataclass(frozen=True)
class Strip:
    """A bar that stands for a whole; ``slices`` (start and size in percent) are what is here."""

    kind: str
    label: str
    slices: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class GpuCell:
    """One GPU: its rank, its pipeline stage, what it holds, and the same in words."""

    rank: int
    stage: int
    strips: tuple[Strip, ...]
    coordinates: str
    told: str


@dataclass(frozen=True)
class Node:
    """One machine."""

    name: str
    gpus: tuple[GpuCell, ...]


@dataclass(frozen=True)
class Grid:
    """The whole picture."""

    summary: str
    noun: str
    strips: tuple[Strip, ...]
    nodes: tuple[Node, ...]
    more: str


def grid(layout: Layout, count: int, per_node: int, noun: str = "GPU") -> Grid | None:
    """The picture of ``layout`` on ``count`` GPUs, ``per_node`` of them in a machine.

    None where the layout does not fit the count (a planned or broken recipe).
    """
    try:
        ranks = RankGrid(layout, count)
        stages = stage_ranges(layout, sum(layout.layer_split or ()) or layout.pp * layout.vpp)
    except InputError:
        return None
    shown = min(count, max(MOST_GPUS // per_node, 1) * per_node, MOST_GPUS)
    cells = [_cell(ranks, stages, rank, noun) for rank in range(shown)]
    nodes = [
        Node(f"Node {start // per_node}", tuple(cells[start : start + per_node]))
        for start in range(0, shown, per_node)
    ]
    more = (
        ""
        if shown == count
        else f"{shown} of {words.plural(count, noun)} are shown; the pattern repeats."
    )
    return Grid(_summary(layout, noun), noun, _keys(layout), tuple(nodes), more)


def _cell(ranks: RankGrid, stages: list[range], rank: int, noun: str) -> GpuCell:
    layout, at = ranks.layout, ranks.coordinates(rank)
    whole = stages[-1].stop
    held = [stages[virtual * layout.pp + at.pp] for virtual in range(layout.vpp)]
    layers = tuple(_share(chunk.start, len(chunk), whole) for chunk in held)
    strips = [Strip("layers", "layers", layers)]
    coordinates = [f"PP\u00a0{at.pp}"]
    told = [f"{noun} {rank}: pipeline stage {at.pp} of {layout.pp}"]
    if layout.tp > 1:
        strips.append(_slice("tensor", at.tp, layout.tp))
        coordinates.append(f"TP\u00a0{at.tp}")
        told.append(f"tensor slice {at.tp} of {layout.tp}")
    if layout.cp > 1:
        strips.append(_slice("sequence", at.cp, layout.cp))
        coordinates.append(f"CP\u00a0{at.cp}")
        told.append(f"part {at.cp} of {layout.cp} of the sequence")
    if layout.ep > 1:
        strips.append(_slice("experts", at.ep, layout.ep))
        coordinates.append(f"EP\u00a0{at.ep}")
        told.append(f"experts, part {at.ep} of {layout.ep}")
    coordinates.append(f"DP\u00a0{at.dp}")
    told.append(f"data replica {at.dp} of {layout.dp}")
    return GpuCell(rank, at.pp, tuple(strips), ", ".join(coordinates), ", ".join(told))


def _slice(kind: str, index: int, parts: int) -> Strip:
    return Strip(kind, kind, (_share(index, 1, parts),))


def _share(start: int, size: int, whole: int) -> tuple[float, float]:
    return round(100 * start / whole, 2), round(100 * size / whole, 2)


def _keys(layout: Layout) -> tuple[Strip, ...]:
    keys = [Strip("layers", "share of the layers (colour: pipeline stage)")]
    if layout.tp > 1:
        keys.append(Strip("tensor", "slice of each matrix"))
    if layout.cp > 1:
        keys.append(Strip("sequence", "part of each sequence"))
    if layout.ep > 1:
        keys.append(Strip("experts", "share of the experts"))
    return tuple(keys)


def _summary(layout: Layout, noun: str) -> str:
    parts = [words.plural(layout.pp, "pipeline stage")]
    if layout.vpp > 1:
        parts[0] += f" of {layout.vpp} virtual stages each"
    if layout.tp > 1:
        parts.append(f"matrices in {layout.tp} tensor slices")
    if layout.cp > 1:
        parts.append(f"sequences in {layout.cp} parts")
    if layout.ep > 1:
        parts.append(f"experts spread over {words.plural(layout.ep, noun)}")
    if layout.etp > 1:
        parts.append(f"each expert in {layout.etp} slices")
    parts.append(words.plural(layout.dp, "data replica"))
    return ", ".join(parts) + "."
