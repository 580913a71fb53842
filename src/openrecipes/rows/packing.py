"""Packing: documents into rows. Pure; what it leaves out, it counts.

``concat``: documents in a row order, an EOS between them, cut into consecutive rows; no padding.
``best-fit``: whole documents, an EOS between those that share a row, least padding (best-fit
decreasing), padding at the end of a row. In both a row without a target is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from openrecipes.rows.masks import Mask
from openrecipes.rows.parquet import Row
from openrecipes.rows.tokenization import Ids

#: Gives a conversation's ids and mask.
Fetch = Callable[[int], tuple[Ids, Mask]]


@dataclass(frozen=True)
class Joint:
    """What stands between two documents, and at a row's end.

    Attributes:
        eos: id of the token between documents.
        supervised: is that token a target?
        padding: id of the token that fills a row (best-fit).
    """

    eos: int
    supervised: bool = False
    padding: int = 0


@dataclass
class Tally:
    """Where every token of the stream went.

    Attributes:
        in_rows: tokens in rows, padding not counted.
        in_skipped_rows: tokens in rows that were skipped for want of a target.
        in_tail: tokens after the last row: they fill no row, or more rows were not asked for.
        skipped_rows: rows skipped for want of a target.
        padding: padding tokens in rows.
        eos: of the tokens in rows, those between documents.
        supervised: targets in rows.
        lost_targets: targets that became none because a row begins with them.
        kept: (conversations,) how many of each conversation's own tokens lie in rows.
    """

    kept: npt.NDArray[np.int64]
    in_rows: int = 0
    in_skipped_rows: int = 0
    in_tail: int = 0
    skipped_rows: int = 0
    padding: int = 0
    eos: int = 0
    supervised: int = 0
    lost_targets: int = 0

    @property
    def stream(self) -> int:
        """All tokens of the stream."""
        return self.in_rows + self.in_skipped_rows + self.in_tail


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a conversation inside a row.

    Attributes:
        number: the conversation.
        start: its first token's place within the conversation.
        length: its tokens, the EOS not counted.
        eos: EOS tokens after it, 0 or 1.
    """

    number: int
    start: int
    length: int
    eos: int = 0


def concat(
    order: Iterable[int],
    lengths: Sequence[int] | npt.NDArray[np.int64],
    fetch: Fetch,
    *,
    row_tokens: int,
    joint: Joint,
    tally: Tally,
    rows: int | None = None,
) -> Iterator[Row]:
    """Cut the stream of documents into consecutive rows.

    Args:
        order: conversation numbers in stream order; each has at least one token.
        lengths: tokens of each conversation, by number.
        fetch: gives a conversation's tokens.
        row_tokens: tokens in a row.
        joint: the token between documents.
        tally: filled as the rows are taken; complete at the end.
        rows: stop after so many.
    """
    builder = _RowBuilder(row_tokens, joint, tally)
    made = 0
    numbers = iter(order)
    begun = False
    for number in numbers:
        if rows is not None and made == rows:
            break
        ids, mask = fetch(number)
        if begun:
            row = builder.add_eos()
            if row is not None:
                made += 1
                yield row
        start = 0
        while start < len(ids) and (rows is None or made < rows):
            taken, row = builder.add(number, ids, mask, start)
            start += taken
            if row is not None:
                made += 1
                yield row
        tally.in_tail += len(ids) - start
        begun = True
    else:
        tally.in_tail += builder.filled
        return
    # Enough rows: what follows is only counted, each document with the EOS before it.
    tally.in_tail += builder.filled + 1 + int(lengths[number])
    for number in numbers:
        tally.in_tail += 1 + int(lengths[number])


def best_fit(pieces: Sequence[Piece], row_tokens: int) -> list[list[int]]:
    """Which pieces share a row: best-fit decreasing, an EOS between two pieces.

    Args:
        pieces: each of at most ``row_tokens`` tokens; among equals the earlier goes first.
        row_tokens: tokens in a row.

    Returns:
        Indices into ``pieces``, row by row in the order the rows were opened.
    """
    lengths = np.array([piece.length for piece in pieces], np.int64)
    rows: list[list[int]] = []
    # A row that holds pieces has room for r - 1 more tokens beside the EOS: `room[r]` lists the
    # rows with r free tokens, and bit r of `open_` tells whether there are any.
    room: list[list[int]] = [[] for _ in range(row_tokens + 1)]
    open_ = 0
    for index in np.argsort(-lengths, kind="stable").tolist():
        need = int(lengths[index]) + 1
        fitting = open_ >> need
        if fitting:
            free = need + (fitting & -fitting).bit_length() - 1
            row = room[free].pop()
            if not room[free]:
                open_ &= ~(1 << free)
            rows[row].append(index)
            free -= need
        else:
            row = len(rows)
            rows.append([index])
            free = row_tokens - (need - 1)
        room[free].append(row)
        open_ |= 1 << free
    return rows


def pieces_of(
    order: Iterable[int], lengths: Sequence[int] | npt.NDArray[np.int64], row_tokens: int
) -> list[Piece]:
    """Each conversation as one piece, or, longer than a row, as consecutive pieces of a row."""
    return [
        Piece(number, start, min(row_tokens, int(lengths[number]) - start))
        for number in order
        for start in range(0, int(lengths[number]), row_tokens)
    ]


def fitted(
    pieces: Sequence[Piece],
    groups: Sequence[Sequence[int]],
    fetch: Fetch,
    *,
    row_tokens: int,
    joint: Joint,
    tally: Tally,
    rows: int | None = None,
) -> Iterator[Row]:
    """Rows of whole pieces, as ``best_fit`` grouped them; arguments as for ``concat``."""
    builder = _RowBuilder(row_tokens, joint, tally)
    made = 0
    for group in groups:
        if rows is not None and made == rows:
            tally.in_tail += sum(pieces[index].length for index in group) + len(group) - 1
            continue
        for place, index in enumerate(group):
            piece = pieces[index]
            if place:
                builder.add_eos()
            ids, mask = fetch(piece.number)
            stop = piece.start + piece.length
            row = builder.add(piece.number, ids[:stop], mask[:stop], piece.start)[1]
        row = row if row is not None or builder.filled == 0 else builder.finish()
        if row is not None:
            made += 1
            yield row


class _RowBuilder:
    """Fills one row after another."""

    def __init__(self, row_tokens: int, joint: Joint, tally: Tally) -> None:
        self._size = row_tokens
        self._joint = joint
        self._tally = tally
        self._last = (0, 0)
        self._begin()

    def _begin(self) -> None:
        self._ids = np.zeros(self._size, np.int32)
        self._mask = np.zeros(self._size, np.uint8)
        self._pieces: list[Piece] = []
        self.filled = 0

    def add(self, number: int, ids: Ids, mask: Mask, start: int) -> tuple[int, Row | None]:
        """Take as much of a document as fits: how much, and the row if it is full."""
        taken = min(len(ids) - start, self._size - self.filled)
        span = slice(self.filled, self.filled + taken)
        self._ids[span] = ids[start : start + taken]
        self._mask[span] = mask[start : start + taken]
        self._pieces.append(Piece(number, start, taken))
        self._last = (number, start + taken)
        self.filled += taken
        return taken, self._full()

    def add_eos(self) -> Row | None:
        """Append an EOS, which belongs to the document added last; the row if it is full."""
        self._ids[self.filled] = self._joint.eos
        self._mask[self.filled] = self._joint.supervised
        if self._pieces:
            self._pieces[-1] = replace(self._pieces[-1], eos=1)
        else:
            number, start = self._last
            self._pieces.append(Piece(number, start, 0, eos=1))
        self.filled += 1
        return self._full()

    def _full(self) -> Row | None:
        return self.finish() if self.filled == self._size else None

    def finish(self) -> Row | None:
        """The row, padded; None when it holds no target and is skipped."""
        ids, mask, tally = self._ids, self._mask, self._tally
        ids[self.filled :] = self._joint.padding
        lost = int(mask[0])
        mask[0] = 0
        targets = int(mask.sum())
        filled, pieces = self.filled, self._pieces
        self._begin()
        if targets == 0:
            tally.skipped_rows += 1
            tally.in_skipped_rows += filled
            return None
        tally.in_rows += filled
        tally.padding += self._size - filled
        tally.eos += sum(piece.eos for piece in pieces)
        tally.supervised += targets
        tally.lost_targets += lost
        for piece in pieces:
            tally.kept[piece.number] += piece.length
        return Row(
            ids,
            mask,
            np.array([p.length + p.eos for p in pieces], np.int32),
            np.array([p.number for p in pieces], np.int64),
            np.array([p.start for p in pieces], np.int32),
        )
