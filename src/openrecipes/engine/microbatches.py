"""Which rows a step takes, and how they become micro-batches for each data parallel rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openrecipes.errors import InputError

#: Row numbers of one micro-batch.
MicroBatch = list[int]


@dataclass(frozen=True)
class RowOrder:
    """Rows in file order: step s takes the rows s x batch to (s + 1) x batch - 1.

    Args:
        rows: rows of the file.
        batch: rows per step.
        repeat: begin again after the last whole batch (``--num-epoch``).
        seed: permute the rows within each global batch, and only there.
    """

    rows: int
    batch: int
    repeat: bool = False
    seed: int | None = None

    def of_step(self, step: int) -> list[int]:
        """The row numbers of step ``step``, in order."""
        start = step * self.batch
        if self.repeat:
            start %= self.rows // self.batch * self.batch
        rows = range(start, start + self.batch)
        if self.seed is None:
            return list(rows)
        order = np.random.default_rng((self.seed, step)).permutation(self.batch)
        return [rows[int(position)] for position in order]


@dataclass(frozen=True)
class Cutting:
    """How a global batch is cut into micro-batches.

    Args:
        ranks: data parallel ranks; each gets the same number of micro-batches.
        rows: rows per micro-batch, where ``max_tokens`` is None.
        max_tokens: most tokens of a micro-batch (tokens per GPU x context parallel size).
    """

    ranks: int
    rows: int = 1
    max_tokens: int | None = None

    def cut(self, lengths: Sequence[int]) -> list[list[MicroBatch]]:
        """Micro-batches of each rank, as positions in ``lengths``.

        By tokens it is miles' rule: first-fit decreasing into bins of ``max_tokens`` (a longer row
        goes alone), the number of bins raised to a multiple of the ranks by splitting the largest,
        bin i to rank i mod ranks.

        Args:
            lengths: tokens of the step's rows.

        Raises:
            InputError: the rows cannot give every rank the same number of micro-batches.
        """
        if self.max_tokens is None:
            bins = [
                list(range(start, min(start + self.rows, len(lengths))))
                for start in range(0, len(lengths), self.rows)
            ]
        else:
            bins = first_fit_decreasing(lengths, self.max_tokens)
            split_largest(bins, -(-len(bins) // self.ranks) * self.ranks, lengths)
        if len(bins) % self.ranks:
            raise InputError(
                "choose a global batch that the data parallel ranks divide",
                field="--global-batch-size",
                found=f"{len(bins)} micro-batches for {self.ranks} data parallel ranks",
                expected="a multiple of the ranks",
            )
        return [bins[rank :: self.ranks] for rank in range(self.ranks)]


def first_fit_decreasing(lengths: Sequence[int], limit: int) -> list[MicroBatch]:
    """Bins of at most ``limit`` tokens, longest rows first; a longer row has a bin of its own."""
    bins: list[MicroBatch] = []
    filled: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        for number, tokens in enumerate(filled):
            if tokens + lengths[row] <= limit:
                bins[number].append(row)
                filled[number] += lengths[row]
                break
        else:
            bins.append([row])
            filled.append(lengths[row])
    return bins


def split_largest(bins: list[MicroBatch], count: int, lengths: Sequence[int]) -> None:
    """Split the largest bins in two, in place, until there are ``count`` or none can be split."""
    while len(bins) < count:
        splittable = [
            (sum(lengths[row] for row in rows), number)
            for number, rows in enumerate(bins)
            if len(rows) > 1
        ]
        if not splittable:
            return
        _, number = max(splittable)
        halves: tuple[MicroBatch, MicroBatch] = ([], [])
        tokens = [0, 0]
        for row in sorted(bins[number], key=lambda row: -lengths[row]):
            half = int(tokens[0] > tokens[1])
            halves[half].append(row)
            tokens[half] += lengths[row]
        bins[number] = halves[0]
        bins.append(halves[1])
