"""Rows of a parquet file as the micro-batches of one data parallel rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from openrecipes.engine.batch import Batch
from openrecipes.engine.job import check_row
from openrecipes.engine.microbatches import Cutting, RowOrder
from openrecipes.rows.parquet import Row, RowsFile


@dataclass(frozen=True)
class StepRows:
    """One rank's part of a step, with the sizes of the whole step.

    Args:
        batches: this rank's micro-batches; every rank has the same number.
        slots: token positions of the global batch, padding included.
        tokens: those that are not padding.
    """

    batches: list[Batch]
    slots: int
    tokens: int


@dataclass(frozen=True)
class Source:
    """Where a rank's micro-batches come from.

    Args:
        rows: the file.
        order: which rows a step takes.
        cutting: how they are cut.
        rank: this data parallel rank.
        vocabulary: of the model; larger ids are refused.
        isolate_documents: keep documents apart inside a row.
        device: where the batches are wanted.
    """

    rows: RowsFile
    order: RowOrder
    cutting: Cutting
    rank: int
    vocabulary: int
    isolate_documents: bool
    device: torch.device

    def step(self, number: int) -> StepRows:
        """The micro-batches of step ``number``.

        Raises:
            InputError: a row that cannot be trained on.
        """
        wanted = self.order.of_step(number)
        first = min(wanted)
        block = self.rows.read(first, max(wanted) + 1)
        rows = [block[index - first] for index in wanted]
        for index, row in zip(wanted, rows, strict=True):
            check_row(row, self.vocabulary, self.rows.path, index)
        lengths = [len(row.input_ids) for row in rows]
        mine = self.cutting.cut(lengths)[self.rank]
        batches = [
            to_batch([rows[i] for i in micro], self.isolate_documents).to(self.device)
            for micro in mine
        ]
        tokens = sum(int(row.document_lengths.sum(dtype=np.int64)) for row in rows)
        return StepRows(batches, sum(lengths), tokens)


def to_batch(rows: Sequence[Row], isolate_documents: bool) -> Batch:
    """Rows laid end to end.

    Args:
        rows: the rows.
        isolate_documents: every document is a segment; else every row is, up to its padding, which
            is a segment of its own in both cases.
    """
    segments: list[int] = []
    for row in rows:
        documents = [int(length) for length in row.document_lengths if length]
        filled = sum(documents)
        segments += documents if isolate_documents else [filled] if filled else []
        if filled < len(row.input_ids):
            segments.append(len(row.input_ids) - filled)
    return Batch(
        torch.from_numpy(np.concatenate([row.input_ids for row in rows])).to(torch.int64)[None],
        torch.from_numpy(np.concatenate([row.loss_mask for row in rows]))[None],
        tuple(segments),
        tuple(len(row.input_ids) for row in rows),
    )
