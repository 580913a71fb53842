"""Lint rules about measured figures: each relation with its formula and its width."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from openrecipes.layouts.recompute import effective_recompute
from openrecipes.metrics.rounding import half_digit
from openrecipes.metrics.throughput import FLOPS_PER_PARAMETER, mfu
from openrecipes.recipe.lint.context import Context
from openrecipes.recipe.lint.finding import Broken, LintRule
from openrecipes.recipe.workload import Build

#: Start-up that a run may take beside its steps before it is worth a word, in hours.
STARTUP_HOURS = 1.0
#: Bytes that a token takes in a parquet file: fewer is beyond its compression, more beyond int64.
BYTES_PER_TOKEN = (0.1, 10.0)
#: Shares of the dense peak that training runs reach; beyond them a unit may have slipped.
PLAUSIBLE_MFU = (0.005, 0.7)
#: How far the window's share of supervised tokens may lie from that of all rows.
SHARE_WIDTH = 0.2


def _window(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    if result is None or result.window is None:
        return
    first, last = result.window
    steps = result.steps_per_run
    if not 0 <= first <= last:
        message = "the window runs from its first to its last step, counted from 0"
        yield Broken("result.window", [first, last], "0 <= first <= last", message)
    elif steps is not None and last >= steps:
        message = f"the run has {steps} steps, counted from 0"
        yield Broken("result.window", [first, last], f"a last step below {steps}", message)
    elif first == 0:
        message = "the first steps of a run are slower: they warm up"
        yield Broken("result.window", [first, last], "a first step of 5", message, "warning")


def _window_tokens(context: Context) -> Iterator[Broken]:
    result, workload = context.recipe.result, context.recipe.workload
    if result is None or result.window is None or result.window_tokens is None:
        return
    steps = result.window[1] - result.window[0] + 1
    expected = steps * workload.global_batch * workload.row_tokens
    if result.window_tokens != expected:
        message = f"{steps} steps x {workload.global_batch} rows x {workload.row_tokens} tokens"
        yield Broken("result.window_tokens", result.window_tokens, expected, message)


def _steps(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    if result is None or result.steps_per_run is None or context.steps is None:
        return
    if result.steps_per_run != context.steps:
        message = "the flags ask for another number of steps"
        yield Broken("result.steps_per_run", result.steps_per_run, context.steps, message)


def _mfu(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    if result is None or result.mfu is None or result.tokens_per_s_per_gpu is None:
        return
    peak, count = context.peak, context.n
    if peak is None or count is None:
        message = "the GPU's peak or the model's active parameters are not known"
        yield Broken("result.mfu", result.mfu, "null with mfu_note", message, "warning")
        return
    expected = mfu(count, result.tokens_per_s_per_gpu, peak)
    width = half_digit("mfu", expected) * (1 + 1e-9)
    if abs(result.mfu - expected) > width:
        message = f"6 x {count} x {result.tokens_per_s_per_gpu:g} / {peak:g} = {expected:.4g}"
        yield Broken("result.mfu", result.mfu, float(f"{expected:.3g}"), message)


def _rate(context: Context) -> Iterator[Broken]:
    result, peak, count = context.recipe.result, context.peak, context.n
    rate = None if result is None else result.tokens_per_s_per_gpu
    if rate is None or peak is None or count is None:
        return
    share = mfu(count, rate, peak)
    most = peak / (FLOPS_PER_PARAMETER * count)
    low, high = PLAUSIBLE_MFU
    field = "result.tokens_per_s_per_gpu"
    if share > 1:
        message = f"more than {peak:g} FLOP/s can do with {count} active parameters"
        yield Broken(field, rate, f"at most {most:.6g}", message)
    elif not low <= share <= high:
        expected = f"{low * most:.6g} to {high * most:.6g}"
        message = f"an MFU of {share:.3g} is unheard of; is it in tokens/s per GPU?"
        yield Broken(field, rate, expected, message, "warning")


def _active(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    if result is None or result.active_params is None or context.active_parameters is None:
        return
    found = result.active_params.count
    if found != context.active_parameters:
        message = "the model's config gives another number"
        yield Broken("result.active_params.count", found, context.active_parameters, message)


def _notes(context: Context) -> Iterator[Broken]:
    result, status = context.recipe.result, context.recipe.status
    if result is None or status not in ("measured", "verified"):
        return
    for figure, note in (("usd_per_million_tokens", "usd_note"), ("mfu", "mfu_note")):
        if getattr(result, figure) is None and getattr(result, note) is None:
            message = f"{figure} is not known: say why"
            yield Broken(f"result.{note}", None, "a sentence", message)


def _profiler(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    if result is None or result.tokens_per_s_per_gpu is None:
        return
    if result.profiler:
        message = "a rate measured with a profiler on is not published"
        yield Broken("result.profiler", True, False, message)
    correctness = context.recipe.correctness
    convergence = correctness.convergence if correctness else None
    if convergence is not None and convergence.parity_probe and context.candidate_was_measured:
        message = "a rate measured with the parity probe on is not published"
        yield Broken("correctness.convergence.parity_probe", True, False, message)


def _parts(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    if result is None or result.tokens_per_s_per_gpu is None:
        return
    dataset = context.recipe.workload.dataset
    build = dataset.build if dataset else None
    rate, real = result.tokens_per_s_per_gpu, result.nonpadding_tokens_per_s_per_gpu
    supervised = result.supervised_tokens_per_s_per_gpu
    if build and build.padding_tokens and real is None:
        field = "result.nonpadding_tokens_per_s_per_gpu"
        message = f"the rows hold {build.padding_tokens} tokens of padding, counted in the rate"
        yield Broken(field, None, "the rate without padding", message)
    if real is not None and real > rate:
        field = "result.nonpadding_tokens_per_s_per_gpu"
        yield Broken(field, real, f"at most {rate:g}", "a part exceeds the whole rate")
    if real is not None and build and build.padding_tokens == 0 and abs(real - rate) > 0.011:
        field = "result.nonpadding_tokens_per_s_per_gpu"
        yield Broken(field, real, rate, "the rows hold no padding")
    whole = rate if real is None else real
    if supervised is not None and supervised > whole:
        field = "result.supervised_tokens_per_s_per_gpu"
        yield Broken(field, supervised, f"at most {whole:g}", "a part exceeds the whole")
    if build is not None:
        yield from _shares(context, build)


def _shares(context: Context, build: Build) -> Iterator[Broken]:
    """The window's shares against those of all rows; a window is only a sample of them."""
    result, row_tokens = context.recipe.result, context.recipe.workload.row_tokens
    if result is None or not result.tokens_per_s_per_gpu:
        return
    rate, real = result.tokens_per_s_per_gpu, result.nonpadding_tokens_per_s_per_gpu
    supervised, ratio = result.supervised_tokens_per_s_per_gpu, build.supervised_token_ratio
    shares = []
    if real is not None and build.padding_tokens is not None and build.rows is not None:
        filled = 1 - build.padding_tokens / (build.rows * row_tokens)
        shares.append(("result.nonpadding_tokens_per_s_per_gpu", real, rate, filled))
    if supervised is not None and ratio is not None:
        field = "result.supervised_tokens_per_s_per_gpu"
        shares.append((field, supervised, real or rate, ratio))
    for field, part, whole, share in shares:
        if abs(part / whole - share) > SHARE_WIDTH:
            message = f"all rows have a share of {share:.3g}, the window {part / whole:.3g}"
            yield Broken(field, part, f"about {whole * share:.6g}", message, "warning")


def _step_time(context: Context) -> Iterator[Broken]:
    result, workload = context.recipe.result, context.recipe.workload
    times = None if result is None else result.step_time_s
    if result is None or times is None:
        return
    if not times.p50 <= times.p95 <= times.max or times.mean > times.max:
        found = [times.mean, times.p50, times.p95, times.max]
        message = "mean, p50, p95, max are not in order"
        yield Broken("result.step_time_s", found, "p50 <= p95 <= max, mean <= max", message)
    rate = result.tokens_per_s_per_gpu
    if rate is not None:
        tokens = workload.global_batch * workload.row_tokens
        expected = tokens / times.mean / context.recipe.gpu.count
        width = expected * half_digit("step_time_s", times.mean) / times.mean + 0.005
        if abs(rate - expected) > width * (1 + 1e-9):
            message = f"{tokens} tokens in {times.mean:g} s on {context.recipe.gpu.count} GPUs"
            yield Broken("result.tokens_per_s_per_gpu", rate, round(expected, 2), message)
    yield from _spread(context)


def _spread(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    if result is None or result.step_time_s is None or result.step_time_cv_percent is None:
        return
    times, found = result.step_time_s, result.step_time_cv_percent
    steps = result.runs or 1
    if result.window is not None:
        steps *= result.window[1] - result.window[0] + 1
    # One of n steps d above the mean gives a deviation of at least d / sqrt(n - 1); steps between
    # zero and the longest give at most sqrt((max - mean) mean).
    above = times.max - times.mean
    lowest = 100 * above / sqrt(max(steps - 1, 1)) / times.mean
    highest = 100 * sqrt(max(0.0, above) * times.mean * max(steps, 2) / max(steps - 1, 1))
    highest /= times.mean
    if not lowest - 0.005 <= found <= highest + 0.005:
        expected = f"{lowest:.2f} to {highest:.2f}"
        message = "the longest step and the mean allow another spread"
        yield Broken("result.step_time_cv_percent", found, expected, message)


def _percent(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    found = None if result is None else result.step_time_cv_percent
    if found is None:
        return
    if found > 100:
        yield Broken("result.step_time_cv_percent", found, "percent, below 100", "too large")
    elif 0 < found < 0.05:
        message = "this looks like a fraction; the field is in percent"
        yield Broken("result.step_time_cv_percent", found, round(found * 100, 4), message)


def _gpu_hours(context: Context) -> Iterator[Broken]:
    result, workload, gpu = context.recipe.result, context.recipe.workload, context.recipe.gpu
    if result is None or result.gpu_hours is None or result.tokens_per_s_per_gpu is None:
        return
    steps = result.steps_per_run or context.steps
    if steps is None:
        return
    tokens = steps * workload.global_batch * workload.row_tokens
    runs = result.runs or 1
    training = tokens / result.tokens_per_s_per_gpu / 3600
    lowest, highest = 0.9 * training, runs * (training + STARTUP_HOURS * gpu.count)
    found = result.gpu_hours
    if found < lowest:
        message = f"{steps} steps alone take {training:.3g} GPU-hours at this rate"
        yield Broken("result.gpu_hours", found, f"at least {lowest:.3g}", message)
    elif found > highest:
        message = f"the steps take {training:.3g} GPU-hours at this rate"
        yield Broken("result.gpu_hours", found, f"at most {highest:.3g}", message, "warning")


def _runs(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    if result is None or result.runs_detail is None:
        return
    details = result.runs_detail
    if result.runs is not None and result.runs != len(details):
        message = "runs_detail lists another number of runs"
        yield Broken("result.runs", result.runs, len(details), message)
    if not details or result.tokens_per_s_per_gpu is None:
        return
    # Windows hold the same tokens, so the pooled rate is the harmonic mean.
    pooled = len(details) / sum(1 / detail.tokens_per_s_per_gpu for detail in details)
    if abs(result.tokens_per_s_per_gpu - pooled) > 0.0101:
        message = "the runs' rates pool to another rate"
        found = result.tokens_per_s_per_gpu
        yield Broken("result.tokens_per_s_per_gpu", found, round(pooled, 2), message)


def _effective(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    if result is None or result.effective_recompute is None or context.model is None:
        return
    told = result.effective_recompute
    expected = effective_recompute(context.layout, context.engine, context.model.pattern)
    if told.granularity != expected["granularity"]:
        message = f"what the {context.engine} engine does with this layout and model"
        field = "result.effective_recompute.granularity"
        yield Broken(field, told.granularity, expected["granularity"], message)
    layers = told.layers.block() if told.layers else {}
    for letter, found in layers.items():
        wanted = expected["layers"].get(letter)
        if found is not None and wanted is not None and found != wanted:
            field = f"result.effective_recompute.layers.{letter}"
            message = f"what the {context.engine} engine does with these layers"
            yield Broken(field, found, wanted, message)


def _rows(context: Context) -> Iterator[Broken]:
    workload, result = context.recipe.workload, context.recipe.result
    build = workload.dataset.build if workload.dataset else None
    if build is None:
        return
    if build.row_tokens is not None and build.row_tokens != workload.row_tokens:
        message = "the rows were built with another length"
        field = "workload.dataset.build.row_tokens"
        yield Broken(field, build.row_tokens, workload.row_tokens, message)
    steps = (result.steps_per_run if result else None) or context.steps
    if build.rows is None:
        return
    if steps is not None and "num-epoch" not in context.flags:
        needed = steps * workload.global_batch
        if build.rows < needed:
            message = f"{steps} steps x {workload.global_batch} rows need more"
            yield Broken("workload.dataset.build.rows", build.rows, f"at least {needed}", message)
    tokens = build.rows * workload.row_tokens
    if build.padding_tokens is not None and build.padding_tokens >= tokens:
        message = "the rows would hold nothing else"
        field = "workload.dataset.build.padding_tokens"
        yield Broken(field, build.padding_tokens, f"below {tokens}", message)
    if build.parquet_bytes is not None:
        low, high = (int(limit * tokens) for limit in BYTES_PER_TOKEN)
        if not low <= build.parquet_bytes <= high + 100_000:
            message = f"{tokens} tokens take between {low} and {high} bytes"
            field = "workload.dataset.build.parquet_bytes"
            yield Broken(field, build.parquet_bytes, f"{low} to {high}", message)


FIGURE_RULES = (
    LintRule(
        "window",
        "error",
        "0 <= first <= last < steps_per_run; a window from step 0 is warned of",
        _window,
    ),
    LintRule(
        "window-tokens",
        "error",
        "window_tokens = (last - first + 1) x global_batch x row_tokens",
        _window_tokens,
    ),
    LintRule(
        "steps",
        "error",
        "steps_per_run = steps, else train-iters, else num-rollout x rollout-batch-size / "
        "global_batch",
        _steps,
    ),
    LintRule(
        "mfu",
        "error",
        "mfu = 6 x N x tokens_per_s_per_gpu / dense peak, within half of its third digit",
        _mfu,
    ),
    LintRule(
        "rate",
        "error",
        f"tokens_per_s_per_gpu <= dense peak / (6 x N); beyond {PLAUSIBLE_MFU[0]:.1%} to "
        f"{PLAUSIBLE_MFU[1]:.0%} of it a warning",
        _rate,
    ),
    LintRule("active-params", "error", "active_params.count = N of the model's config", _active),
    LintRule("unknown-figures", "error", "a null price has usd_note, a null MFU mfu_note", _notes),
    LintRule("profiler", "error", "a rate is given only with profiler and probe off", _profiler),
    LintRule(
        "parts-of-rate",
        "error",
        "supervised <= non-padding <= tokens_per_s_per_gpu; rows with padding need the second, "
        "rows without have it equal; shares within 0.2 of those of all rows (else a warning)",
        _parts,
    ),
    LintRule(
        "step-time",
        "error",
        "tokens_per_s_per_gpu = global_batch x row_tokens / mean / GPUs; p50 <= p95 <= max; with "
        "n steps the CV is between (max - mean) / mean / sqrt(n - 1) and sqrt((max - mean) / mean "
        "x n / (n - 1))",
        _step_time,
    ),
    LintRule("percent", "warning", "step_time_cv_percent is 0 or from 0.05 to 100", _percent),
    LintRule(
        "gpu-hours",
        "error",
        "0.9 x steps x tokens / rate / 3600 <= gpu_hours; above runs x (that + one hour of "
        "start-up per GPU) a warning",
        _gpu_hours,
    ),
    LintRule(
        "runs",
        "error",
        "runs = number of runs_detail; the rate is their harmonic mean",
        _runs,
    ),
    LintRule(
        "effective-recompute",
        "error",
        "effective_recompute is what the engine does with this layout and model",
        _effective,
    ),
    LintRule(
        "rows",
        "error",
        "build.row_tokens = row_tokens; build.rows >= steps x global_batch (without num-epoch); "
        "padding_tokens < rows x row_tokens; parquet_bytes is 0.1 to 10 bytes a token",
        _rows,
    ),
)
