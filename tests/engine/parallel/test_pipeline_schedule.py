"""Orders of passes as plain lists: complete, in time, within bounds, and never in a circle."""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrecipes.engine.parallel.pipeline_schedule import (
    Pass,
    Shape,
    Turn,
    forward_order,
    order,
    run_ahead,
    timetable,
    turns,
)

SHAPES = st.builds(Shape, st.integers(2, 6), st.integers(1, 4))
COUNTS = st.integers(1, 14)
some = settings(max_examples=60, deadline=None)


def words(passes: list[Pass]) -> str:
    """F0.1 is the forward of micro-batch 1 through stage 0."""
    return " ".join(f"{p.way[0].upper()}{p.stage}.{p.micro}" for p in passes)


def test_1f1b_as_it_is_published() -> None:
    shape = Shape(3)
    assert words(order(shape, 0, 4)) == "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3"
    assert words(order(shape, 2, 3)) == "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2"
    assert words(order(shape, 0, 1)) == "F0.0 B0.0"


def test_interleaved_as_it_is_published() -> None:
    first = "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3"
    assert words(order(Shape(2, 2), 0, 4)) == first


def test_a_count_that_pp_does_not_divide_leaves_passes_out() -> None:
    first = "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 B2.1 F2.2 B0.0 B0.1 B2.2 B0.2"
    assert words(order(Shape(2, 2), 0, 3)) == first


@some
@given(SHAPES, COUNTS)
def test_each_micro_batch_passes_each_stage_once_each_way(shape: Shape, count: int) -> None:
    for rank in range(shape.ranks):
        stages = range(rank, shape.ranks * shape.chunks, shape.ranks)
        expected = {(stage, micro) for stage in stages for micro in range(count)}
        for way in ("forward", "backward"):
            passes = [p for p in order(shape, rank, count) if p.way == way]
            assert Counter((p.stage, p.micro) for p in passes) == Counter(expected)
        forwards = [p for p in order(shape, rank, count) if p.way == "forward"]
        assert forward_order(shape, rank, count) == forwards


@some
@given(SHAPES, COUNTS)
def test_gradients_add_up_in_the_order_of_the_micro_batches(shape: Shape, count: int) -> None:
    for rank in range(shape.ranks):
        for stage in range(rank, shape.ranks * shape.chunks, shape.ranks):
            for way in ("forward", "backward"):
                passes = order(shape, rank, count)
                micros = [p.micro for p in passes if (p.stage, p.way) == (stage, way)]
                assert micros == list(range(count))


@some
@given(SHAPES, COUNTS)
def test_no_rank_keeps_more_than_its_share_of_activations(shape: Shape, count: int) -> None:
    for rank in range(shape.ranks):
        live = most = 0
        for work in order(shape, rank, count):
            live += 1 if work.way == "forward" else -1
            most = max(most, live)
        assert live == 0 and most <= run_ahead(shape, rank) + 1
        if shape.chunks == 1:
            assert most == min(count, shape.ranks - rank)


@some
@given(SHAPES, COUNTS, st.booleans())
def test_receives_match_sends_in_order(shape: Shape, count: int, train: bool) -> None:
    table = turns(shape, count, train=train)
    sent: dict[tuple[int, int], list[Pass]] = {}
    received: dict[tuple[int, int], list[Pass]] = {}
    for rank, mine in enumerate(table):
        for turn in mine:
            if turn.receiver is not None and turn.work is not None:
                sent.setdefault((rank, turn.receiver), []).append(turn.work)
            for coming in turn.arriving:
                received.setdefault((shape.rank(coming), rank), []).append(coming)
    assert sent == received
    assert all(a != b for a, b in sent)
    passes = sum(len(queue) for queue in sent.values())
    assert passes == count * (shape.ranks * shape.chunks - 1) * (2 if train else 1)


@some
@given(SHAPES, COUNTS, st.booleans(), st.integers(0, 2**32))
def test_no_rank_waits_forever_even_if_every_message_blocks(
    shape: Shape, count: int, train: bool, seed: int
) -> None:
    """Ranks run in any order; a rank stays at the end of a turn until all its messages are met."""
    chance = random.Random(seed)
    table = [deque(mine) for mine in turns(shape, count, train=train)]
    there: list[set[Pass]] = [set() for _ in table]
    offered: set[tuple[int, Pass]] = set()  # at the end of a turn: who waits with which message
    waits: list[Turn | None] = [None] * shape.ranks
    while any(table) or any(waits):
        moved = False
        for rank in chance.sample(range(shape.ranks), shape.ranks):
            turn = waits[rank]
            if turn is None and table[rank]:
                turn = table[rank].popleft()
                if turn.work is not None:
                    assert all(needed in there[rank] for needed in shape.needs(turn.work))
                    there[rank].add(turn.work)
                messages = [*turn.arriving, *([turn.work] if turn.receiver is not None else [])]
                offered |= {(rank, message) for message in messages if message}
                waits[rank], moved = turn, True
            elif turn is not None:
                met = all((shape.rank(p), p) in offered for p in turn.arriving)
                if turn.receiver is not None and turn.work is not None:
                    met = met and (turn.receiver, turn.work) in offered
                if met:
                    there[rank].update(turn.arriving)
                    waits[rank], moved = None, True
        assert moved, [list(left) for left in table]


@some
@given(SHAPES, st.integers(1, 4), st.sampled_from([(1, 1), (1, 2)]))
def test_the_bubble_is_that_of_the_paper(
    shape: Shape, groups: int, durations: tuple[int, int]
) -> None:
    """Idle time is (PP - 1) (f + b) of one chunk, whatever VPP is."""
    count = groups * shape.ranks
    forward, backward = durations
    ended: dict[Pass, int] = {}
    left = [deque(order(shape, rank, count)) for rank in range(shape.ranks)]
    free = [0] * shape.ranks
    while any(left):
        for rank, queue in enumerate(left):
            while queue and all(needed in ended for needed in shape.needs(queue[0])):
                work = queue.popleft()
                start = max([free[rank], *(ended[needed] for needed in shape.needs(work))])
                free[rank] = ended[work] = start + (forward if work.way == "forward" else backward)
    each = forward + backward
    assert max(free) == count * shape.chunks * each + (shape.ranks - 1) * each


def test_orders_that_wait_for_each_other_are_refused() -> None:
    shape = Shape(2)
    backward_first = [Pass("forward", 0, 0), Pass("backward", 0, 0), Pass("forward", 0, 1)]
    other = [Pass("forward", 1, 1), Pass("forward", 1, 0), Pass("backward", 1, 0)]
    with pytest.raises(ValueError, match="wait for each other"):
        timetable(shape, [backward_first, other])
