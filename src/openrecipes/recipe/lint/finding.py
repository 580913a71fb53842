"""What a lint rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from openrecipes.errors import plain
from openrecipes.recipe.lint.context import Context

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One finding in one recipe.

    Args:
        rule: the rule's name.
        severity: ``error`` (a relation does not hold), ``warning`` (likely wrong, or cannot be
            checked), ``note`` (worth knowing).
        field: the field at fault, such as ``result.mfu``.
        found: what stands there.
        expected: what would be right.
        message: one sentence for people.
        engine: for a layout rule, the engine.
        nearest: for a layout rule, the nearest valid value.
        line: the line of the field in its file, from 1.
    """

    rule: str
    severity: Severity
    field: str
    found: Any
    expected: Any
    message: str
    engine: str | None = None
    nearest: Any = None
    line: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The object of ``lint --json``; engine and nearest only for a layout rule."""
        document = {
            "rule": self.rule,
            "severity": self.severity,
            "field": self.field,
            "found": plain(self.found),
            "expected": plain(self.expected),
            "message": self.message,
        }
        if self.engine is not None:
            document |= {"engine": self.engine, "nearest": plain(self.nearest)}
        return document


@dataclass(frozen=True)
class Broken:
    """What a check reports; the rule adds its name and severity.

    Args:
        severity: where it differs from the rule's own.
    """

    field: str
    found: Any
    expected: Any
    message: str
    severity: Severity | None = None


@dataclass(frozen=True)
class LintRule:
    """A named rule.

    Args:
        name: its name everywhere.
        severity: the severity of its findings.
        formula: what must hold.
        check: yields what is broken.
        since: schema version since which it holds; on older recipes it only warns.
    """

    name: str
    severity: Severity
    formula: str
    check: Callable[[Context], Iterable[Broken]]
    since: int = 1

    def findings(self, context: Context) -> list[Finding]:
        """The rule's findings in one recipe."""
        older = context.recipe.schema_version < self.since
        found = []
        for broken in self.check(context):
            severity = broken.severity or self.severity
            found.append(
                Finding(
                    self.name,
                    "warning" if older and severity == "error" else severity,
                    broken.field,
                    broken.found,
                    broken.expected,
                    broken.message,
                )
            )
        return found
