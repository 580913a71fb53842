"""Who computes what, and when, in a pipeline: plain lists, without tensors or processes.

A model is cut into PP x VPP stages. Stage s lies on rank s mod PP of ``pp``, as that rank's chunk
s // PP, so every stage's neighbours are on neighbouring ranks. Each micro-batch passes all stages
forward, then all of them backward.

    1F1B         a rank runs ahead by as many forwards as there are stages behind it, then does one
                 forward and one backward in turn (Narayanan et al. 2021, "Efficient Large-Scale
                 Language Model Training on GPU Clusters Using Megatron-LM", section 2.2)
    interleaved  the same with several chunks per rank (ibid.), micro-batches in groups of PP: a
                 whole group through one chunk, then through the next

**Counts that PP does not divide** need no schedule of their own: the last group is filled up with
micro-batches that do not exist, and their passes are left out. An order that works stays one when a
micro-batch is taken out of all of it, because micro-batches do not wait for each other.

**Sends cannot wait in a circle.** `timetable` lets all ranks' orders run in common turns. What a
turn puts out is sent at the end of that turn, by one rank and to one rank, both of which have it in
their list for that turn. So even if every send and receive blocked, turn 0 ends, then turn 1, and
so on; and between two ranks messages come in the order in which they were sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Way = Literal["forward", "backward"]


@dataclass(frozen=True)
class Pass:
    """One micro-batch through one stage, one way.

    Its result is what leaves the stage: activations for the next one, or the gradient of what came
    in, for the one before.
    """

    way: Way
    stage: int
    micro: int


@dataclass(frozen=True)
class Turn:
    """What one rank does before all ranks go on.

    Args:
        work: the pass that it computes, if any.
        receiver: the rank that the result is sent to, if any.
        arriving: passes whose results it receives at the end of the turn, by ascending sender.
    """

    work: Pass | None
    receiver: int | None = None
    arriving: tuple[Pass, ...] = ()


@dataclass(frozen=True)
class Shape:
    """The sizes of a pipeline.

    Args:
        ranks: PP.
        chunks: VPP, stages of each rank.
    """

    ranks: int
    chunks: int = 1

    @property
    def last(self) -> int:
        """The stage with the head."""
        return self.ranks * self.chunks - 1

    def rank(self, done: Pass) -> int:
        """The rank that computes a pass."""
        return done.stage % self.ranks

    def taker(self, done: Pass) -> Pass | None:
        """The pass of another rank that takes this one's result; None at both ends."""
        stage = done.stage + (1 if done.way == "forward" else -1)
        return Pass(done.way, stage, done.micro) if 0 <= stage <= self.last else None

    def giver(self, work: Pass) -> Pass | None:
        """The pass of another rank whose result this one takes; None at both ends."""
        stage = work.stage - (1 if work.way == "forward" else -1)
        return Pass(work.way, stage, work.micro) if 0 <= stage <= self.last else None

    def needs(self, work: Pass) -> list[Pass]:
        """Everything that must be done before a pass."""
        own = [Pass("forward", work.stage, work.micro)] if work.way == "backward" else []
        giver = self.giver(work)
        return own if giver is None else [*own, giver]


def order(shape: Shape, rank: int, count: int) -> list[Pass]:
    """The passes of one rank in a training step: 1F1B, or interleaved for several chunks.

    Args:
        shape: the pipeline.
        rank: the rank on ``pp``.
        count: micro-batches, any number.
    """
    groups = [range(start, start + shape.ranks) for start in range(0, count, shape.ranks)]
    chunks = range(shape.chunks)

    def passes(way: Way, chunks: Sequence[int]) -> list[Pass]:
        return [
            Pass(way, chunk * shape.ranks + rank, micro)
            for group in groups
            for chunk in chunks
            for micro in group
        ]

    ahead = run_ahead(shape, rank)
    filled = _in_turn(passes("forward", chunks), passes("backward", chunks[::-1]), ahead)
    return [work for work in filled if work.micro < count]


def forward_order(shape: Shape, rank: int, count: int) -> list[Pass]:
    """The passes of one rank where nothing is learned."""
    return [work for work in order(shape, rank, count) if work.way == "forward"]


def run_ahead(shape: Shape, rank: int) -> int:
    """Forwards that a rank does before its first backward, where there are as many.

    One more is the most that it ever has to keep activations of. 1F1B: PP - 1 - rank. Interleaved:
    2 (PP - 1 - rank) + (VPP - 1) PP.
    """
    behind = shape.ranks - 1 - rank
    return behind if shape.chunks == 1 else 2 * behind + (shape.chunks - 1) * shape.ranks


def _in_turn(forward: list[Pass], backward: list[Pass], ahead: int) -> list[Pass]:
    """``ahead`` forwards, then one of each in turn, then the backwards that are left."""
    ahead = min(ahead, len(forward))
    both = zip(forward[ahead:], backward, strict=False)
    started = len(forward) - ahead
    return [*forward[:ahead], *(work for pair in both for work in pair), *backward[started:]]


def timetable(shape: Shape, orders: Sequence[Sequence[Pass]]) -> list[list[Turn]]:
    """The turns of every rank: in each, a rank does its next pass if what that needs is there.

    Args:
        shape: the pipeline.
        orders: each rank's passes.

    Raises:
        ValueError: orders in which the ranks would wait for each other.
    """
    left = [deque(passes) for passes in orders]
    done: set[Pass] = set()
    table: list[list[Turn]] = [[] for _ in orders]
    while any(left):
        now = [
            passes.popleft() if passes and done.issuperset(shape.needs(passes[0])) else None
            for passes in left
        ]
        done.update(work for work in now if work)
        if not any(now):
            raise ValueError(f"the ranks wait for each other: {[list(passes) for passes in left]}")
        receivers = [_receiver(shape, work) for work in now]
        for rank, turns in enumerate(table):
            arriving = tuple(
                work for work, to in zip(now, receivers, strict=True) if work and to == rank
            )
            if now[rank] or arriving:
                turns.append(Turn(now[rank], receivers[rank], arriving))
    return table


def _receiver(shape: Shape, work: Pass | None) -> int | None:
    taker = shape.taker(work) if work else None
    return None if taker is None else shape.rank(taker)


@lru_cache(maxsize=64)
def turns(shape: Shape, count: int, *, train: bool) -> list[list[Turn]]:
    """Every rank's turns for ``count`` micro-batches, in training or forward only."""
    ordered = order if train else forward_order
    return timetable(shape, [ordered(shape, rank, count) for rank in range(shape.ranks)])
