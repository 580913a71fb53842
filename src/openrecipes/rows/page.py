"""Pages for people: a build report, and rows with their targets in colour."""

from __future__ import annotations

from typing import Any


def report_page(document: dict[str, Any]) -> str:
    """The build report as one HTML page."""
    return str(document)
