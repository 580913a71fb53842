"""One optimizer step: micro-batches in, new weights and the step's figures out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openrecipes.engine.batch import Batch
from openrecipes.engine.model import NemotronH
from openrecipes.engine.model.moe import MoE
from openrecipes.engine.optimizer import AdamW
from openrecipes.engine.parallel.collectives import sum_
from openrecipes.engine.parallel.data_parallel import buckets, gradient_norm
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.schedule import Schedule
from openrecipes.errors import InputError

_CLIP_EPSILON = 1e-6  # Megatron's


@dataclass(frozen=True)
class StepResult:
    """What one step came to, over all ranks.

    Args:
        loss: summed over the global batch's supervised tokens, divided by their number.
        grad_norm: before clipping.
        lr: the learning rate used.
        supervised_tokens: targets of the global batch.
        expert_load: tokens of the fullest expert and their mean, in the layer where the fullest is
            fullest; None without experts.
    """

    loss: float
    grad_norm: float
    lr: float
    supervised_tokens: int
    expert_load: tuple[float, float] | None

    @property
    def finite(self) -> bool:
        """Whether the step may be trusted; the weights are unchanged where it may not."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Trainer:
    """A model with its sharded optimizer.

    Args:
        model: ``model(batch)`` gives the summed loss and the number of supervised tokens; already
            spread over the mesh.
        mesh: this rank's axes.
        schedule: the learning rate of each step.
        clip_grad: highest gradient norm; 0 is no clipping.
        betas, eps, weight_decay: AdamW's.
    """

    def __init__(
        self,
        model: NemotronH,
        mesh: Mesh,
        schedule: Schedule,
        *,
        clip_grad: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        self.model = model
        self.mesh = mesh
        self.schedule = schedule
        self.clip_grad = clip_grad
        self.phase = "optimizer"
        self.buckets = buckets(model, mesh)
        self.optimizer = AdamW(self.buckets, betas=betas, eps=eps, weight_decay=weight_decay)
        self._moe = [module for module in model.modules() if isinstance(module, MoE)]

    def step(self, number: int, batches: Sequence[Batch]) -> StepResult:
        """Train on this rank's micro-batches of step ``number``.

        Every rank passes the same number of micro-batches. A step whose loss or gradient is not
        finite changes no weight.

        Raises:
            InputError: the global batch has no supervised token.
        """
        batches = [batch.padded(self.mesh.token_parts) for batch in batches]
        supervised = self._supervised(batches)
        loss, load = self.gradients(batches, supervised)
        self.phase = "optimizer"
        for bucket in self.buckets:
            bucket.reduce()
        norm = gradient_norm(self.buckets, self.mesh)
        lr = self.schedule.at(number)
        result = StepResult(loss, norm, lr, supervised, load)
        if result.finite:
            self._clip(norm)
            self.optimizer.step(lr)
            for bucket in self.buckets:
                bucket.publish()
        return result

    def gradients(
        self, batches: Sequence[Batch], supervised: int
    ) -> tuple[float, tuple[float, float] | None]:
        """Fill the buckets with this rank's gradients; the global loss and the expert load."""
        for bucket in self.buckets:
            bucket.zero()
        losses: list[Tensor] = []
        loads: list[Tensor] = []
        for batch in batches:
            self.phase = "forward"
            loss_sum, _ = self.model(batch)
            loads.append(self._tokens_per_expert())
            self.phase = "backward"
            (loss_sum / supervised).backward()
            losses.append(loss_sum.detach().double().reshape(1))
        loss = float(sum_(torch.cat(losses).sum(0, keepdim=True), self.mesh.data)) / supervised
        return loss, self._load(torch.stack(loads).sum(0))

    def memory(self) -> dict[str, int]:
        """This rank's bytes of weights, gradients, masters and optimizer state."""
        tensors = [(b.weights, b.gradients, b.gradient, b.master) for b in self.buckets]
        buffers = sum(buffer.nbytes for buffer in self.model.buffers())
        return {
            "weights": buffers + sum(weights.nbytes for weights, _, _, _ in tensors),
            "gradients": sum(
                whole.nbytes + (0 if own is whole else own.nbytes) for _, whole, own, _ in tensors
            ),
            "master": sum(
                master.nbytes for weights, _, _, master in tensors if master.dtype != weights.dtype
            ),
            "optimizer": self.optimizer.state_bytes(),
        }

    def _supervised(self, batches: Sequence[Batch]) -> int:
        self.phase = "data"
        counts = torch.stack([batch.supervised_tokens() for batch in batches])
        supervised = int(sum_(counts.sum(0, keepdim=True), self.mesh.dp))
        if not supervised:
            raise InputError(
                "leave rows without a supervised token out",
                field="loss_mask",
                found="a global batch without a supervised token",
                expected="at least one",
            )
        return supervised

    def _clip(self, norm: float) -> None:
        if 0 < self.clip_grad < norm + _CLIP_EPSILON:
            for bucket in self.buckets:
                bucket.gradient.mul_(self.clip_grad / (norm + _CLIP_EPSILON))

    def _tokens_per_expert(self) -> Tensor:
        """(layers, E): what the last forward sent to each expert."""
        counts = [m.tokens_per_expert for m in self._moe if m.tokens_per_expert is not None]
        return torch.stack(counts) if counts else torch.zeros(0, 1)

    def _load(self, counts: Tensor) -> tuple[float, float] | None:
        if not counts.shape[0]:
            return None
        counts = sum_(counts, self.mesh.stage).double()
        worst = counts[counts.max(1).values.argmax()]
        return float(worst.max()), float(worst.mean())
