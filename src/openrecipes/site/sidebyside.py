"""Several recipes side by side: the same rows for the models' pages and ``compare.html``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openrecipes.site import words
from openrecipes.site.summary import Summary


@dataclass(frozen=True)
class RowSpec:
    """One row: its label, where its value lies in a summary, how it is written, what is better.

    ``form`` names a formatter that both this module and ``compare.js`` have; ``better`` is 1 where
    more is better, -1 where less is, 0 where neither.
    """

    label: str
    key: str
    form: str = "text"
    better: int = 0


ROWS = (
    RowSpec("GPU", "gpu"),
    RowSpec("GPUs", "gpus", "count"),
    RowSpec("Tokens/s per GPU", "tokens_per_s_per_gpu", "rate", 1),
    RowSpec("$ / 1M tokens", "usd_per_million_tokens", "usd", -1),
    RowSpec("$ per GPU-hour", "usd_per_gpu_hour", "usd"),
    RowSpec("MFU", "mfu", "percent", 1),
    RowSpec("Step-time CV", "step_time_cv_percent", "cv"),
    RowSpec("Measured", "measured"),
    RowSpec("Layout", "layout"),
    RowSpec("Tensor parallel (TP)", "axes.tp", "count"),
    RowSpec("Sequence parallel", "sequence_parallel", "switch"),
    RowSpec("Pipeline parallel (PP)", "axes.pp", "count"),
    RowSpec("Virtual stages (VPP)", "axes.vpp", "count"),
    RowSpec("Context parallel (CP)", "axes.cp", "count"),
    RowSpec("Expert parallel (EP)", "axes.ep", "count"),
    RowSpec("Expert tensor parallel (ETP)", "axes.etp", "count"),
    RowSpec("Data parallel (DP)", "axes.dp", "count"),
    RowSpec("Most tokens per GPU", "max_tokens_per_gpu", "count"),
    RowSpec("Rows per micro-batch", "rows_per_microbatch", "count"),
    RowSpec("Recompute", "recompute"),
    RowSpec("Optimizer offload", "offload"),
    RowSpec("Dispatcher", "dispatcher"),
    RowSpec("Precision", "precision"),
    RowSpec("Row length", "row_tokens", "count"),
    RowSpec("Global batch", "global_batch", "count"),
    RowSpec("Engine", "engine"),
    RowSpec("Author", "author"),
)


@dataclass(frozen=True)
class Column:
    """One recipe's heading."""

    name: str
    page: str
    status: str


@dataclass(frozen=True)
class TableRow:
    """One row as text; ``best`` are the columns with the best value."""

    label: str
    cells: tuple[str, ...]
    best: frozenset[int]

    @property
    def differs(self) -> bool:
        """Not all recipes say the same."""
        return len(set(self.cells)) > 1


@dataclass(frozen=True)
class Table:
    """The whole table."""

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]


def table(summaries: Sequence[Summary]) -> Table:
    """``summaries`` side by side; rows that none of them fills are left out."""
    data = [s.model_dump(mode="json", by_alias=True) for s in summaries]
    rows = []
    for spec in ROWS:
        values = [lookup(item, spec.key) for item in data]
        if any(value is not None for value in values):
            cells = tuple(shown(value, spec.form) for value in values)
            rows.append(TableRow(spec.label, cells, _best(values, spec.better)))
    columns = tuple(
        Column(f"{s.gpus} x {s.gpu}, {s.author or s.engine or s.layout}", s.page, s.status)
        for s in summaries
    )
    return Table(columns, tuple(rows))


def lookup(item: dict[str, Any], key: str) -> Any:
    """The value at a dotted ``key``."""
    value: Any = item
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def shown(value: Any, form: str) -> str:
    """A value as text, in one of the forms that ``compare.js`` has too."""
    if value is None:
        return words.UNKNOWN
    match form:
        case "rate":
            return words.number(value, 2)
        case "usd":
            return words.dollars(value)
        case "percent":
            return words.percent(value)
        case "cv":
            return f"{value:,.2f}%"
        case "count":
            return f"{value:,}"
        case "switch":
            return "on" if value else "off"
        case _:
            return str(value)


def _best(values: Sequence[Any], better: int) -> frozenset[int]:
    known = [value for value in values if value is not None]
    if not better or len(set(known)) < 2:
        return frozenset()
    best = max(known) if better > 0 else min(known)
    return frozenset(i for i, value in enumerate(values) if value == best)
