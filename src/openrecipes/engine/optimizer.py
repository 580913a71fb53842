"""AdamW on this rank's slices of the flat buffers, with fp32 masters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from openrecipes.engine.parallel.data_parallel import Bucket


class AdamW:
    """Adam with decoupled weight decay; what has one dimension is not decayed.

    Args:
        owned: the buckets; the optimizer updates their masters from their reduced gradients.
        betas: decay of the two moments.
        eps: keeps the division finite.
        weight_decay: of decayed parameters; the step is lr times it.
    """

    def __init__(
        self,
        owned: Sequence[Bucket],
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        self._parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        groups: dict[float, list[torch.Tensor]] = {weight_decay: [], 0.0: []}
        for bucket in owned:
            for part, decay in (
                (slice(0, bucket.decayed), weight_decay),
                (slice(bucket.decayed, bucket.held), 0.0),
            ):
                master = bucket.master[part]
                if master.numel():
                    self._parts.append((master, bucket.gradient[part]))
                    groups[decay].append(master)
        self._adam = torch.optim.AdamW(
            [
                {"params": masters, "weight_decay": decay}
                for decay, masters in groups.items()
                if masters
            ],
            lr=0.0,
            betas=betas,
            eps=eps,
            fused=True,
        )

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update of the masters with learning rate ``lr``."""
        for group in self._adam.param_groups:
            group["lr"] = lr
        for master, gradient in self._parts:
            master.grad = gradient
        self._adam.step()

    def state_bytes(self) -> int:
        """Bytes of both moments of this rank's slices (8 per parameter)."""
        return sum(2 * master.numel() * 4 for master, _ in self._parts)
