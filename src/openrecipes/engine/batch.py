"""One micro-batch: rows laid end to end (THD), with the borders that nothing crosses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORE = -100


@dataclass(frozen=True, eq=False)
class Segments:
    """Where a sequence of T tokens is cut: attention, convolution and SSM state stay inside a cut.

    Attributes:
        lengths: tokens of each segment, in order; they add up to T.
        ids: (T,) int32, the number of each token's segment, from 0, never falling.
    """

    lengths: tuple[int, ...]
    ids: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int] | Tensor, device: torch.device | str = "cpu") -> Segments:
        """Segments of these lengths, empty ones left out."""
        kept = tuple(int(n) for n in lengths if int(n) > 0)
        counts = torch.tensor(kept, dtype=torch.int64, device=device)
        ids = torch.arange(len(kept), dtype=torch.int32, device=device)
        # The size is known here: without it a GPU would have to be asked and waited for.
        return cls(kept, ids.repeat_interleave(counts, output_size=sum(kept)))


@dataclass(frozen=True, eq=False)
class Batch:
    """Token ids with their loss mask and borders.

    Attributes:
        input_ids: (1, T) int64.
        loss_mask: (1, T), 1 where the token is a supervised target (to be predicted by the one
            before it), else 0.
        segment_lengths: lengths of the pieces that attention, convolution and SSM state stay
            inside: whole rows, or documents. Trailing padding is a segment of its own.
        row_lengths: lengths of the rows; a segment never crosses a row's end.

    Raises:
        ValueError: lengths that do not add up to T, or a segment that crosses a row's end.
    """

    input_ids: Tensor
    loss_mask: Tensor
    segment_lengths: tuple[int, ...]
    row_lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        tokens = self.input_ids.shape[-1]
        if self.input_ids.shape != (1, tokens) or self.loss_mask.shape != (1, tokens):
            raise ValueError("input_ids and loss_mask must both be (1, T)")
        if sum(self.segment_lengths) != tokens or sum(self.row_lengths) != tokens:
            raise ValueError("segment_lengths and row_lengths must each add up to T")
        if not set(_ends(self.row_lengths)) <= set(_ends(self.segment_lengths)):
            raise ValueError("a segment crosses the end of a row")

    def segments(self) -> Segments:
        """The segments, on the device of the ids."""
        return Segments.of(self.segment_lengths, self.input_ids.device)

    def targets(self) -> Tensor:
        """(T,) int64: at each position the next token where it is supervised, else ``IGNORE``.

        A segment's first token is never a target: what precedes it is not its context.
        """
        ids, counted = self.input_ids[0], self.loss_mask[0].bool().clone()
        ends = torch.tensor(_ends(self.segment_lengths), device=ids.device)
        starts = torch.cat([ends.new_zeros(1), ends])[:-1]
        counted[starts[starts < ids.numel()]] = False
        targets = torch.full_like(ids, IGNORE)
        targets[:-1] = torch.where(counted[1:], ids[1:], IGNORE)
        return targets

    def supervised_tokens(self) -> Tensor:
        """() int64: the number of targets that count."""
        return (self.targets() != IGNORE).sum()

    def padded(self, multiple: int) -> Batch:
        """The same batch with its tokens filled up to a multiple.

        The filling is a row and a segment of its own and is not counted, so nothing else changes.
        """
        missing = -self.input_ids.shape[1] % multiple
        if not missing:
            return self
        return Batch(
            torch.nn.functional.pad(self.input_ids, (0, missing)),
            torch.nn.functional.pad(self.loss_mask, (0, missing)),
            (*self.segment_lengths, missing),
            (*self.row_lengths, missing),
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(
            self.input_ids.to(device, non_blocking=True),
            self.loss_mask.to(device, non_blocking=True),
            self.segment_lengths,
            self.row_lengths,
        )


def _ends(lengths: Sequence[int]) -> list[int]:
    ends, total = [], 0
    for length in lengths:
        total += int(length)
        ends.append(total)
    return ends
