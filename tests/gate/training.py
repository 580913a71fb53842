"""Small trainings on one process with a fault planted in them, as run records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.batch import IGNORE, Batch, Segments
from openrecipes.engine.microbatches import Cutting, RowOrder
from openrecipes.engine.model import NemotronH, initialise
from openrecipes.engine.model.moe import MoE
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.probe import NormProbe, ProbeLine, probe_logits
from openrecipes.engine.schedule import Schedule
from openrecipes.engine.step import Trainer
from openrecipes.flags.parse import resolve
from openrecipes.runs.record import Manifest, RunWriter, Step

CONFIG = NemotronHConfig.from_hf(
    {
        "model_type": "nemotron_h",
        "vocab_size": 256,
        "hidden_size": 64,
        "hybrid_override_pattern": "MEM*E",
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 64,
        "routed_scaling_factor": 2.5,
    }
)
ROWS, ROW_TOKENS = 8, 128
WARM_STEPS = 60


@dataclass(frozen=True)
class Row:
    """Token ids, loss mask and document lengths of one row."""

    ids: Tensor
    mask: Tensor
    documents: tuple[int, ...]


class Borderless(Batch):
    """A micro-batch whose state and attention run over the borders of documents."""

    def segments(self) -> Segments:
        return Segments.of(self.row_lengths)


class Shifted(Batch):
    """A micro-batch whose labels are one token too far."""

    def targets(self) -> Tensor:
        targets = super().targets()
        shifted = torch.full_like(targets, IGNORE)
        shifted[:-1] = torch.where(targets[:-1] != IGNORE, targets[1:], IGNORE)
        return shifted


class Planted(Trainer):
    """The engine's step, with hooks around it that plant a fault."""

    fault: Fault

    def gradients(
        self, batches: Sequence[Batch], supervised: int
    ) -> tuple[float, tuple[float, float] | None]:
        if self.fault.gradients is not None:
            return self.fault.gradients(self, batches, supervised)
        return super().gradients(batches, supervised)


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where it is planted."""

    name: str
    lr: float = 1.0
    scaling: float = 2.5
    batch: type[Batch] = Batch
    weight_decay: float = 0.1
    model: Callable[[NemotronH], None] | None = None
    gradients: Callable[[Planted, Sequence[Batch], int], Any] | None = None
    after: Callable[[NemotronH, dict[str, Tensor]], None] | None = None


def unscaled(trainer: Planted, batches: Sequence[Batch], supervised: int) -> Any:
    """Gradients of a sum over two ranks that nobody divided."""
    loss, load = Trainer.gradients(trainer, batches, supervised)
    for bucket in trainer.buckets:
        bucket.gradients.mul_(2.0)
    return loss, load


def mean_of_means(trainer: Planted, batches: Sequence[Batch], supervised: int) -> Any:
    """Each micro-batch divided by its own number of supervised tokens."""
    for bucket in trainer.buckets:
        bucket.zero()
    total = 0.0
    for batch in batches:
        loss_sum, count = trainer.model(batch)
        mean = loss_sum / count / len(batches)
        mean.backward()
        total += float(mean.detach())
    return total, None


def bf16_accumulation(trainer: Planted, batches: Sequence[Batch], supervised: int) -> Any:
    """Micro-batches' gradients added up in bf16."""
    sums = [torch.zeros_like(bucket.gradients, dtype=torch.bfloat16) for bucket in trainer.buckets]
    total = 0.0
    for batch in batches:
        for bucket in trainer.buckets:
            bucket.zero()
        loss_sum, _ = trainer.model(batch)
        (loss_sum / supervised).backward()
        total += float(loss_sum.detach()) / supervised
        for bucket, gradients in zip(trainer.buckets, sums, strict=True):
            gradients += bucket.gradients
    for bucket, gradients in zip(trainer.buckets, sums, strict=True):
        bucket.gradients.copy_(gradients)
    return total, None


def stale(name: str) -> Callable[[Planted, Sequence[Batch], int], Any]:
    """One weight's forward and backward run on the step before's value."""

    def gradients(trainer: Planted, batches: Sequence[Batch], supervised: int) -> Any:
        weight = dict(trainer.model.named_parameters())[name].data
        current = weight.clone()
        weight.copy_(getattr(trainer, "stale_weight", current))
        found = Trainer.gradients(trainer, batches, supervised)
        weight.copy_(current)
        trainer.stale_weight = current  # type: ignore[attr-defined]
        return found

    return gradients


def drop_expert_bias(model: NemotronH) -> None:
    for module in model.modules():
        if isinstance(module, MoE):
            module.gate.e_score_correction_bias.zero_()


def frozen_expert(model: NemotronH, before: dict[str, Tensor]) -> None:
    """Expert 0 of the first MoE layer keeps the weights it had before the step."""
    for name, parameter in model.named_parameters():
        if ".layers.1.mixer.experts." in name:
            parameter.data[0].copy_(before[name][0])


NONE = Fault("nothing")
FAULTS = [
    Fault("learning rate x2", lr=2.0),
    Fault("learning rate x1.1", lr=1.1),
    Fault("missing gradient scaling", gradients=unscaled),
    Fault("mean of micro-batch means", gradients=mean_of_means),
    Fault("routing scaling factor 1.0", scaling=1.0),
    Fault("dropped expert bias", model=drop_expert_bias),
    Fault("dropped document border", batch=Borderless),
    Fault("bf16 accumulation", gradients=bf16_accumulation),
    Fault("stale master weight", gradients=stale("backbone.layers.0.mixer.x_proj.weight")),
    Fault("one expert never updated", after=frozen_expert),
    Fault("shifted labels", batch=Shifted),
    Fault("no weight decay", weight_decay=0.0),
]


def rows(count: int, seed: int = 0) -> list[Row]:
    """Rows of skewed tokens with some order in them, two to four documents each."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        tokens = np.minimum(draw.zipf(1.3, ROW_TOKENS), 250)
        tokens[1::2] = (tokens[::2] * 7 + 3) % 251  # every other token follows from the last
        cuts = np.sort(
            draw.choice(np.arange(8, ROW_TOKENS - 8), draw.integers(1, 4), replace=False)
        )
        documents = tuple(int(n) for n in np.diff([0, *cuts, ROW_TOKENS]))
        mask = draw.random(ROW_TOKENS) < draw.uniform(0.2, 0.9)
        made.append(
            Row(torch.from_numpy(tokens.astype(np.int64)), torch.from_numpy(mask), documents)
        )
    return made


def batch(kind: type[Batch], chosen: Sequence[Row]) -> Batch:
    """The rows end to end."""
    return kind(
        torch.cat([row.ids for row in chosen])[None],
        torch.cat([row.mask for row in chosen])[None],
        tuple(length for row in chosen for length in row.documents),
        tuple(ROW_TOKENS for _ in chosen),
    )


def train(
    path: Path,
    fault: Fault = NONE,
    *,
    micro_rows: int = 1,
    row_order: int | None = None,
    bf16: bool = False,
    lr: float = 1e-4,
    steps: int = 10,
    probe: bool = False,
) -> Path:
    """Train and write the run record; the manifest claims the flags of a run without a fault."""
    data = rows(steps * ROWS)
    model = _model(fault, bf16)
    trainer = Planted(
        model,
        Mesh.alone(),
        Schedule(lr * fault.lr, lr * fault.lr, "constant", 0, steps * ROWS, ROWS),
        betas=(0.9, 0.98),
        weight_decay=fault.weight_decay,
    )
    trainer.fault = fault
    order = RowOrder(len(data), ROWS, seed=row_order)
    writer = RunWriter.create(path, _manifest(path, lr, steps, micro_rows, row_order, bf16))
    for number in range(steps):
        chosen = [data[row] for row in order.of_step(number)]
        (cut,) = Cutting(1, micro_rows).cut([ROW_TOKENS] * ROWS)
        batches = [batch(fault.batch, [chosen[row] for row in part]) for part in cut]
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        logits = probe_logits(model) if probe else []
        with NormProbe(model) if probe else nullcontext() as watched:
            result = trainer.step(number, batches)
        if watched is not None:
            line = ProbeLine(number, watched.layers(), CONFIG.pattern, logits).as_json()
            with (path / "probe.jsonl").open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        if fault.after is not None:
            fault.after(model, before)
        writer.append(
            Step(
                attempt=0,
                step=number,
                loss=result.loss,
                grad_norm=result.grad_norm,
                lr=lr,
                slots=ROWS * ROW_TOKENS,
                tokens=ROWS * ROW_TOKENS,
                supervised_tokens=int(
                    sum(batch(Batch, [row]).supervised_tokens() for row in chosen)
                ),
            )
        )
    writer.update(state="done")
    return path


@cache
def start() -> dict[str, Tensor]:
    """Weights that have learnt a little: from random ones a fault may have nothing to spoil."""
    model = NemotronH(CONFIG)
    initialise(model, 1)
    generator = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(module, MoE):
            bias = module.gate.e_score_correction_bias
            bias.copy_(0.02 * torch.randn(bias.shape, generator=generator))
    data = rows(WARM_STEPS * ROWS, seed=7)
    schedule = Schedule(2e-3, 2e-3, "constant", 0, WARM_STEPS * ROWS, ROWS)
    trainer = Trainer(model, Mesh.alone(), schedule)
    for number in range(WARM_STEPS):
        trainer.step(number, [batch(Batch, data[number * ROWS : (number + 1) * ROWS])])
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _model(fault: Fault, bf16: bool) -> NemotronH:
    model = NemotronH(replace(CONFIG, routed_scaling_factor=fault.scaling))
    model.load_state_dict(start())
    if fault.model is not None:
        fault.model(model)
    return model.to_precision(torch.bfloat16) if bf16 else model


def _manifest(
    path: Path, lr: float, steps: int, micro_rows: int, row_order: int | None, bf16: bool
) -> Manifest:
    given = {
        "lr": lr,
        "min-lr": lr,
        "lr-decay-style": "constant",
        "steps": steps,
        "global-batch-size": ROWS,
        "micro-batch-size": micro_rows,
        "row-order-seed": row_order,
        "bf16": bf16,
    }
    return Manifest.model_validate(
        {
            "id": path.name,
            "engine": "native",
            "launcher": "local",
            "flags": resolve(given, "native"),
            "model": {"config_sha256": "c" * 64},
            "rows": {"rows_sha256": "a" * 64, "row_tokens": ROW_TOKENS},
            "world_size": 1,
            "machine": {"gpu": "CPU", "count": 1, "per_node": 1},
        }
    )
