"""The rank grid: which rank holds which stage, tensor slice, rows and experts.

Megatron's order, stages outermost. Inside one stage of TP x CP x DP ranks a rank has two
addresses, one in the dense grid and one in the expert grid over the same ranks:

    rank = tp  + TP  * (cp + CP * dp)
         = etp + ETP * (ep + EP * edp),   EDP = TP * CP * DP / (ETP * EP)

So the experts re-tile the whole stage, whatever the dense layout is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from openrecipes.errors import InputError
from openrecipes.layouts.layout import Layout

Axis = Literal["tp", "cp", "dp", "pp", "etp", "ep", "edp"]


@dataclass(frozen=True)
class Coordinates:
    """A rank's place on every axis, each counted from 0."""

    pp: int
    dp: int
    cp: int
    tp: int
    edp: int
    ep: int
    etp: int


class RankGrid:
    """The ranks of a layout and their groups.

    Args:
        layout: the layout; TP x PP x CP x DP must be ``world_size``, and ETP x EP must divide a
            stage.
        world_size: number of ranks.

    Raises:
        InputError: sizes that do not tile the ranks.
    """

    def __init__(self, layout: Layout, world_size: int) -> None:
        if layout.world_size != world_size or layout.stage_size % (layout.etp * layout.ep):
            raise InputError(
                "mend the layout; openrecipes lint names the rule",
                field="layout",
                found=f"TP{layout.tp} PP{layout.pp} CP{layout.cp} DP{layout.dp} "
                f"EP{layout.ep} ETP{layout.etp} on {world_size} ranks",
                expected="TP x PP x CP x DP ranks, ETP x EP dividing a stage",
            )
        self.layout = layout
        self.world_size = world_size
        self.sizes: dict[Axis, int] = {
            "tp": layout.tp,
            "cp": layout.cp,
            "dp": layout.dp,
            "pp": layout.pp,
            "etp": layout.etp,
            "ep": layout.ep,
            "edp": layout.stage_size // (layout.etp * layout.ep),
        }

    def coordinates(self, rank: int) -> Coordinates:
        """Where ``rank`` stands on every axis."""
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} of {self.world_size}")
        stage, inside = divmod(rank, self.layout.stage_size)
        rest, tp = divmod(inside, self.layout.tp)
        dp, cp = divmod(rest, self.layout.cp)
        rest, etp = divmod(inside, self.layout.etp)
        edp, ep = divmod(rest, self.layout.ep)
        return Coordinates(pp=stage, dp=dp, cp=cp, tp=tp, edp=edp, ep=ep, etp=etp)

    def rank(self, *, pp: int = 0, dp: int = 0, cp: int = 0, tp: int = 0) -> int:
        """The rank at a place of the dense grid."""
        layout = self.layout
        return pp * layout.stage_size + tp + layout.tp * (cp + layout.cp * dp)

    def expert_rank(self, *, pp: int = 0, edp: int = 0, ep: int = 0, etp: int = 0) -> int:
        """The rank at a place of the expert grid."""
        layout = self.layout
        return pp * layout.stage_size + etp + layout.etp * (ep + layout.ep * edp)

    def groups(self, axis: Axis) -> list[list[int]]:
        """The groups along one axis: ranks that differ in this coordinate only.

        Dense axes (tp, cp, dp) vary in the dense grid, expert axes (etp, ep, edp) in the expert
        grid, pp in both. Groups are in the order of their first rank.
        """
        expert = axis in ("etp", "ep", "edp")
        names = ("pp", "edp", "ep", "etp") if expert else ("pp", "dp", "cp", "tp")
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            place = self.coordinates(rank)
            key = tuple(getattr(place, name) for name in names if name != axis)
            groups.setdefault(key, []).append(rank)
        return list(groups.values())

    def group_of(self, rank: int, axis: Axis) -> list[int]:
        """The group of ``rank`` along ``axis``."""
        return next(group for group in self.groups(axis) if rank in group)

    def chunks(self, pp: int, layers: int) -> list[range]:
        """The layers that pipeline rank ``pp`` holds, one range per virtual stage, in order."""
        stages = stage_ranges(self.layout, layers)
        return [stages[virtual * self.layout.pp + pp] for virtual in range(self.layout.vpp)]

    def experts(self, ep: int, experts: int) -> range:
        """The routed experts that expert parallel rank ``ep`` holds."""
        share = experts // self.layout.ep
        return range(ep * share, (ep + 1) * share)


def stage_ranges(layout: Layout, layers: int) -> list[range]:
    """The layers of every stage, PP x VPP of them, first stage first.

    An even split takes ``layers`` / (PP x VPP) each; ``layer_split`` gives the numbers, one per
    pipeline stage (cut evenly into its virtual stages) or one per virtual stage.

    Raises:
        InputError: the layers do not fill the stages.
    """
    stages = layout.pp * layout.vpp
    split = layout.layer_split
    if split is None:
        sizes = [layers // stages] * stages
    elif len(split) == stages:
        sizes = list(split)
    elif len(split) == layout.pp and all(size % layout.vpp == 0 for size in split):
        sizes = [size // layout.vpp for size in split] * layout.vpp
    else:
        sizes = []
    if sum(sizes) != layers:
        raise InputError(
            "mend layer_split, PP or VPP",
            field="layout.layer_split",
            found=list(split) if split else f"{layers} layers over {stages} stages",
            expected=f"{stages} stages that hold {layers} layers",
        )
    return list(_ranges(sizes))


def _ranges(sizes: list[int]) -> Iterator[range]:
    start = 0
    for size in sizes:
        yield range(start, start + size)
        start += size
