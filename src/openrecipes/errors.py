"""The one error that is the user's to mend, and the exit codes of every command."""

from __future__ import annotations

import math
from enum import IntEnum
from pathlib import Path
from typing import Any


class ExitCode(IntEnum):
    """What a command's exit status means."""

    DONE = 0
    NEGATIVE = 1  # a negative verdict, a finding, a failed run
    USAGE = 2  # wrong input or wrong usage
    REVIEW = 3  # a person has to decide
    STOPPED = 4  # stopped, can be resumed


class InputError(Exception):
    """Wrong input, told so that the user can mend it.

    Args:
        action: what to do next, as a sentence without a final full stop.
        file: the file at fault, with a line number where there is one (``data.jsonl:12``).
        field: the field, option or column at fault.
        found: what stood there.
        expected: what should stand there.
    """

    def __init__(
        self,
        action: str,
        *,
        file: str | Path | None = None,
        field: str | None = None,
        found: Any = None,
        expected: str | None = None,
    ) -> None:
        self.file = None if file is None else str(file)
        self.field = field
        self.found = found
        self.expected = expected
        self.action = action
        super().__init__(str(self))

    def as_json(self) -> dict[str, Any]:
        """The ``error`` object of the JSON contract."""
        return {
            "file": self.file,
            "field": self.field,
            "found": plain(self.found),
            "expected": self.expected,
            "action": self.action,
        }

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.file, self.field) if part)
        facts = []
        if self.found is not None:
            facts.append(f"found {one_line(self.found)}")
        if self.expected is not None:
            facts.append(f"expected {one_line(self.expected)}")
        told = ", ".join(facts)
        return " - ".join(part for part in (place, told, one_line(self.action)) if part)


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: what is not finite or not JSON's own becomes text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value)


def one_line(value: Any, limit: int = 300) -> str:
    """``value`` as printable text on one line, cut to ``limit`` characters."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return text if len(text) <= limit else text[: limit - 1] + "…"
