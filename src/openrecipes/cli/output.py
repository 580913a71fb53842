"""What the commands print: one JSON document on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

#: Version of every document that a command prints with ``--json``.
FORMAT = 1


def print_json(document: dict[str, Any]) -> None:
    """Print ``document`` with its ``format`` version as the only text on stdout.

    NaN and infinity have no place in JSON; a document that holds one is a fault of the program.
    """
    text = json.dumps(
        {"format": FORMAT, **document}, indent=2, ensure_ascii=False, allow_nan=False, default=str
    )
    sys.stdout.write(text + "\n")


def panel(name: str) -> str:
    """The help panel of a command: data, run, prove, publish or search."""
    return {
        "data": "Data: conversations to rows",
        "run": "Run: train, launch, measure",
        "prove": "Prove: is it the same training?",
        "publish": "Publish: recipes and pages",
        "search": "Search: find and compare",
    }[name]
