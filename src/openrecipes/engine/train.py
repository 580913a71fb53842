"""The training loop of one rank, and what it leaves in the run record."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from openrecipes.engine.batches import Source, StepRows
from openrecipes.engine.evaluate import Validation
from openrecipes.engine.job import Job
from openrecipes.engine.model import NemotronH
from openrecipes.engine.parallel.collectives import gather_rows, sum_
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.parallel.parts import from_checkpoint, from_seed
from openrecipes.engine.parallel.pipeline import Stages, build_stages
from openrecipes.engine.parallel.whole import Assembly
from openrecipes.engine.parallel.world import World
from openrecipes.engine.probe import NormProbe, ProbeLine, probe_logits
from openrecipes.engine.recording import mark
from openrecipes.engine.step import StepResult, Trainer
from openrecipes.engine.weights import Checkpoint, export
from openrecipes.errors import ExitCode
from openrecipes.runs.record import ExpertLoad, Failure, RunWriter, Step, utc_now

VALIDATION = "validation.jsonl"


class Rank:
    """One rank of a job: it builds its part of the model, trains, and records on rank 0.

    Args:
        job: the checked job.
        world: this rank among all.
        writer: the run record, on rank 0 only.

    Attributes:
        stopping: set it to stop all ranks after the step they are in.
        phase: what is being done, for the record of a failure.
        number: the step, None before the first.
        failure: why the run failed, where it noticed that itself.
    """

    def __init__(self, job: Job, world: World, writer: RunWriter | None) -> None:
        self.job = job
        self.world = world
        self.writer = writer
        self.stopping = False
        self.number: int | None = None
        self.failure: Failure | None = None
        self._phase = "load"
        self._trainer: Trainer | None = None

    @property
    def phase(self) -> str:
        """load, data, forward, backward, optimizer, validation or export."""
        return self._trainer.phase if self._trainer and self._phase == "step" else self._phase

    def run(self) -> ExitCode:
        """Train to the end; DONE, STOPPED, or NEGATIVE where a step was not finite."""
        settings = self.job.settings
        torch.manual_seed(settings.seed)
        mesh = Mesh.build(self.job.layout, timedelta(minutes=settings.timeout_minutes))
        origin = Checkpoint(settings.hf_checkpoint) if settings.hf_checkpoint else None
        model = self._model(mesh, origin)
        trainer = Trainer(
            model,
            mesh,
            settings.schedule,
            clip_grad=settings.clip_grad,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        self._trainer = trainer
        self._record_memory(trainer, mesh)
        source = Source(
            self.job.rows,
            settings.order,
            settings.cutting(self.job.layout),
            mesh.dp.rank,
            self.job.config.vocab_size,
            settings.isolate_documents,
            self.world.device,
        )
        validation = Validation.of(settings, self.job.config.vocab_size, mesh, self.world.device)
        if self.writer:
            mark(self.writer, first_step=utc_now())
        for number in range(settings.steps):
            self.number = number
            result = self._step(number, trainer, source, mesh)
            if not result.finite:
                return self._not_finite(number, result)
            if validation and validation.due(number, settings.steps):
                self._phase = "validation"
                self._record_validation(number, *validation.loss(trainer.losses))
            if self.stopping:
                return ExitCode.STOPPED
        if settings.export_hf:
            self._phase = "export"
            self._export(model, mesh, settings.export_hf, origin or self.job.config_file)
        return ExitCode.DONE

    def _model(self, mesh: Mesh, origin: Checkpoint | None) -> NemotronH | Stages:
        config, settings = self.job.config, self.job.settings
        read = from_checkpoint(origin) if origin else from_seed(config, settings.seed)
        dtype = torch.bfloat16 if settings.bf16 else torch.float32
        return build_stages(config, mesh, read, dtype=dtype, device=self.world.device)

    def _step(self, number: int, trainer: Trainer, source: Source, mesh: Mesh) -> StepResult:
        started = time.perf_counter()
        self._phase = "data"
        rows = source.step(number)
        fetched = time.perf_counter()
        self._phase = "step"
        with self._probe(number, trainer, mesh):
            result = trainer.step(number, rows.batches)
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()
        finished = time.perf_counter()
        figures = self._figures(finished - started, fetched - started, mesh)
        self.stopping = bool(figures[:, 0].any())
        if self.writer:
            step = _line(number, result, rows, figures, self.world.device)
            self.writer.append(step)
            self._tell(number, result, step)
        return result

    @contextmanager
    def _probe(self, number: int, trainer: Trainer, mesh: Mesh) -> Iterator[None]:
        """Around a step: write its fingerprint where one is asked for."""
        if number not in self.job.settings.probe_steps:
            yield
            return
        logits = probe_logits(trainer.whole, self.world.device)
        with NormProbe(trainer.model) as probe:
            yield
        kinds = self.job.config.pattern
        squares = torch.zeros(len(kinds), 2, dtype=torch.float64)
        for layer, pair in probe.layers().items():
            squares[layer] = torch.tensor(pair, dtype=torch.float64)
        # Where the ranks of tp have the same tokens, one of them speaks for all.
        others = mesh.stage if mesh.sequence_parallel else mesh.data
        squares = sum_(sum_(squares.to(self.world.device), others), mesh.pp)
        layers = dict(enumerate(map(tuple, squares.tolist())))
        if self.writer:
            line = ProbeLine(number, layers, kinds, logits).as_json()
            self._append(self.writer.path / "probe.jsonl", line)

    @staticmethod
    def _append(file: Path, line: dict[str, Any]) -> None:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, allow_nan=False) + "\n")

    def _figures(self, step_time: float, data_time: float, mesh: Mesh) -> torch.Tensor:
        """(ranks, 6) fp64: stop wanted, step and data seconds, peaks of RSS and device memory."""
        device = self.world.device
        peaks = [0, 0]
        if device.type == "cuda":
            peaks = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
        mine = [float(self.stopping), step_time, data_time, peak_rss_bytes(), *peaks]
        return gather_rows(torch.tensor(mine, dtype=torch.float64, device=device), mesh.world).cpu()

    def _tell(self, number: int, result: StepResult, step: Step) -> None:
        rate = (step.slots or 0) / (step.step_time_s or 1)
        print(
            f"step {number + 1}/{self.job.settings.steps}  loss {result.loss:.4f}  "
            f"grad_norm {result.grad_norm:.4f}  lr {result.lr:.3g}  {rate:,.0f} tokens/s",
            file=sys.stderr,
            flush=True,
        )

    def _not_finite(self, number: int, result: StepResult) -> ExitCode:
        self.failure = Failure(
            kind="nan",
            phase="backward" if math.isfinite(result.loss) else "forward",
            step=number,
            message=f"loss {result.loss}, gradient norm {result.grad_norm}: not finite",
        )
        return ExitCode.NEGATIVE

    def _record_memory(self, trainer: Trainer, mesh: Mesh) -> None:
        """The split of the fullest rank, in bytes; activations are not known beforehand."""
        split = trainer.memory()
        rows = gather_rows(
            torch.tensor(list(split.values()), device=self.world.device), mesh.world
        ).cpu()
        fullest = int(rows.sum(1).argmax())
        if self.writer:
            known = dict(zip(split, rows[fullest].tolist(), strict=True))
            self.writer.update(
                memory={**known, "activations": None, "offloaded": 0, "rank": fullest}
            )

    def _record_validation(self, number: int, loss: float, supervised: int) -> None:
        if self.writer:
            told = loss if math.isfinite(loss) else None
            line = {"step": number, "loss": told, "supervised_tokens": supervised}
            self._append(self.writer.path / "logs" / VALIDATION, line)
            print(f"validation after step {number + 1}: loss {loss:.4f}", file=sys.stderr)

    def _export(
        self, model: NemotronH | Stages, mesh: Mesh, target: Path, origin: Checkpoint | Path
    ) -> None:
        Assembly(model, mesh).lend(lambda read: export(target, read, origin))


def _line(
    number: int, result: StepResult, rows: StepRows, figures: torch.Tensor, device: torch.device
) -> Step:
    def peaks(column: int) -> list[int | None]:
        return [int(value) for value in figures[:, column]]

    cuda = device.type == "cuda"
    load = result.expert_load
    return Step(
        attempt=0,
        step=number,
        loss=result.loss,
        grad_norm=result.grad_norm,
        lr=result.lr,
        slots=rows.slots,
        tokens=rows.tokens,
        supervised_tokens=result.supervised_tokens,
        step_time_s=float(figures[:, 1].max()),
        data_time_s=float(figures[:, 2].max()),
        peak_rss_bytes=peaks(3),
        peak_memory_bytes=peaks(4) if cuda else None,
        peak_reserved_bytes=peaks(5) if cuda else None,
        expert_load=ExpertLoad(max=load[0], mean=load[1]) if load else None,
    )


def peak_rss_bytes() -> int:
    """The most physical memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
