"""A small model trained for some steps in some layout: what the tests compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.batch import Batch
from openrecipes.engine.microbatches import Cutting, RowOrder
from openrecipes.engine.model import NemotronH, initialise
from openrecipes.engine.parallel import data_parallel
from openrecipes.engine.parallel.collectives import gather, sum_
from openrecipes.engine.parallel.data_parallel import Bucket
from openrecipes.engine.parallel.expert_parallel import SpreadExperts
from openrecipes.engine.parallel.mesh import Axis, Mesh
from openrecipes.engine.parallel.parts import distribute
from openrecipes.engine.parallel.whole import whole_tensors
from openrecipes.engine.schedule import Schedule
from openrecipes.engine.step import Trainer
from openrecipes.layouts.layout import Layout

CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "ME*E-",
    "vocab_size": 96,
    "initializer_range": 0.15,
    "hidden_size": 32,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 8,
    "conv_kernel": 4,
    "chunk_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 32,
    "moe_latent_size": 16,
    "routed_scaling_factor": 2.5,
}


@dataclass(frozen=True)
class Run:
    """How to train: layout, batch, optimizer, and a fault to plant."""

    expert_parallel: int = 1
    steps: int = 10
    batch: int = 8
    micro_rows: int = 1
    max_tokens: int | None = None
    lr: float = 1e-4
    warmup_steps: int = 0
    weight_decay: float = 0.1
    bf16: bool = False
    row_seed: int | None = None
    ragged: bool = False
    fault: str | None = None


@dataclass
class Outcome:
    """What a run came to."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    lrs: list[float] = field(default_factory=list)
    loads: list[Any] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    supervised: list[int] = field(default_factory=list)


def model(seed: int = 7) -> NemotronH:
    """The small model with random weights, its router bias random and not zero."""
    made = NemotronH(NemotronHConfig.from_hf(CONFIG))
    initialise(made, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in made.named_buffers():
        if name.endswith("e_score_correction_bias"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.2 - 0.1)
    return made


def rows(count: int, ragged: bool) -> list[Batch]:
    """Random rows of about 48 tokens with about two thirds supervised."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for number in range(count):
        length = 48 if not ragged else 17 + (number * 13) % 40
        ids = torch.randint(CONFIG["vocab_size"], (1, length), generator=generator)
        # Rows differ in how much they supervise: a mean of means then differs from the mean.
        mask = torch.rand(1, length, generator=generator) < 0.2 + 0.7 * (number % 4) / 3
        mask[0, 1] = True
        made.append(Batch(ids, mask.to(torch.uint8), (length,), (length,)))
    return made


def join(parts: list[Batch]) -> Batch:
    """Rows laid end to end."""
    return Batch(
        torch.cat([part.input_ids for part in parts], 1),
        torch.cat([part.loss_mask for part in parts], 1),
        tuple(n for part in parts for n in part.segment_lengths),
        tuple(n for part in parts for n in part.row_lengths),
    )


def train(run: Run) -> Outcome:
    """Train in this process, or as one rank of its process group."""
    with planted(run.fault):
        return _train(run)


def _train(run: Run) -> Outcome:
    world = dist.get_world_size() if dist.is_initialized() else 1
    mesh = Mesh.build(Layout(tp=1, pp=1, ep=run.expert_parallel, etp=1, dp=world))
    trained = model()
    trained.to_precision(torch.bfloat16 if run.bf16 else torch.float32)
    distribute(trained, mesh)
    schedule = Schedule(run.lr, run.lr, "constant", run.warmup_steps * run.batch, 1e9, run.batch)
    trainer = Trainer(trained, mesh, schedule, betas=(0.9, 0.98), weight_decay=run.weight_decay)
    data = rows(run.batch * run.steps, run.ragged)
    order = RowOrder(len(data), run.batch, seed=run.row_seed)
    cutting = Cutting(mesh.data.size, run.micro_rows, run.max_tokens)
    outcome = Outcome()
    for number in range(run.steps):
        step_rows = [data[index] for index in order.of_step(number)]
        cut = cutting.cut([row.input_ids.shape[1] for row in step_rows])[mesh.data.rank]
        result = trainer.step(number, [join([step_rows[i] for i in micro]) for micro in cut])
        if number == 0:
            outcome.gradients = whole_gradients(trainer, mesh)
        outcome.losses.append(result.loss)
        outcome.norms.append(result.grad_norm)
        outcome.lrs.append(result.lr)
        outcome.loads.append(result.expert_load)
        outcome.supervised.append(result.supervised_tokens)
    outcome.weights = whole_tensors(trained, mesh)
    return outcome


def whole_gradients(trainer: Trainer, mesh: Mesh) -> dict[str, Tensor]:
    """The last step's gradients before clipping, by parameter, of the whole model."""
    local: dict[int, Tensor] = {}
    for bucket in trainer.buckets:
        whole = torch.zeros_like(bucket.gradients)
        gather(whole, bucket.gradient.clone(), bucket.axis)
        if bucket.axis.size == 1:
            whole.copy_(bucket.gradient)
        for slot in bucket.slots:
            end = slot.start + slot.parameter.numel()
            local[id(slot.parameter)] = whole[slot.start : end].view(slot.parameter.shape)
    return whole_tensors(trainer.model, mesh, local)


@contextmanager
def planted(fault: str | None) -> Iterator[None]:
    """Put a fault into this process while the block runs."""
    patches: dict[str, Any] = {
        "forgotten reduction": lambda: patch.object(Bucket, "reduce", _keep_own_slice),
        "mean of means": lambda: patch.object(NemotronH, "forward", _mean),
        "decayed norms": lambda: patch.object(data_parallel, "decays", lambda *_: True),
        "late warm-up": lambda: patch.object(
            Schedule, "at", lambda self, step, at=Schedule.at: at(self, step + 1)
        ),
        "frozen expert": lambda: patch.object(Bucket, "reduce", _without_one_expert),
        "wrong expert rank": lambda: patch.object(SpreadExperts, "__init__", _other_experts),
        "lost micro-batch": lambda: patch.object(Cutting, "cut", _lose_one),
    }
    with patches[fault]() if fault else nullcontext():
        yield


def _keep_own_slice(bucket: Bucket) -> None:
    bucket.gradient.copy_(bucket.gradients[bucket.start : bucket.start + bucket.held])


def _mean(self: NemotronH, batch: Batch, forward: Any = NemotronH.forward) -> tuple[Tensor, Tensor]:
    loss, count = forward(self, batch)
    return loss / count * 25, count


def _without_one_expert(bucket: Bucket, reduce: Any = Bucket.reduce) -> None:
    for slot in bucket.slots:
        if slot.name.endswith("up_proj") and slot.parameter.dim() == 3:
            bucket.gradients[slot.start : slot.start + slot.parameter[0].numel()].zero_()
    reduce(bucket)


def _other_experts(
    self: SpreadExperts, experts: Any, axis: Axis, parts: int, init: Any = SpreadExperts.__init__
) -> None:
    init(self, experts, axis, parts)
    with torch.no_grad():  # what another rank's experts should be
        for held in (self.up_proj, self.down_proj):
            held.copy_(sum_(held.clone(), axis) - held)


def _lose_one(self: Cutting, lengths: Any, cut: Any = Cutting.cut) -> Any:
    return [micro[:-1] for micro in cut(self, lengths)]
