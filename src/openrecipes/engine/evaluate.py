"""Loss on rows that are not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openrecipes.engine.batch import Batch
from openrecipes.engine.batches import to_batch
from openrecipes.engine.job import check_row
from openrecipes.engine.parallel.collectives import sum_
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.settings import Settings
from openrecipes.rows.parquet import RowsFile

#: Micro-batches that are at hand at once, per pipeline stage: they fill the pipeline.
_AT_HAND = 4


@dataclass(frozen=True)
class Validation:
    """The validation rows and how often they are looked at.

    Args:
        rows: the file.
        interval: steps between validations; the last step is always followed by one.
        micro_rows: rows of one forward pass.
        vocabulary: of the model.
        isolate_documents: as in training.
        mesh: this rank's axes.
        device: where the model is.
    """

    rows: RowsFile
    interval: int | None
    micro_rows: int
    vocabulary: int
    isolate_documents: bool
    mesh: Mesh
    device: torch.device

    @classmethod
    def of(
        cls, settings: Settings, vocabulary: int, mesh: Mesh, device: torch.device
    ) -> Validation | None:
        """From the settings; None where no validation rows are given."""
        if settings.valid_data is None:
            return None
        rows = RowsFile(settings.valid_data)
        micro = settings.micro_rows
        if settings.max_tokens is not None:
            micro = max(1, settings.max_tokens // max(1, rows.row_tokens))
        isolate = settings.isolate_documents
        return cls(rows, settings.eval_interval, micro, vocabulary, isolate, mesh, device)

    def due(self, step: int, steps: int) -> bool:
        """Whether step ``step`` (from 0) of ``steps`` is followed by a validation."""
        done = step + 1
        return done == steps or (self.interval is not None and done % self.interval == 0)

    @torch.no_grad()
    def loss(self, losses: Callable[[Sequence[Batch]], list[Tensor]]) -> tuple[float, int]:
        """Loss per supervised token over all validation rows, and the number of these tokens.

        Every rank does the same number of forward passes, as the exchange of experts needs; one
        without rows of its own repeats the first and does not count it.

        Args:
            losses: the rank's part of the summed loss of each of its micro-batches.
        """
        starts = range(0, len(self.rows), self.micro_rows)
        rounds = -(-len(starts) // self.mesh.dp.size)
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        at_hand = _AT_HAND * self.mesh.pp.size
        for first in range(0, rounds, at_hand):
            turns = range(first, min(first + at_hand, rounds))
            numbers = [turn * self.mesh.dp.size + self.mesh.dp.rank for turn in turns]
            counted = [number < len(starts) for number in numbers]
            batches = [
                self._batch(starts[number] if counts else 0)
                for number, counts in zip(numbers, counted, strict=True)
            ]
            for batch, loss_sum, counts in zip(batches, losses(batches), counted, strict=True):
                if counts:
                    total += torch.stack([loss_sum.double(), batch.supervised_tokens().double()])
        # Ranks of cp share a row's loss, but each has counted all its tokens; so has each stage.
        loss = float(sum_(sum_(total[:1], self.mesh.data), self.mesh.pp))
        supervised = float(sum_(total[1:], self.mesh.dp))
        return (loss / supervised if supervised else float("nan")), int(supervised)

    def _batch(self, start: int) -> Batch:
        rows = self.rows.read(start, min(start + self.micro_rows, len(self.rows)))
        for offset, row in enumerate(rows):
            check_row(row, self.vocabulary, self.rows.path, start + offset)
        return to_batch(rows, self.isolate_documents).to(self.device)
