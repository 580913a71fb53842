"""What changed from the reference: every argument that differs, by its class, and why it may."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from openrecipes.errors import InputError
from openrecipes.flags.table import classify, table
from openrecipes.gate import rules
from openrecipes.recipe.flags import recipe_flags
from openrecipes.recipe.schema import Recipe
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
    groups = _grouped(
        (
            _text(item.get("class")),
            Difference(
                flag=_text(item.get("flag")),
                candidate=value(item.get("candidate")),
                reference=value(item.get("reference")),
                verdict=_text(item.get("verdict")),
                reason=_text(item.get("reason")),
            ),
        )
        for item in found
        if isinstance(item, dict)
    )
    outcome = {"pass": "passed", "fail": "failed", "review": "needs a review"}
    word = outcome.get(_text(verdict.get("verdict")), _text(verdict.get("verdict")))
    if not groups:
        return Changes(f"Nothing differs from the reference; the check {word}.", ())
    return Changes(f"{_count(groups)}; the check {word}.", groups)


def changes_of_recipes(candidate: Recipe, reference: Recipe) -> Changes | None:
    """The arguments that differ between two documents, classed by the flag table.

    It tells what was asked for, where a verdict on two runs tells what ran; None where a command
    cannot be read.
    """
    try:
        ours, theirs = recipe_flags(candidate), recipe_flags(reference)
    except InputError:
        return None
    reviewed = {r.flag: r for r in (candidate.correctness and candidate.correctness.reviews) or ()}
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        flag = table().get(name)
        default = flag.default if flag else None
        a, b = ours.get(name, default), theirs.get(name, default)
        if a == b:
            continue
        kind, reason = classify(name, a, b)
        review = reviewed.get(name)
        if review is not None and kind == "unknown":
            kind, reason = review.class_, f"On review: {review.reason}"
        found.append((kind, Difference(name, value(a), value(b), rules.verdict(kind), reason)))
    groups = _grouped(found)
    basis = "This compares what the two recipes ask for."
    if not groups:
        return Changes(f"No argument differs from the reference. {basis}", ())
    return Changes(f"{_count(groups)}. {basis}", groups)


def _grouped(found: Iterable[tuple[str, Difference]]) -> tuple[Group, ...]:
    grouped: dict[str, list[Difference]] = {kind: [] for kind in CLASSES}
    for kind, difference in found:
        grouped[kind if kind in CLASSES else "unknown"].append(difference)
    return tuple(Group(k, CLASSES[k], tuple(items)) for k, items in grouped.items() if items)


def _count(groups: tuple[Group, ...]) -> str:
    count = sum(len(group.differences) for group in groups)
    return f"{words.plural(count, 'argument')} {'differs' if count == 1 else 'differ'}"


def value(item: Any) -> str:
    """An argument's value as one types it."""
    if item is None:
        return "–"
    if isinstance(item, bool):
        return "on" if item else "off"
    if isinstance(item, list):
        return " ".join(map(value, item))
    return _without_place(_text(item))


def _without_place(text: str) -> str:
    """Absolute paths without their folders: where something lay on one machine is nobody's need."""
    return re.sub(r"(?<![\w$}:/.])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\:]+[/\\])+", "…/", text)


def _text(item: Any) -> str:
    return "" if item is None else str(item)[:400]
