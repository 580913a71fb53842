"""The facts at the top of a recipe's page, in the order in which a reader weighs them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from openrecipes.recipe.schema import Recipe
from openrecipes.site import words


@dataclass(frozen=True)
class Fact:
    """One labelled value.

    Attributes:
        key: stable name, also the anchor of the page.
        label: what the reader sees.
        value: the value as text.
        detail: what belongs to the value and is set smaller.
        more: further lines, each a sentence or figures.
        kind: how it is laid out: ``wide``, ``half`` or ``figure``.
        how: key of the derivation that explains it.
        link: checked address that the value leads to.
        unknown: the value is not known.
    """

    key: str
    label: str
    value: str
    detail: str = ""
    more: tuple[str, ...] = ()
    kind: str = "wide"
    how: str | None = None
    link: str | None = None
    unknown: bool = False


def facts(recipe: Recipe) -> list[Fact]:
    """All facts of ``recipe``; an unknown one says so and why, where the recipe tells."""
    found = [
        *_author(recipe),
        Fact("gpus", "GPUs", gpus(recipe)),
        Fact("layout", "Layout", recipe.layout.summary or label(recipe)),
        *_figures(recipe),
        _convergence(recipe),
        *_when(recipe),
        _rows(recipe),
    ]
    return [replace(fact, label=words.on_machine(fact.label, recipe.gpu.type)) for fact in found]


def label(recipe: Recipe) -> str:
    """The layout's short name, made from its axes where the recipe gives none."""
    if recipe.layout.label:
        return recipe.layout.label
    layout = recipe.layout
    axes = [
        ("TP", layout.tp, True),
        ("PP", layout.pp, True),
        ("VPP", layout.vpp, False),
        ("CP", layout.cp, False),
        ("EP", layout.ep, True),
        ("ETP", layout.etp, False),
        ("DP", layout.dp, True),
    ]
    return " ".join(f"{name}{size}" for name, size, always in axes if always or size > 1)


def gpus(recipe: Recipe) -> str:
    """``8 x H200 141 GB (AWS p5en.48xlarge, 8 per node)``."""
    gpu = recipe.gpu
    memory = "" if gpu.memory_gb is None else f" {words.number(_whole(gpu.memory_gb))} GB"
    where = ", ".join(part for part in (gpu.instance, f"{gpu.per_node} per node") if part)
    return f"{gpu.count} x {gpu.type}{memory} ({where})"


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value


def _author(recipe: Recipe) -> list[Fact]:
    if recipe.author is None:
        return []
    link = words.safe_link(recipe.author.url)
    return [Fact("author", "Author", recipe.author.name, link=link)]


def _figures(recipe: Recipe) -> list[Fact]:
    result = recipe.result
    if result is None:
        labels = {
            "rate": "Tokens/s per GPU",
            "price": "$ / 1M tokens",
            "mfu": "MFU",
            "cv": "Step-time CV",
        }
        return [
            Fact(key, text, "not measured", kind="figure", unknown=True)
            for key, text in labels.items()
        ]
    return [_rate(recipe), _price(recipe), _mfu(recipe), _cv(recipe)]


def _figure(key: str, text: str, value: str, *, note: str | None = None, **more: object) -> Fact:
    unknown = value == words.UNKNOWN
    detail = str(more.pop("detail", "") or "")
    if unknown and note:
        detail = note
    how = None if unknown else key
    return Fact(key, text, value, detail, kind="figure", how=how, unknown=unknown, **more)  # type: ignore[arg-type]


def _rate(recipe: Recipe) -> Fact:
    result = recipe.result
    assert result is not None
    more = [
        f"{words.number(value, 2)} {what}"
        for value, what in (
            (result.nonpadding_tokens_per_s_per_gpu, "without padding"),
            (result.supervised_tokens_per_s_per_gpu, "with a loss"),
        )
        if value is not None
    ]
    rate = words.number(result.tokens_per_s_per_gpu, 2)
    return _figure("rate", "Tokens/s per GPU", rate, more=tuple(more))


def _price(recipe: Recipe) -> Fact:
    result = recipe.result
    assert result is not None
    more = []
    if result.price is not None:
        day = f", {result.price.date}" if result.price.date else ""
        source = f" ({result.price.source}{day})" if result.price.source else ""
        unit = words.on_machine("per GPU-hour", recipe.gpu.type)
        more = [f"at ${result.price.usd_per_gpu_hour:,.3f} {unit}{source}"]
    return _figure(
        "price",
        "$ / 1M tokens",
        words.dollars(result.usd_per_million_tokens),
        note=result.usd_note,
        more=tuple(more),
    )


def _mfu(recipe: Recipe) -> Fact:
    result = recipe.result
    assert result is not None
    n = result.active_params
    detail = f"(N = {n.count:,} active parameters per token)" if n else ""
    more = (result.mfu_note,) if result.mfu_note and result.mfu is not None else ()
    return _figure(
        "mfu", "MFU", words.percent(result.mfu), note=result.mfu_note, detail=detail, more=more
    )


def _cv(recipe: Recipe) -> Fact:
    result = recipe.result
    assert result is not None
    cv = result.step_time_cv_percent
    value = words.UNKNOWN if cv is None else f"{cv:,.2f}%"
    more = []
    if result.step_time_s is not None:
        times = result.step_time_s
        more.append(
            f"p50 {words.seconds(times.p50)}, p95 {words.seconds(times.p95)}, "
            f"max {words.seconds(times.max)}"
        )
    if result.cv_kind:
        more.append(f"{result.cv_kind} standard deviation")
    return _figure("cv", "Step-time CV", value, more=tuple(more))


def _convergence(recipe: Recipe) -> Fact:
    name = "Convergence check"
    correctness = recipe.correctness
    if correctness is None or correctness.convergence is None:
        return Fact("convergence", name, "not checked", unknown=True)
    c = correctness.convergence
    parts = []
    if c.correlation is not None:
        parts.append(f"correlation {words.plain(c.correlation)}")
    if c.final_loss_difference is not None:
        parts.append(f"final loss difference {words.plain(c.final_loss_difference)}")
    steps = words.plural(c.steps, "step")
    if c.pointwise_failures is not None:
        parts.append(f"{words.plural(c.pointwise_failures, 'pointwise failure')} over {steps}")
    else:
        parts.append(f"over {steps}")
    more = [] if c.result == "pass" else [f"result: {c.result}"]
    if correctness.result != "pass":
        more.append(f"whole check: {correctness.summary or correctness.result}")
    return Fact("convergence", name, ", ".join(parts), more=tuple(more), how="convergence")


def _when(recipe: Recipe) -> list[Fact]:
    result = recipe.result
    measured = None if result is None else result.measured
    hours = None if result is None else result.gpu_hours
    return [
        Fact("measured", "Measured", words.day(measured), kind="half", unknown=measured is None),
        Fact(
            "gpu-hours",
            "GPU-hours",
            words.number(hours),
            kind="half",
            how="gpu-hours" if hours is not None else None,
            unknown=hours is None,
        ),
    ]


def _rows(recipe: Recipe) -> Fact:
    dataset = recipe.workload.dataset
    build = dataset.build if dataset else None
    name = (build.name if build else None) or (dataset.name if dataset else None)
    digest = dataset.rows_sha256 if dataset else None
    detail = f"(rows_sha256 {digest})" if digest else ""
    return Fact(
        "rows",
        "Rows",
        name or words.UNKNOWN,
        detail,
        how="rows" if digest else None,
        unknown=name is None,
    )
