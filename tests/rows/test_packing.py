from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from openrecipes.rows.packing import (
    Joint,
    Piece,
    Tally,
    best_fit,
    concat,
    fitted,
    pieces_of,
)
from openrecipes.rows.parquet import Row

EOS, PADDING = 1, 0

# A conversation is a list of (is it a target?) marks; its tokens get ids that occur nowhere else.
Marks = list[list[bool]]
conversations = st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=12)
row_lengths = st.integers(2, 9)


def tokens(marks: Marks) -> list[tuple[np.ndarray, np.ndarray]]:
    made, next_id = [], 10
    for marked in marks:
        ids = np.arange(next_id, next_id + len(marked), dtype=np.int32)
        mask = np.array(marked, np.uint8)
        mask[0] = 0
        made.append((ids, mask))
        next_id += len(marked)
    return made


def tally(marks: Marks) -> Tally:
    return Tally(np.zeros(len(marks), np.int64))


def packed(
    marks: Marks, size: int, rows: int | None = None, *, supervised: bool = False
) -> tuple[list[Row], Tally]:
    documents, counted = tokens(marks), tally(marks)
    made = concat(
        range(len(marks)),
        [len(m) for m in marks],
        documents.__getitem__,
        row_tokens=size,
        joint=Joint(EOS, supervised),
        tally=counted,
        rows=rows,
    )
    return list(made), counted


def slow_rows(
    marks: Marks, size: int, *, supervised: bool = False
) -> tuple[list[tuple[list[int], list[int], list[int]]], int, int]:
    """Concatenation by its definition: kept rows, tokens in skipped rows, tokens in the tail."""
    stream: list[tuple[int, int, int]] = []
    for number, (ids, mask) in enumerate(tokens(marks)):
        if stream:
            stream.append((EOS, int(supervised), number - 1))
        stream += [(int(i), int(m), number) for i, m in zip(ids, mask, strict=True)]
    kept, skipped = [], 0
    whole = len(stream) // size * size
    for start in range(0, whole, size):
        part = stream[start : start + size]
        mask = [0] + [m for _, m, _ in part[1:]]
        if any(mask):
            owners = [owner for _, _, owner in part]
            lengths = [owners.count(o) for o in sorted(set(owners))]
            kept.append(([i for i, _, _ in part], mask, lengths))
        else:
            skipped += size
    return kept, skipped, len(stream) - whole


@given(conversations, row_lengths, st.booleans())
def test_concat_is_the_stream_cut_into_rows(marks: Marks, size: int, supervised: bool) -> None:
    rows, counted = packed(marks, size, supervised=supervised)
    kept, skipped, tail = slow_rows(marks, size, supervised=supervised)
    assert [
        (r.input_ids.tolist(), r.loss_mask.tolist(), r.document_lengths.tolist()) for r in rows
    ] == kept
    assert (counted.in_skipped_rows, counted.in_tail) == (skipped, tail)
    assert counted.in_rows == size * len(rows)
    assert counted.stream == sum(map(len, marks)) + len(marks) - 1
    assert counted.padding == 0


@given(conversations, row_lengths, st.integers(1, 4))
def test_concat_stops_after_the_rows_asked_for(marks: Marks, size: int, wanted: int) -> None:
    rows, counted = packed(marks, size, wanted)
    every, _ = packed(marks, size)
    assert [r.input_ids.tolist() for r in rows] == [r.input_ids.tolist() for r in every[:wanted]]
    assert counted.stream == sum(map(len, marks)) + len(marks) - 1
    assert counted.in_rows == size * len(rows)


@given(conversations, row_lengths)
def test_concat_tells_where_each_document_comes_from(marks: Marks, size: int) -> None:
    rows, counted = packed(marks, size)
    documents = tokens(marks)
    own = np.zeros(len(marks), np.int64)
    for row in rows:
        at = 0
        for length, number, start in zip(
            row.document_lengths, row.document_numbers, row.document_starts, strict=True
        ):
            source = np.append(documents[number][0], EOS)
            assert row.input_ids[at : at + length].tolist() == (
                source[start : start + length].tolist()
            )
            own[number] += int((row.input_ids[at : at + length] != EOS).sum())
            at += length
        assert at == size
    assert counted.kept.tolist() == own.tolist()
    assert counted.eos == sum(int((r.input_ids == EOS).sum()) for r in rows)
    assert counted.supervised == sum(int(r.loss_mask.sum()) for r in rows)


@given(conversations, row_lengths)
def test_best_fit_keeps_conversations_whole_and_loses_nothing(marks: Marks, size: int) -> None:
    documents, counted = tokens(marks), tally(marks)
    lengths = [len(m) for m in marks]
    pieces = pieces_of(range(len(marks)), lengths, size)
    groups = best_fit(pieces, size)
    assert sorted(i for g in groups for i in g) == list(range(len(pieces)))
    rows = list(
        fitted(
            pieces,
            groups,
            documents.__getitem__,
            row_tokens=size,
            joint=Joint(EOS, padding=PADDING),
            tally=counted,
        )
    )
    seen: list[int] = []
    for row in rows:
        filled = int(row.document_lengths.sum())
        assert len(row.input_ids) == len(row.loss_mask) == size
        assert (row.input_ids[filled:] == PADDING).all()
        assert not row.loss_mask[filled:].any()
        assert row.loss_mask[0] == 0
        assert row.loss_mask.any()
        at = 0
        for length, number, start in zip(
            row.document_lengths, row.document_numbers, row.document_starts, strict=True
        ):
            ids, mask = documents[number]
            own = min(size, len(ids) - start)
            assert length in (own, own + 1)  # with or without its EOS
            assert row.input_ids[at : at + own].tolist() == ids[start : start + own].tolist()
            expected = mask[start : start + own].copy()
            if at == 0:
                expected[0] = 0
            assert row.loss_mask[at : at + own].tolist() == expected.tolist()
            seen += ids[start : start + own].tolist()
            at += length
    assert len(seen) == len(set(seen))
    assert counted.in_rows == sum(int(r.document_lengths.sum()) for r in rows)
    assert counted.padding == sum(size - int(r.document_lengths.sum()) for r in rows)
    assert counted.in_tail == 0
    within = sum(map(len, marks)) + sum(len(g) - 1 for g in groups)
    assert counted.stream == within
    if counted.skipped_rows == 0:
        assert len(seen) == sum(map(len, marks))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40), st.integers(20, 40))
@settings(max_examples=200)
def test_best_fit_takes_the_fullest_row_that_still_fits(lengths: list[int], size: int) -> None:
    pieces = [Piece(n, 0, length) for n, length in enumerate(lengths)]
    rows: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        used = [sum(lengths[i] for i in row) + len(row) for row in rows]
        fitting = [n for n, full in enumerate(used) if full + lengths[index] <= size]
        if fitting:
            rows[max(fitting, key=lambda n: used[n])].append(index)
        else:
            rows.append([index])
    # Rows that are equally full can stand in for each other: only how full they are is compared.
    fast = best_fit(pieces, size)
    assert sorted(sum(lengths[i] for i in r) + len(r) for r in fast) == sorted(
        sum(lengths[i] for i in r) + len(r) for r in rows
    )


def test_rows_without_a_target_are_skipped_and_counted() -> None:
    rows, counted = packed([[False] * 6, [False, True, True]], 3)
    assert counted.skipped_rows == 2
    assert counted.in_skipped_rows == 6
    assert [r.loss_mask.tolist() for r in rows] == [[0, 0, 1]]
    assert counted.in_tail == 1


def test_a_row_that_begins_with_a_target_loses_it_and_says_so() -> None:
    rows, counted = packed([[False, True, True, True]], 2)
    assert [r.loss_mask.tolist() for r in rows] == [[0, 1], [0, 1]]
    assert counted.lost_targets == 1


def test_pieces_longer_than_a_row_are_split_in_order() -> None:
    pieces = pieces_of([0, 1], [7, 2], 3)
    assert pieces == [Piece(0, 0, 3), Piece(0, 3, 3), Piece(0, 6, 1), Piece(1, 0, 2)]
    assert best_fit(pieces, 3) == [[0], [1], [3], [2]]
