"""What a layout rule is, and what a broken one looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.layouts.layout import Layout

NATIVE, MILES, AUTOMODEL = "native", "miles", "automodel"
ENGINES = (NATIVE, MILES, AUTOMODEL)


@dataclass(frozen=True)
class Violation:
    """A broken rule.

    Args:
        rule: the rule's name.
        engine: the engine it was checked for.
        field: the field to change, such as ``layout.ep``.
        found: what stands there.
        expected: what would be right, with the numbers put in.
        nearest: the nearest valid value of the field, where one is known.
        message: one sentence for people.
    """

    rule: str
    engine: str
    field: str
    found: Any
    expected: str
    nearest: Any
    message: str

    def as_json(self) -> dict[str, Any]:
        """The object as every command prints it."""
        return {
            "rule": self.rule,
            "engine": self.engine,
            "field": self.field,
            "found": self.found,
            "expected": self.expected,
            "nearest": self.nearest,
            "message": self.message,
        }


@dataclass(frozen=True)
class Case:
    """What a rule may look at. Unknown values are ``None``; a rule that needs one does not speak.

    Args:
        layout: the layout.
        engine: ``native``, ``miles`` or ``automodel``.
        world_size: GPUs of the job.
        model: the model's config.
        global_batch: rows per step.
        row_tokens: row length.
        flags: typed arguments by name.
        env: environment variables.
        gpu: GPU type.
        framework: the engine's name and version, as ``stack.framework`` has them.
    """

    layout: Layout
    engine: str
    world_size: int
    model: NemotronHConfig | None = None
    global_batch: int | None = None
    row_tokens: int | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] | None = None
    gpu: str | None = None
    framework: str | None = None

    def has(self, letter: str) -> bool:
        """Whether the model has layers of this kind (M E * -)."""
        return self.model is not None and letter in self.model.pattern


#: field, found, expected, nearest - or None where the rule holds.
Broken = tuple[str, Any, str, Any]


@dataclass(frozen=True)
class Rule:
    """A named rule.

    Args:
        name: its name everywhere.
        engines: the engines it belongs to.
        formula: what must hold, in the layout's letters.
        why: what goes wrong otherwise, and when.
        check: says what is broken, or ``None``.
    """

    name: str
    engines: tuple[str, ...]
    formula: str
    why: str
    check: Callable[[Case], Broken | None]

    def violation(self, case: Case) -> Violation | None:
        """The broken rule, or ``None`` where it holds or does not apply."""
        if case.engine not in self.engines:
            return None
        broken = self.check(case)
        if broken is None:
            return None
        field, found, expected, nearest = broken
        hint = "" if nearest is None else f"; nearest valid: {nearest}"
        message = f"{self.name}: {self.formula}. Found {found}, expected {expected}{hint}."
        return Violation(self.name, case.engine, field, found, expected, nearest, message)


def nearest(value: int, candidates: Iterable[int]) -> int | None:
    """The candidate with the smallest distance to ``value``, the lower of two."""
    return min(candidates, key=lambda candidate: (abs(candidate - value), candidate), default=None)


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})
