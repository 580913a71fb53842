"""Pages for people: a build's report, and rows with their targets in colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from openrecipes.rows.look import LookedAt

_ENVIRONMENT = Environment(
    loader=PackageLoader("openrecipes.rows", "pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters["words"] = lambda name: str(name).replace("_", " ")
_ENVIRONMENT.filters["thousands"] = lambda value: (
    f"{value:,}" if isinstance(value, int | float) else "unknown"
)


def report_section(document: dict[str, Any]) -> str:
    """The build report as a section of a page."""
    return _ENVIRONMENT.get_template("report_section.html").render(report=document)


def report_page(document: dict[str, Any]) -> str:
    """The build report as a page of its own."""
    section = report_section(document)
    return _ENVIRONMENT.get_template("page.html").render(title="Build report", body=section)


def rows_page(path: str, rows: Sequence[LookedAt]) -> str:
    """Rows as a page: targets in colour, borders of documents marked."""
    body = _ENVIRONMENT.get_template("rows.html").render(path=path, rows=rows)
    return _ENVIRONMENT.get_template("page.html").render(title=f"Rows of {path}", body=body)
