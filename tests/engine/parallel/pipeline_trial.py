"""A small model trained in pipeline stages: micro-batches as given, in counts that change."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
from torch import Tensor

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine import step
from openrecipes.engine.batch import Segments
from openrecipes.engine.model import NemotronH
from openrecipes.engine.parallel.data_parallel import gradient_norm
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.parallel.pipeline import Pipeline, _Mail, build_stages
from openrecipes.engine.parallel.pipeline_schedule import Pass
from openrecipes.engine.parallel.whole import whole_tensors
from openrecipes.engine.probe import NormProbe, probe_logits
from openrecipes.engine.schedule import Schedule
from openrecipes.engine.step import Trainer
from openrecipes.layouts.layout import Layout
from openrecipes.layouts.memory import Recompute
from tests.engine.parallel.trial import MODELS, Outcome, layout, rows, values, whole_gradients


@dataclass(frozen=True)
class Run:
    """How to train.

    Args:
        layout: the layout.
        model: one of `MODELS`.
        counts: micro-batches of one row per data parallel rank, step by step.
        ragged: whether rows have several lengths.
        fault: what to plant; one of `planted`.
    """

    layout: Layout
    model: str = "moe"
    counts: tuple[int, ...] = (1, 3, 5, 2, 4, 1, 3, 2, 5, 4)
    ragged: bool = True
    bf16: bool = False
    fault: str | None = None

    def alone(self) -> Run:
        """The same training on one process."""
        counts = tuple(count * self.layout.dp for count in self.counts)
        return replace(self, layout=layout(), counts=counts, fault=None)

    def recomputing(self, recompute: Recompute) -> Run:
        """The same with recompute."""
        return replace(self, layout=self.layout.model_copy(update={"recompute": recompute}))


@dataclass
class Told(Outcome):
    """What a run came to, and what is said beside it: loads, evaluation, probe."""

    loads: list[Any] = field(default_factory=list)
    evaluation: list[float] = field(default_factory=list)
    logits: list[list[float]] = field(default_factory=list)
    layers: dict[int, tuple[float, float]] = field(default_factory=dict)


def train(run: Run) -> Told:
    """Train in this process, or as one rank of its process group."""
    with planted(run.fault):
        return _train(run)


def _train(run: Run) -> Told:
    mesh = Mesh.build(run.layout)
    config = NemotronHConfig.from_hf(MODELS[run.model])
    dtype = torch.bfloat16 if run.bf16 else torch.float32
    model = build_stages(config, mesh, values(config), dtype=dtype)
    schedule = Schedule(1e-4, 1e-4, "constant", 0, 1e9, 4)
    trainer = Trainer(model, mesh, schedule, betas=(0.9, 0.98), weight_decay=0.1)
    told = Told()
    data = iter(rows(sum(run.counts) * mesh.dp.size, config.vocab_size, run.ragged))
    for number, count in enumerate(run.counts):
        batches = [next(data) for _ in range(count * mesh.dp.size)][mesh.dp.rank :: mesh.dp.size]
        with NormProbe(model) if number == 0 else nullcontext() as probe:
            result = trainer.step(number, batches)
        if probe is not None:
            told.layers = probe.layers()
            told.gradients = whole_gradients(trainer, mesh)
        told.losses.append(result.loss)
        told.norms.append(result.grad_norm)
        told.supervised.append(result.supervised_tokens)
        told.loads.append(result.expert_load)
    told.evaluation = [float(loss) for loss in trainer.losses(batches)]
    told.logits = probe_logits(trainer.whole)
    told.weights = whole_tensors(model, mesh)
    return told


def most_inputs_alive(chosen: Layout, count: int) -> int:
    """The most micro-batches whose input this rank's first stage still had, when one came in."""
    mesh = Mesh.build(chosen)
    config = NemotronHConfig.from_hf(MODELS["moe"])
    model = build_stages(config, mesh, values(config))
    trainer = Trainer(model, mesh, Schedule(1e-4, 1e-4, "constant", 0, 1e9, 4))
    first = next(m for m in model.modules() if isinstance(m, NemotronH))
    came: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def run(hidden: Tensor, segments: Segments) -> Tensor:
        came.append(weakref.ref(hidden))
        alive.append(sum(each() is not None for each in came))
        return NemotronH.run(first, hidden, segments)

    with patch.object(first, "run", run):
        trainer.step(0, rows(count, config.vocab_size, ragged=True))
    return max(alive)


@contextmanager
def planted(fault: str | None) -> Iterator[None]:
    """Put a fault into this process while the block runs."""
    patches: dict[str, Any] = {
        "lost micro-batch": lambda: patch.object(Pipeline, "_run", _without_the_last),
        "gradient divided twice": lambda: patch.object(_Mail, "take", _divided),
        "norm without pp": lambda: patch.object(step, "gradient_norm", _norm_of_stage),
        "stages in another order": lambda: patch.object(Pipeline, "_stage", _other_stage),
        # no fault: the strictest transport, and one handle for a batch, as NCCL gives it
        "every message blocks": lambda: patch.object(dist, "batch_isend_irecv", _blocking),
    }
    with patches[fault]() if fault else nullcontext():
        yield


def _without_the_last(
    self: Pipeline, batches: Any, work: Any, run: Any = Pipeline._run, **kind: bool
) -> None:
    run(self, batches[:-1] or batches, work, **kind)


def _blocking(operations: Any, batch: Any = dist.batch_isend_irecv) -> list[dist.Work]:
    works = batch(operations)
    for work in works:
        work.wait()
    return [Mock(spec=dist.Work)]


def _divided(self: _Mail, coming: Pass, take: Any = _Mail.take) -> Tensor:
    return take(self, coming) / (2 if coming.way == "backward" else 1)


def _norm_of_stage(owned: Any, mesh: Mesh) -> float:
    return gradient_norm(owned, replace(mesh, world=mesh.stage))


def _other_stage(self: Pipeline, this: Pass, stage: Any = Pipeline._stage) -> NemotronH:
    return stage(self, replace(this, stage={1: 3, 3: 1}.get(this.stage, this.stage)))
