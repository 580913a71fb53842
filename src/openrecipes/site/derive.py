"""How each number of a page was derived: the formula, and the recipe's own numbers put into it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from openrecipes.recipe.schema import Recipe
from openrecipes.site import words


@dataclass(frozen=True)
class Derivation:
    """A figure's formula, the same with numbers where they are known, and what it means."""

    key: str
    title: str
    formula: str
    numbers: str
    text: str

    @property
    def fact(self) -> str:
        """Key of the fact it explains."""
        return self.key


def derivations(recipe: Recipe, peak_flops: float | None = None) -> list[Derivation]:
    """One derivation for each figure that the recipe gives.

    Args:
        recipe: the document.
        peak_flops: dense peak of the GPU in FLOP/s for the recipe's precision, where known.
    """
    return list(_derivations(recipe, peak_flops))


def _derivations(recipe: Recipe, peak: float | None) -> Iterator[Derivation]:
    result = recipe.result
    if result is None:
        return
    rate = result.tokens_per_s_per_gpu
    if rate is not None:
        yield Derivation(
            "rate",
            "Tokens/s per GPU",
            "window tokens / seconds of the window / GPUs",
            _rate_numbers(recipe),
            "Tokens are slots: rows times row length over the measured steps, padding included. "
            "Seconds run from before a step's rows are fetched to after the optimizer, on the "
            "slowest rank. The first steps of a run are left out: kernels compile, caches fill.",
        )
    if result.usd_per_million_tokens is not None:
        price = result.price.usd_per_gpu_hour if result.price else None
        numbers = (
            f"{price:,.3f} / ({rate:,.2f} x 3600) x 1,000,000 = "
            f"{words.dollars(result.usd_per_million_tokens)}"
            if price is not None and rate is not None
            else ""
        )
        implied = implied_price(recipe)
        told = (
            ""
            if price is not None or implied is None
            else f" The recipe states no price of its own; its figures imply about "
            f"{words.dollars(implied)} per GPU and hour."
        )
        yield Derivation(
            "price",
            "$ / 1M tokens",
            "price per GPU-hour / (tokens/s per GPU x 3600) x 1,000,000",
            numbers,
            "The price of the GPUs' time while they train, at the price of the measured day. "
            "Start-up, storage and traffic are not in it." + told,
        )
    if result.mfu is not None:
        n = result.active_params.count if result.active_params else None
        numbers = (
            f"6 x {n:,} x {rate:,.2f} / {peak / 1e12:,.0f}e12 = {words.percent(result.mfu)}"
            if n is not None and rate is not None and peak
            else ""
        )
        yield Derivation(
            "mfu",
            "MFU",
            "6 x N x tokens/s per GPU / dense peak of the GPU",
            numbers,
            "Model FLOPs utilisation. N counts the matrix parameters that take part in one "
            "token's forward pass: of the routed experts only those a token visits, the output "
            "head but not the input embedding. 6 is 2 FLOPs forward and 4 backward. Attention's "
            "quadratic term and recompute are not counted; the peak is the dense one of the "
            "precision, never the sparse one.",
        )
    if result.step_time_cv_percent is not None:
        yield Derivation(
            "cv",
            "Step-time CV",
            "standard deviation / mean of the window's step times x 100",
            "",
            f"How evenly steps run{_window(recipe)}. A CV hides one long stall, so the median "
            "(p50), the 95th percentile and the longest step stand beside it where they are known.",
        )
    if recipe.correctness is not None and recipe.correctness.convergence is not None:
        yield _convergence(recipe)
    if result.gpu_hours is not None:
        yield Derivation(
            "gpu-hours",
            "GPU-hours",
            "GPUs x hours from the scheduler's admission to the finish",
            f"{recipe.gpu.count} x {result.gpu_hours / recipe.gpu.count:,.3f} h = "
            f"{result.gpu_hours:,}",
            result.gpu_hours_note
            or "What the run cost in all, start-up and the steps outside the window included.",
        )
    if recipe.workload.dataset and recipe.workload.dataset.rows_sha256:
        yield Derivation(
            "rows",
            "Rows",
            "sha256 over the rows' token ids and loss masks, in order",
            "",
            "Two files with the same hash hold the same rows, whatever their compression or "
            "metadata. Build the rows again and compare before you compare rates.",
        )


def _window(recipe: Recipe) -> str:
    window = recipe.result.window if recipe.result else None
    return f" over steps {window[0]} to {window[1]}" if window else ""


def _rate_numbers(recipe: Recipe) -> str:
    result = recipe.result
    assert result is not None
    rate, window, tokens = result.tokens_per_s_per_gpu, result.window, result.window_tokens
    if rate is None or tokens is None:
        return ""
    span = tokens / rate / recipe.gpu.count
    worked = f"{tokens:,} / {span:,.2f} s / {recipe.gpu.count} = {rate:,.2f}"
    if window is None:
        return worked
    steps = window[1] - window[0] + 1
    workload = recipe.workload
    if steps * workload.global_batch * workload.row_tokens != tokens:
        return worked
    return (
        f"{steps} steps x {workload.global_batch:,} rows x {workload.row_tokens:,} tokens = "
        f"{tokens:,}; {worked}"
    )


def implied_price(recipe: Recipe) -> float | None:
    """USD per GPU-hour: the stated price, else what price per token and rate imply."""
    result = recipe.result
    if result is None:
        return None
    if result.price is not None:
        return result.price.usd_per_gpu_hour
    if result.usd_per_million_tokens is None or result.tokens_per_s_per_gpu is None:
        return None
    return result.usd_per_million_tokens * result.tokens_per_s_per_gpu * 3600 / 1e6


def _convergence(recipe: Recipe) -> Derivation:
    correctness = recipe.correctness
    assert correctness is not None and correctness.convergence is not None
    text = (
        "Candidate and reference train on the same rows, step by step. The losses must correlate "
        "by at least 0.95; a step fails when its losses differ by more than 10% (above a loss of "
        "2), 5% (above 0.5) or 2%, and at most one step in ten may fail; the last losses may "
        "differ by at most 3%; at most one residual in ten may lie more than 3 standard "
        "deviations from the mean."
    )
    note = correctness.convergence.note
    rules = f" Rules: {correctness.rules}." if correctness.rules else ""
    return Derivation(
        "convergence",
        "Convergence check",
        "correlation(candidate, reference); |candidate - reference| / |reference| per step",
        "",
        text + (f" Here: {note.rstrip('.')}." if note else "") + rules,
    )
