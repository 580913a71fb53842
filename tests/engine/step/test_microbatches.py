"""Rows of a step and how they are cut: miles' rule where it is by tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrecipes.engine.microbatches import Cutting, RowOrder, first_fit_decreasing
from openrecipes.errors import InputError


def test_rows_come_in_file_order() -> None:
    order = RowOrder(rows=10, batch=4)
    assert order.of_step(0) == [0, 1, 2, 3] and order.of_step(1) == [4, 5, 6, 7]


def test_epochs_begin_again_after_the_last_whole_batch() -> None:
    order = RowOrder(rows=10, batch=4, repeat=True)
    assert order.of_step(2) == [0, 1, 2, 3]


def test_a_row_order_seed_permutes_within_the_batch_only() -> None:
    order = RowOrder(rows=64, batch=16, seed=5)
    for step in range(4):
        rows = order.of_step(step)
        assert sorted(rows) == list(range(step * 16, step * 16 + 16)) and rows != sorted(rows)
    assert order.of_step(1) == RowOrder(64, 16, seed=5).of_step(1)
    assert order.of_step(1) != RowOrder(64, 16, seed=6).of_step(1)


def test_rows_per_micro_batch_are_dealt_round_robin() -> None:
    assert Cutting(2, rows=2).cut([5] * 8) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_first_fit_decreasing() -> None:
    assert first_fit_decreasing([4, 8, 1, 4, 2], 10) == [[1, 4], [0, 3, 2]]
    assert first_fit_decreasing([30, 4], 10) == [[0], [1]]  # too long: alone


@pytest.mark.parametrize(
    ("rows", "ranks", "limit", "each"),
    [(128, 4, 8192, 32), (128, 2, 16384, 32), (128, 2, 24576, 22)],
)
def test_the_counts_that_miles_gives_for_8192_token_rows(
    rows: int, ranks: int, limit: int, each: int
) -> None:
    cut = Cutting(ranks, max_tokens=limit).cut([8192] * rows)
    assert [len(micro) for micro in cut] == [each] * ranks


def test_a_batch_that_the_ranks_do_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="multiple of the ranks"):
        Cutting(2).cut([5] * 3)
    with pytest.raises(InputError, match="multiple of the ranks"):
        Cutting(4, max_tokens=10).cut([5] * 3)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(1, 100),
)
def test_every_row_is_in_one_micro_batch_and_ranks_have_as_many(
    lengths: list[int], ranks: int, limit: int
) -> None:
    lengths = lengths[: len(lengths) // ranks * ranks]
    cut = Cutting(ranks, max_tokens=limit).cut(lengths)
    assert len({len(micro) for micro in cut}) == 1
    taken = [row for micros in cut for micro in micros for row in micro]
    assert sorted(taken) == list(range(len(lengths)))
    for micros in cut:
        for micro in micros:
            assert micro and (len(micro) == 1 or sum(lengths[row] for row in micro) <= limit)
