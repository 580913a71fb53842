"""From run records to a recipe's ``result`` block; every number can be derived again.

A rate is pooled over runs: the tokens of all windows over the sum of their step times. With a
profiler or a parity probe on no rate is given, because both slow the steps down. What a record does
not tell is null, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from openrecipes.errors import InputError
from openrecipes.hardware.catalogue import CPU, gpu, price
from openrecipes.metrics.rounding import written
from openrecipes.metrics.steps import (
    CvKind,
    Window,
    check_window,
    default_window,
    parse_window,
    spread,
)
from openrecipes.metrics.throughput import (
    gpu_hours,
    mfu,
    tokens_per_second_per_gpu,
    usd_per_million_tokens,
)
from openrecipes.runs.record import Manifest, RunRecord, Step
from openrecipes.runs.settings import (
    dtypes,
    effective_recompute,
    global_batch,
    origin,
    precision,
    routing,
    slowed,
)

#: The spread that is published; the seeds do not say which theirs is.
CV_KIND: CvKind = "population"
#: What a step can take, in seconds: less is below any clock's resolution, more is no step.
SHORTEST_STEP, LONGEST_STEP = 1e-6, 30 * 24 * 3600.0


@dataclass(frozen=True)
class PriceGiven:
    """A price that the caller knows better than the catalogue: whose it is, and of which day."""

    usd_per_gpu_hour: float
    source: str = "given by the author"
    day: date | None = None


def measure(
    records: RunRecord | Sequence[RunRecord],
    window: Window | str | None = None,
    *,
    instance: str | None = None,
    price_given: PriceGiven | None = None,
) -> dict[str, Any]:
    """The recipe's ``result`` block of one run, or pooled over several runs of one recipe.

    Args:
        records: a run or several; several must agree in model, rows, layout and world size.
        window: measured steps, ``first:last``; by default all after the fifth.
        instance: cloud instance, for the price; by default the one that the stack names.
        price_given: a price instead of the catalogue's.

    Returns:
        Every key of the block in the schema's order, rounded as it is written, null where unknown.

    Raises:
        InputError: a failed run, a run without the window's steps, or runs that do not agree.
    """
    runs = [records] if isinstance(records, RunRecord) else list(records)
    if not runs:
        raise InputError("give a run", field="RUN", found="none", expected="at least one")
    _check_same(runs)
    steps = [_measurable_steps(run) for run in runs]
    if isinstance(window, str):
        window = parse_window(window)
    chosen = window or _default(runs[0], steps[0])
    samples = [_sample(run, own, chosen) for run, own in zip(runs, steps, strict=True)]
    return _block(samples, chosen, instance, price_given)


@dataclass(frozen=True)
class _Sample:
    """One run's measured window, and how many steps it has in all."""

    manifest: Manifest
    steps: list[Step]
    all_steps: int
    gpus: int
    tokens: int

    @property
    def seconds(self) -> list[float]:
        return [s.step_time_s for s in self.steps if s.step_time_s is not None]

    def total(self, field: Callable[[Step], int | None]) -> int | None:
        values = [field(step) for step in self.steps]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None


def unfinished(records: Sequence[RunRecord]) -> list[str]:
    """A sentence for each run that is not done: its figures are those of the steps so far."""
    return [
        f"{run.path} is not finished: its state is {run.manifest.state}, "
        f"{len(run.steps())} steps are recorded so far"
        for run in records
        if run.manifest.state != "done"
    ]


def _block(
    samples: list[_Sample], window: Window, instance: str | None, price_given: PriceGiven | None
) -> dict[str, Any]:
    first = samples[0].manifest
    seconds = [s for sample in samples for s in sample.seconds]
    spread_ = spread(seconds, CV_KIND)
    watched = next((why for sample in samples if (why := slowed(sample.manifest))), None)
    rate = None if watched else _rate(samples, [sample.tokens for sample in samples])
    day = _day(first)
    cost = _cost(first, rate, watched, day, instance, price_given)
    hours = [_hours(sample) for sample in samples]
    return {
        "tokens_per_s_per_gpu": _written("tokens_per_s_per_gpu", rate),
        "nonpadding_tokens_per_s_per_gpu": _written(
            "nonpadding_tokens_per_s_per_gpu",
            None if watched else _rate(samples, [s.total(lambda t: t.tokens) for s in samples]),
        ),
        "supervised_tokens_per_s_per_gpu": _written(
            "supervised_tokens_per_s_per_gpu",
            None
            if watched
            else _rate(samples, [s.total(lambda t: t.supervised_tokens) for s in samples]),
        ),
        **cost,
        "step_time_cv_percent": written("step_time_cv_percent", spread_.cv_percent),
        "cv_kind": spread_.cv_kind,
        "step_time_s": {
            name: written("step_time_s", getattr(spread_, name))
            for name in ("mean", "p50", "p95", "max")
        },
        **_utilisation(first, rate, watched),
        "active_params": _active_params(first),
        "measured": day,
        "steps_per_run": samples[0].all_steps,
        "window": [window.first, window.last],
        "window_tokens": samples[0].tokens,
        "runs": len(samples),
        "runs_detail": [_detail(sample) for sample in samples],
        "profiler": first.profiler,
        "routing": routing(first, samples[0].steps),
        "dtypes": dtypes(first),
        "effective_recompute": effective_recompute(first),
        "gpu_hours": _written("gpu_hours", _sum(hours)),
        "gpu_hours_note": _hours_note(first) if _sum(hours) is not None else None,
    }


def _measurable_steps(run: RunRecord) -> list[Step]:
    failure = run.manifest.failure
    if run.manifest.state == "failed" or failure is not None:
        told = failure or run.manifest.state
        found = told if isinstance(told, str) else f"{told.kind} at step {told.step}"
        raise InputError(
            "run it again; a failed run is not measured",
            file=run.path,
            field="state",
            found=f"failed ({found})",
            expected="a run that finished",
        )
    steps = run.steps()
    if not steps:
        raise InputError(
            "run it again; there is nothing to measure",
            file=run.path,
            field="steps",
            found="no step",
            expected="a line per step",
        )
    return steps


def _default(run: RunRecord, steps: list[Step]) -> Window:
    try:
        return default_window([s.step for s in steps], run.attempt_starts())
    except InputError as error:
        raise _in_run(error, run) from None


def _sample(run: RunRecord, steps: list[Step], window: Window) -> _Sample:
    try:
        check_window(window, [s.step for s in steps], run.attempt_starts())
    except InputError as error:
        raise _in_run(error, run) from None
    measured = [s for s in steps if window.first <= s.step <= window.last]
    for step in measured:
        seconds = step.step_time_s
        if seconds is None or not SHORTEST_STEP <= seconds <= LONGEST_STEP:
            raise InputError(
                "choose a window without it",
                file=run.path,
                field="step_time_s",
                found=f"{seconds} at step {step.step}",
                expected=f"a time from {SHORTEST_STEP:g} s to 30 days",
            )
    gpus = run.manifest.world_size or run.manifest.machine.count
    if not gpus:
        raise InputError(
            "complete the manifest", file=run.path, field="world_size", found=gpus, expected=">= 1"
        )
    tokens = sum(_step_tokens(run, step) for step in measured)
    return _Sample(run.manifest, measured, len(steps), gpus, tokens)


def _step_tokens(run: RunRecord, step: Step) -> int:
    """Rows x row length: the slots of a step, without an engine's padding beyond the rows."""
    batch, row_tokens = global_batch(run.manifest), run.manifest.rows.row_tokens
    rows = batch * row_tokens if batch and row_tokens else None
    if rows is None:
        rows = step.slots
    elif step.slots is not None and step.slots < rows:
        raise InputError(
            "the record contradicts itself; do not publish it",
            file=run.path,
            field="slots",
            found=f"{step.slots} at step {step.step}",
            expected=f"global batch x row tokens = {rows}",
        )
    if not rows:
        raise InputError(
            "complete the record",
            file=run.path,
            field="slots",
            found=rows,
            expected="slots per step, or global-batch-size and rows.row_tokens",
        )
    return rows


def _rate(samples: Sequence[_Sample], tokens: Sequence[int | None]) -> float | None:
    known = [count for count in tokens if count is not None]
    if len(known) < len(tokens):
        return None
    seconds = sum(second for sample in samples for second in sample.seconds)
    return tokens_per_second_per_gpu(sum(known), seconds, samples[0].gpus)


def _utilisation(manifest: Manifest, rate: float | None, watched: str | None) -> dict[str, Any]:
    name, n = manifest.machine.gpu, manifest.model.active_parameters
    known = gpu(name) if name else None
    peak = known.peak(precision(manifest)) if known else None
    note = watched
    if name is None:
        note = note or "the GPU is not known"
    elif peak is None:
        note = note or _unknown("peak", name, f" in {precision(manifest)}")
    elif not n:
        note = note or "the model's active parameters are not known"
    if note or rate is None or peak is None or not n:
        return {"mfu": None, "mfu_note": note}
    value = mfu(n, rate, peak)
    if value > 1:
        raise InputError(
            "check the GPU's name and the model's active parameters",
            field="mfu",
            found=f"{value:.3g}",
            expected="at most 1",
        )
    return {"mfu": written("mfu", value), "mfu_note": None}


def _cost(
    manifest: Manifest,
    rate: float | None,
    watched: str | None,
    day: date | None,
    instance: str | None,
    given: PriceGiven | None,
) -> dict[str, Any]:
    name = instance or (manifest.stack or {}).get("instance")
    known = price(name, day) if name and day and not given else None
    if given is not None:
        usd, source, dated = given.usd_per_gpu_hour, given.source, given.day or day
    elif known is not None:
        usd, source, dated = known.usd_per_gpu_hour, known.source, known.date
    else:
        gpu_name = manifest.machine.gpu or "this machine"
        note = f"no price is known for {name} on that day" if name else _unknown("price", gpu_name)
        return {"usd_per_million_tokens": None, "usd_note": watched or note, "price": None}
    usd = written("usd_per_gpu_hour", usd)
    return {
        "usd_per_million_tokens": None
        if rate is None
        else written("usd_per_million_tokens", usd_per_million_tokens(usd, rate)),
        "usd_note": watched,
        "price": {"usd_per_gpu_hour": usd, "source": source, "date": dated},
    }


def _unknown(what: str, gpu_name: str, more: str = "") -> str:
    article = "a" if gpu_name == CPU else "the GPU"
    return f"no {what} is known for {article} {gpu_name}{more if gpu_name != CPU else ''}"


def _active_params(manifest: Manifest) -> dict[str, Any] | None:
    count = manifest.model.active_parameters
    if not count:
        return None
    source, revision = origin(manifest)
    return {"count": count, "source": source, "revision": revision}


def _detail(sample: _Sample) -> dict[str, Any]:
    rate = None if slowed(sample.manifest) else _rate([sample], [sample.tokens])
    cv = spread(sample.seconds, CV_KIND).cv_percent
    return {
        "run": sample.manifest.id,
        "tokens_per_s_per_gpu": _written("tokens_per_s_per_gpu", rate),
        "step_time_cv_percent": written("step_time_cv_percent", cv),
        "gpu_hours": _written("gpu_hours", _hours(sample)),
    }


def _hours(sample: _Sample) -> float | None:
    times = sample.manifest.times
    begun = times.admitted or times.started
    if begun is None or times.finished is None or times.finished <= begun:
        return None
    return gpu_hours(sample.gpus, (times.finished - begun).total_seconds())


def _hours_note(manifest: Manifest) -> str:
    """From when the hours count: a scheduler admits a run, a machine of one's own launches it."""
    unit = "processes" if manifest.machine.gpu == CPU else "GPUs"
    begun = "launch" if manifest.launcher == "local" else "scheduler admission"
    begun = begun if manifest.times.admitted else "start"
    return f"{unit} x ({begun} to finish), including startup"


def _day(manifest: Manifest) -> date | None:
    times = manifest.times
    moment: datetime | None = times.first_step or times.started or times.admitted or times.finished
    return moment.date() if moment else None


def _check_same(runs: Sequence[RunRecord]) -> None:
    """Pooling is for runs of one recipe on one kind of machine."""
    facts: dict[str, Callable[[Manifest], Any]] = {
        "engine": lambda m: m.engine,
        "model": lambda m: (m.model.name, m.model.config_sha256, m.model.active_parameters),
        "rows.rows_sha256": lambda m: m.rows.rows_sha256,
        "rows.row_tokens": lambda m: m.rows.row_tokens,
        "global-batch-size": global_batch,
        "layout": lambda m: m.layout,
        "world_size": lambda m: m.world_size,
        "machine.gpu": lambda m: m.machine.gpu,
    }
    first, seen = runs[0], set()
    for run in runs:
        if run.manifest.id in seen:
            raise InputError("give each run once", file=run.path, field="id", found=run.manifest.id)
        seen.add(run.manifest.id)
        for name, fact in facts.items():
            if fact(run.manifest) != fact(first.manifest):
                raise InputError(
                    "pool runs of one recipe only",
                    file=run.path,
                    field=name,
                    found=fact(run.manifest),
                    expected=f"{fact(first.manifest)}, as in {first.path}",
                )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _written(figure: str, value: float | None) -> float | None:
    """The figure as written; None where it is unknown or rounds to nothing."""
    return None if value is None else written(figure, value) or None


def _in_run(error: InputError, run: RunRecord) -> InputError:
    return InputError(
        error.action,
        file=run.path,
        field=error.field,
        found=error.found,
        expected=error.expected,
    )
