"""What changed from the reference: every argument that differs, by its class, and why it may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openrecipes.site import words

#: Classes from the mildest to the gravest, and what a difference of that class means.
CLASSES = {
    "layout": "How the work is split: only the order of reductions changes.",
    "memory": "What is computed again instead of kept: the same numbers, another time.",
    "placement": "Where state lives or when it moves.",
    "io": "Logs, paths and timeouts: nothing that is trained.",
    "kernel": "Another implementation of the same function: needs a component test.",
    "unknown": "Not on the class list: a person has to decide.",
    "numerics": "Precision, loss or optimizer arithmetic: another training.",
    "workload": "Rows, batch or schedule: another training.",
}


@dataclass(frozen=True)
class Difference:
    """One argument that is not the same on both sides."""

    flag: str
    candidate: str
    reference: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class Group:
    """The differences of one class."""

    kind: str
    meaning: str
    differences: tuple[Difference, ...]

    @property
    def count(self) -> str:
        """How many."""
        return words.plural(len(self.differences), "argument")


@dataclass(frozen=True)
class Changes:
    """Everything that changed."""

    summary: str
    groups: tuple[Group, ...]


def changes(verdict: dict[str, Any] | None) -> Changes | None:
    """The differences that a verdict of ``check`` lists, by class; None where there is none."""
    configuration = (verdict or {}).get("configuration")
    found = configuration.get("differences") if isinstance(configuration, dict) else None
    if verdict is None or not isinstance(found, list):
        return None
    grouped: dict[str, list[Difference]] = {kind: [] for kind in CLASSES}
    for item in found:
        if isinstance(item, dict):
            kind = item.get("class")
            grouped[kind if kind in CLASSES else "unknown"].append(
                Difference(
                    flag=_text(item.get("flag")),
                    candidate=value(item.get("candidate")),
                    reference=value(item.get("reference")),
                    verdict=_text(item.get("verdict")),
                    reason=_text(item.get("reason")),
                )
            )
    groups = tuple(
        Group(kind, CLASSES[kind], tuple(items)) for kind, items in grouped.items() if items
    )
    count = sum(len(g.differences) for g in groups)
    outcome = {"pass": "passed", "fail": "failed", "review": "needs a review"}
    word = outcome.get(_text(verdict.get("verdict")), _text(verdict.get("verdict")))
    if not count:
        return Changes(f"Nothing differs from the reference; the check {word}.", ())
    are = "differs" if count == 1 else "differ"
    return Changes(f"{words.plural(count, 'argument')} {are}; the check {word}.", groups)


def value(item: Any) -> str:
    """An argument's value as one types it."""
    if item is None:
        return "–"
    if isinstance(item, bool):
        return "on" if item else "off"
    if isinstance(item, list):
        return " ".join(map(value, item))
    return _text(item)


def _text(item: Any) -> str:
    return "" if item is None else str(item)[:400]
