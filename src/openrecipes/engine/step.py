"""One optimizer step: micro-batches in, new weights and the step's figures out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from openrecipes.engine.batch import Batch
from openrecipes.engine.model import NemotronH
from openrecipes.engine.model.moe import MoE
from openrecipes.engine.optimizer import AdamW
from openrecipes.engine.parallel.collectives import highest_, sum_
from openrecipes.engine.parallel.data_parallel import buckets, gradient_norm
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.parallel.pipeline import Pipeline, Stages
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
            spread over the mesh. With PP the rank's stages.
        mesh: this rank's axes.
        schedule: the learning rate of each step.
        clip_grad: highest gradient norm; 0 is no clipping.
        betas, eps, weight_decay: AdamW's.

    Attributes:
        model: what this rank holds.
        whole: what computes as the whole model does: itself, or a pipeline.
        phase: what is being done, for the record of a failure.
        buckets: parameters and gradients.
    """

    def __init__(
        self,
        model: NemotronH | Stages,
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
        self.whole = Pipeline(model, mesh) if isinstance(model, Stages) else model
        self._load: dict[MoE, Tensor] = {}

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
        self._load.clear()
        if isinstance(self.whole, Pipeline):
            total = self.whole.train(batches, supervised, self._enter, self._count)
        else:
            total = self._train(self.whole, batches, supervised)
        loss = sum_(sum_(total.reshape(1), self.mesh.data), self.mesh.pp)
        return float(loss) / supervised, self._expert_load()

    @torch.no_grad()
    def losses(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Each micro-batch's summed loss, () fp32, without learning.

        Under context parallelism it is the rank's part; on a stage without the head it is 0.
        """
        batches = [batch.padded(self.mesh.token_parts) for batch in batches]
        if isinstance(self.whole, Pipeline):
            return self.whole.losses(batches)
        return [self.whole(batch)[0] for batch in batches]

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

    def _train(self, model: nn.Module, batches: Sequence[Batch], supervised: int) -> Tensor:
        """Micro-batches one after another: add up gradients; the summed loss, () fp64."""
        losses: list[Tensor] = []
        for batch in batches:
            self._enter("forward")
            loss_sum, _ = model(batch)
            self._count(model)
            self._enter("backward")
            (loss_sum / supervised).backward()
            losses.append(loss_sum.detach().double())
        return torch.stack(losses).sum()

    def _enter(self, phase: str) -> None:
        self.phase = phase

    def _count(self, model: nn.Module) -> None:
        """Add what the last forward of a model, or of a stage, sent to each expert."""
        for module in model.modules():
            if isinstance(module, MoE) and module.tokens_per_expert is not None:
                counts = module.tokens_per_expert
                self._load[module] = self._load[module] + counts if module in self._load else counts

    def _expert_load(self) -> tuple[float, float] | None:
        device = self.buckets[0].weights.device
        fullest = torch.zeros(2, dtype=torch.float64, device=device)
        if self._load:
            counts = sum_(torch.stack(list(self._load.values())), self.mesh.stage).double()
            worst = counts[counts.max(1).values.argmax()]
            fullest = torch.stack([worst.max(), worst.mean()])
        # The mean is that of every layer, as every token goes through all of them.
        highest, mean = highest_(fullest, self.mesh.pp).tolist()
        return (highest, mean) if mean else None
