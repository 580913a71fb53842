"""Which ranks work together: the axes, and the one place where they are named and explained.

Ranks are numbered in Megatron's order, the innermost axis first:

    rank = tp + TP (cp + CP (dp + DP pp))           what is not an expert
    rank = etp + ETP (ep + EP (edp + EDP pp))       experts, over the same ranks

``tp``   shares a layer's matrices          ``etp``  shares one expert's matrices
``cp``   shares a row's tokens              ``ep``   shares a layer's experts
``dp``   has other rows                     ``edp``  holds the same experts
``pp``   holds other layers (the stage)

Experts re-tile a whole stage: EDP = TP CP DP / (ETP EP), whatever TP, CP and DP are. Four more
names follow:

``data``     cp and dp together: other tokens, the same matrices. A loss is summed along it.
``experts``  etp and ep together: the ranks that hold one whole set of a layer's experts; tokens
             travel to their experts along it.
``stage``    all ranks of one pipeline stage.
``world``    all ranks.

**Gradients have one law.** A parameter's gradient is summed over the ranks of its stage that hold
the same part of it, and its optimizer state is sharded over them: its *holders*. Which part a rank
holds is said in `placement`; `Mesh.holders` turns it into an axis. What is cut along tp is held by
``data``; what is whole (norms, the router) by ``stage``, because with sequence parallelism every
rank of the stage sees other tokens; experts by ``edp``, because the exchange along ``experts`` has
already brought them the tokens of all others; a key-value head that several ranks of tp share by
those ranks and their ``data``; what works on heads after context parallelism has exchanged sequence
for heads (Mamba's convolutions, A, D, dt_bias) by ``dp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache

import torch.distributed as dist

from openrecipes.engine.parallel.placement import Placement
from openrecipes.layouts.grid import Coordinates, RankGrid
from openrecipes.layouts.layout import Layout


@dataclass(frozen=True)
class Axis:
    """This rank's place on one axis.

    Args:
        size: ranks on the axis.
        rank: this rank's position, from 0.
        group: the process group; None where the rank is alone.
    """

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None


@dataclass(frozen=True, eq=False)
class Mesh:
    """This rank's place on every axis that something is sent along.

    Args:
        grid: all ranks' places, without processes.
        rank: this rank.
        timeout: time limit of a collective; torch's own where absent.
    """

    grid: RankGrid
    rank: int
    timeout: timedelta | None = None
    tp: Axis = Axis()
    cp: Axis = Axis()
    dp: Axis = Axis()
    pp: Axis = Axis()
    ep: Axis = Axis()
    etp: Axis = Axis()
    edp: Axis = Axis()
    data: Axis = Axis()
    experts: Axis = Axis()
    stage: Axis = Axis()
    world: Axis = Axis()
    _holders: dict[Placement, Axis] = field(default_factory=dict)

    @classmethod
    def alone(cls) -> Mesh:
        """One process: nothing is ever sent."""
        return cls(RankGrid(Layout(tp=1, pp=1, ep=1, etp=1, dp=1), 1), 0)

    @classmethod
    def build(cls, layout: Layout, timeout: timedelta | None = None) -> Mesh:
        """The axes of this process group; every rank must call it, with the same layout.

        Args:
            layout: sizes that tile the process group's ranks; a world of 1 needs none.
            timeout: time limit of a collective; torch's own where absent.

        Raises:
            InputError: a layout for another number of ranks.
        """
        if layout.world_size == 1:
            return cls(RankGrid(layout, 1), 0)
        grid, rank = RankGrid(layout, dist.get_world_size()), dist.get_rank()
        here = grid.coordinates(rank)

        def axis(*free: str) -> Axis:
            return _axis(_alike(grid, here, free), rank, timeout)

        return cls(
            grid,
            rank,
            timeout,
            tp=axis("tp"),
            cp=axis("cp"),
            dp=axis("dp"),
            pp=axis("pp"),
            ep=axis("ep"),
            etp=axis("etp"),
            edp=axis("edp"),
            data=axis("cp", "dp"),
            experts=axis("etp", "ep"),
            stage=axis("tp", "cp", "dp"),
            world=axis("tp", "cp", "dp", "pp"),
        )

    @property
    def layout(self) -> Layout:
        """The layout that the axes come from."""
        return self.grid.layout

    @property
    def here(self) -> Coordinates:
        """This rank's coordinates."""
        return self.grid.coordinates(self.rank)

    @property
    def sequence_parallel(self) -> bool:
        """Whether the ranks of tp hold other tokens between their shared matrices."""
        return self.layout.sequence_parallel and self.layout.tp > 1

    @property
    def token_parts(self) -> int:
        """Equal parts that a micro-batch's tokens are cut into; it is padded to a multiple."""
        return self.layout.cp * (self.layout.tp if self.sequence_parallel else 1)

    def holders(self, placement: Placement) -> Axis:
        """The ranks of this stage that hold the same part of a parameter as this one does.

        The first call for a placement makes a process group: all holders must make it, in the same
        order.
        """
        if placement not in self._holders:
            mine = placement.index(self.here, self.grid.sizes)
            ranks = [
                rank
                for rank in _alike(self.grid, self.here, ("tp", "cp", "dp"))
                if placement.index(self.grid.coordinates(rank), self.grid.sizes) == mine
            ]
            self._holders[placement] = _axis(ranks, self.rank, self.timeout)
        return self._holders[placement]


def _alike(grid: RankGrid, here: Coordinates, free: Sequence[str]) -> list[int]:
    """The ranks that differ from ``here`` in the free coordinates only, ascending.

    Dense coordinates are compared where a dense one is free, expert ones where an expert one is.
    """
    expert = any(name in ("etp", "ep", "edp") for name in free)
    names = ("etp", "ep", "edp", "pp") if expert else ("tp", "cp", "dp", "pp")
    fixed = [name for name in names if name not in free]
    return [
        rank
        for rank in range(grid.world_size)
        if all(getattr(grid.coordinates(rank), name) == getattr(here, name) for name in fixed)
    ]


def _axis(ranks: list[int], rank: int, timeout: timedelta | None) -> Axis:
    if len(ranks) == 1:
        return Axis()
    return Axis(len(ranks), ranks.index(rank), group_of(tuple(ranks), timeout))


@cache
def group_of(ranks: tuple[int, ...], timeout: timedelta | None) -> dist.ProcessGroup | None:
    """The process group of these ranks, made once; only they have to ask for it.

    The groups go with the default group: `forget_groups` when that one ends.
    """
    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    return dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=True)


forget_groups: Callable[[], None] = group_of.cache_clear
