"""How each number of a page was derived: the formula, and the recipe's own numbers put into it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from openrecipes.recipe.schema import Recipe
from openrecipes.site import words


@dataclass(frozen=True)
class Formula:
    """A figure's name, its formula, and what it means."""

    title: str
    formula: str
    text: str


#: Every figure of a page; the documentation lists the same.
FORMULAS = {
    "rate": Formula(
        "Tokens/s per GPU",
        "window tokens / seconds of the window / GPUs",
        "Tokens are slots: rows times row length over the measured steps, padding included. "
        "Seconds run from before a step's rows are fetched to after the optimizer, on the slowest "
        "rank. The first steps of a run are left out: kernels compile, caches fill.",
    ),
    "price": Formula(
        "$ / 1M tokens",
        "price per GPU-hour / (tokens/s per GPU x 3600) x 1,000,000",
        "The price of the GPUs' time while they train, at the price of the measured day. "
        "Start-up, storage and traffic are not in it.",
    ),
    "mfu": Formula(
        "MFU",
        "6 x N x tokens/s per GPU / dense peak of the GPU",
        "Model FLOPs utilisation. N counts the matrix parameters that take part in one token's "
        "forward pass: of the routed experts only those a token visits, the output head but not "
        "the input embedding. 6 is 2 FLOPs forward and 4 backward. Attention's quadratic term and "
        "recompute are not counted; the peak is the dense one of the precision, never the sparse "
        "one.",
    ),
    "cv": Formula(
        "Step-time CV",
        "standard deviation / mean of the window's step times x 100",
        "How evenly steps run. A CV hides one long stall, so the median (p50), the 95th percentile "
        "and the longest step stand beside it where they are known.",
    ),
    "convergence": Formula(
        "Convergence check",
        "correlation(candidate, reference); |candidate - reference| / |reference| per step",
        "Candidate and reference train on the same rows, step by step. The losses must correlate "
        "by at least 0.95; a step fails when its losses differ by more than 10% (above a loss of "
        "2), 5% (above 0.5) or 2%, and at most one step in ten may fail; the last losses may "
        "differ by at most 3%; at most one residual in ten may lie more than 3 standard "
        "deviations from the mean.",
    ),
    "gpu-hours": Formula(
        "GPU-hours",
        "GPUs x hours from the admission to the finish",
        "What the run cost in all, start-up and the steps outside the window included. A scheduler "
        "admits a run; on a machine of one's own the launch does.",
    ),
    "rows": Formula(
        "Rows",
        "sha256 over the rows' token ids and loss masks, in order",
        "Two files with the same hash hold the same rows, whatever their compression or metadata. "
        "Build the rows again and compare before you compare rates.",
    ),
}


@dataclass(frozen=True)
class Derivation:
    """A formula with the recipe's numbers put in, and what the recipe adds to it."""

    key: str
    numbers: str = ""
    more: str = ""
    gpu: str = ""

    @property
    def title(self) -> str:
        """The figure's name."""
        return words.on_machine(FORMULAS[self.key].title, self.gpu)

    @property
    def formula(self) -> str:
        """The formula."""
        return words.on_machine(FORMULAS[self.key].formula, self.gpu)

    @property
    def text(self) -> str:
        """What it means, in general and here."""
        text = f"{words.on_machine(FORMULAS[self.key].text, self.gpu)} {self.more}"
        return text.strip()


def derivations(recipe: Recipe, peak_flops: float | None = None) -> list[Derivation]:
    """One derivation for each figure that the recipe gives.

    Args:
        recipe: the document.
        peak_flops: dense peak of the GPU in FLOP/s for the recipe's precision, where known.
    """
    found = _derivations(recipe, peak_flops)
    return [replace(derivation, gpu=recipe.gpu.type) for derivation in found]


def _derivations(recipe: Recipe, peak: float | None) -> Iterator[Derivation]:
    result = recipe.result
    if result is not None:
        if result.tokens_per_s_per_gpu is not None:
            yield Derivation("rate", _rate(recipe))
        if result.usd_per_million_tokens is not None:
            yield _price(recipe)
        if result.mfu is not None:
            yield Derivation("mfu", _mfu(recipe, peak))
        if result.step_time_cv_percent is not None:
            window = result.window
            over = f"Here over steps {window[0]} to {window[1]}." if window else ""
            yield Derivation("cv", "", over)
    if recipe.correctness is not None and recipe.correctness.convergence is not None:
        note, rules = recipe.correctness.convergence.note, recipe.correctness.rules
        more = [f"Here: {note.rstrip('.')}." if note else "", f"Rules: {rules}." if rules else ""]
        yield Derivation("convergence", "", " ".join(part for part in more if part))
    if result is not None and result.gpu_hours is not None:
        count = recipe.gpu.count
        worked = f"{count} x {result.gpu_hours / count:,.3f} h = {result.gpu_hours:,}"
        yield Derivation("gpu-hours", worked, _sentence(result.gpu_hours_note))
    if recipe.workload.dataset and recipe.workload.dataset.rows_sha256:
        yield Derivation("rows")


def _sentence(note: str | None) -> str:
    return f"Here: {note.rstrip('.')}." if note else ""


def _rate(recipe: Recipe) -> str:
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


def _price(recipe: Recipe) -> Derivation:
    result = recipe.result
    assert result is not None
    rate, usd = result.tokens_per_s_per_gpu, result.usd_per_million_tokens
    implied = implied_price(recipe)
    if result.price is None or rate is None:
        more = (
            ""
            if implied is None
            else f"The recipe states no price of its own; its figures imply about "
            f"{words.dollars(implied)} {words.on_machine('per GPU and hour', recipe.gpu.type)}."
        )
        return Derivation("price", "", more)
    price = result.price.usd_per_gpu_hour
    return Derivation(
        "price", f"{price:,.3f} / ({rate:,.2f} x 3600) x 1,000,000 = {words.dollars(usd)}"
    )


def _mfu(recipe: Recipe, peak: float | None) -> str:
    result = recipe.result
    assert result is not None
    n, rate = result.active_params, result.tokens_per_s_per_gpu
    if n is None or rate is None or not peak:
        return ""
    return f"6 x {n.count:,} x {rate:,.2f} / {peak / 1e12:,.0f}e12 = {words.percent(result.mfu)}"


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
