"""Candidate and reference side by side: figures and layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from openrecipes.layouts.layout import Layout
from openrecipes.recipe.schema import Recipe
from openrecipes.site import words


@dataclass(frozen=True)
class Side:
    """What can be compared: a layout and its figures, from a recipe or from a run."""

    layout: Layout | None
    rate: float | None = None
    usd: float | None = None
    mfu: float | None = None
    cv_percent: float | None = None
    gpu_hours: float | None = None
    gpus: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the table; ``sense`` tells whether a change is good or worse."""

    label: str
    candidate: str
    reference: str
    change: str = ""
    sense: str = ""

    @property
    def differs(self) -> bool:
        """The two sides are known and not the same."""
        return self.candidate != self.reference and words.UNKNOWN not in (
            self.candidate,
            self.reference,
        )


@dataclass(frozen=True)
class Comparison:
    """Text about the reference, the table, and where the reference's own page is."""

    text: Markup | None
    rows: tuple[Row, ...]
    link: str | None = None


def side_of_recipe(recipe: Recipe, gpus: str) -> Side:
    """A recipe's side."""
    result = recipe.result
    if result is None:
        return Side(recipe.layout, gpus=gpus)
    return Side(
        recipe.layout,
        result.tokens_per_s_per_gpu,
        result.usd_per_million_tokens,
        result.mfu,
        result.step_time_cv_percent,
        result.gpu_hours,
        gpus,
    )


def side_of_result(layout: Layout | None, result: dict[str, Any], gpus: str) -> Side:
    """A run's side: its manifest's layout and its measured ``result`` block."""
    return Side(
        layout,
        result.get("tokens_per_s_per_gpu"),
        result.get("usd_per_million_tokens"),
        result.get("mfu"),
        result.get("step_time_cv_percent"),
        result.get("gpu_hours"),
        gpus,
    )


_FIGURES: tuple[
    tuple[str, Callable[[Side], float | None], Callable[[float | None], str], int], ...
] = (
    ("Tokens/s per GPU", lambda s: s.rate, lambda v: words.number(v, 2), 1),
    ("$ / 1M tokens", lambda s: s.usd, words.dollars, -1),
    ("MFU", lambda s: s.mfu, words.percent, 1),
    (
        "Step-time CV",
        lambda s: s.cv_percent,
        lambda v: words.UNKNOWN if v is None else f"{v:.2f}%",
        0,
    ),
    ("GPU-hours of the run", lambda s: s.gpu_hours, words.number, 0),
)


def compare(candidate: Side, reference: Side) -> tuple[Row, ...]:
    """The rows: figures first, then the layout; what neither side knows is left out."""
    rows = []
    for label, get, shown, better in _FIGURES:
        a, b = get(candidate), get(reference)
        if a is None and b is None:
            continue
        change = words.change(a, b) if better else ""
        sense = ""
        if change and change != "same" and a is not None and b is not None:
            sense = "good" if (a - b) * better > 0 else "worse"
        rows.append(Row(label, shown(a), shown(b), change, sense))
    if candidate.gpus or reference.gpus:
        rows.append(Row("GPUs", candidate.gpus or words.UNKNOWN, reference.gpus or words.UNKNOWN))
    left, right = axes(candidate.layout), axes(reference.layout)
    for label in left | right:
        a_text, b_text = left.get(label, words.UNKNOWN), right.get(label, words.UNKNOWN)
        rows.append(Row(label, a_text, b_text))
    return tuple(rows)


def axes(layout: Layout | None) -> dict[str, str]:
    """A layout as labelled text, in the order in which one speaks of it."""
    if layout is None:
        return {}
    split = "even" if not layout.layer_split else ", ".join(map(str, layout.layer_split))
    tokens = layout.max_tokens_per_gpu
    return {
        "Tensor parallel (TP)": str(layout.tp)
        + (", sequence parallel" if layout.sequence_parallel else ""),
        "Pipeline parallel (PP)": f"{layout.pp}, {split} split" if layout.pp > 1 else "1",
        "Virtual stages (VPP)": str(layout.vpp),
        "Context parallel (CP)": str(layout.cp),
        "Expert parallel (EP)": str(layout.ep),
        "Expert tensor parallel (ETP)": str(layout.etp),
        "Data parallel (DP)": str(layout.dp),
        "Most tokens per GPU": words.UNKNOWN if tokens is None else f"{tokens:,}",
        "Rows per micro-batch": str(layout.rows_per_microbatch),
        "Recompute": recompute(layout),
        "Optimizer offload": offload(layout),
        "Dispatcher": layout.dispatcher or "none",
    }


def recompute(layout: Layout) -> str:
    """Activation recompute in a few words."""
    r = layout.recompute
    if r is None:
        return "none"
    how: list[str] = [r.method] if r.method else []
    if r.num_layers is not None:
        how.append(words.plural(r.num_layers, "layer"))
    if r.modules:
        how.append(" ".join(r.modules))
    return f"{r.granularity} ({', '.join(how)})" if how else r.granularity


def offload(layout: Layout) -> str:
    """Optimizer offload in a few words."""
    if layout.offload is None:
        return "none"
    text = f"{words.percent(layout.offload.optimizer_fraction)} on the CPU"
    return text + (", overlapped copies" if layout.offload.overlap_d2h_h2d else "")
