"""The table of flags: what each one is, what a difference in it means, who honours it."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

#: A flag's value: ``None`` where Megatron has no default and none was given.
Value = int | float | str | bool | list[str] | None

FlagClass = Literal["placement", "layout", "memory", "kernel", "numerics", "workload", "io"]
Status = Literal["honoured", "mapped", "ignored", "refused"]

ENGINES = ("native", "miles", "automodel")

#: Classes from harmless to decisive: a difference between two values has the later one's class.
SEVERITY: tuple[str, ...] = (
    "io",
    "placement",
    "memory",
    "layout",
    "kernel",
    "numerics",
    "workload",
)


@dataclass(frozen=True)
class Support:
    """What one engine does with a flag.

    Args:
        status: honoured, mapped (under another name or form), ignored or refused.
        note: why, for a flag that is not simply honoured.
        default: the engine's default.
        allows: where given, the only values the engine takes.
        refuses: values the engine does not take.
    """

    status: Status
    note: str | None
    default: Value
    allows: tuple[Value, ...] | None
    refuses: tuple[Value, ...]

    def takes(self, value: Value) -> bool:
        """Whether the engine can do what ``value`` says."""
        if value is None or value == self.default:
            return True
        if self.allows is not None:
            return value in self.allows
        return self.status != "refused" and value not in self.refuses


@dataclass(frozen=True)
class Flag:
    """One flag; its name is the long one without dashes.

    Args:
        type: ``int``, ``float``, ``str``, ``path``, ``switch`` or ``list``.
        default: Megatron's default.
        class_: what a difference in it means for the training.
        field: the recipe field that holds it, such as ``layout.tp``.
        value_classes: classes of differences that involve a value, where not ``class_``.
    """

    name: str
    type: str
    default: Value
    class_: FlagClass
    reason: str
    effect: str
    source: str
    support: Mapping[str, Support]
    field: str | None = None
    negation: str | None = None
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    value_classes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def class_of(self, value: Value) -> str:
        """The class of a difference that involves ``value``."""
        return self.value_classes.get(str(value), self.class_)


@cache
def table() -> dict[str, Flag]:
    """Every known flag by its name, in the table's order."""
    text = files(__package__).joinpath("flags.toml").read_text(encoding="utf-8")
    return {name: _flag(name, entry) for name, entry in tomllib.loads(text).items()}


def _flag(name: str, entry: Mapping[str, Any]) -> Flag:
    default = entry.get("default", {"switch": False, "list": []}.get(entry["type"]))
    return Flag(
        name=name,
        type=entry["type"],
        default=default,
        class_=entry["class"],
        reason=entry["reason"],
        effect=entry["effect"],
        source=entry["source"],
        support={engine: _support(engine, entry, default) for engine in ENGINES},
        field=entry.get("field"),
        negation=entry.get("negation"),
        aliases=tuple(entry.get("aliases", ())),
        choices=tuple(entry.get("choices", ())),
        value_classes=entry.get("value_classes", {}),
    )


def _support(engine: str, entry: Mapping[str, Any], default: Value) -> Support:
    allows = entry.get(f"{engine}_allows")
    return Support(
        status=entry[engine],
        note=entry.get(f"{engine}_note"),
        default=entry.get(f"{engine}_default", default),
        allows=None if allows is None else tuple(allows),
        refuses=tuple(entry.get(f"{engine}_refuses", ())),
    )


def classify(name: str, a: Value, b: Value) -> tuple[str, str]:
    """Class and reason of a difference in one flag.

    Args:
        name: the flag, without dashes.
        a: one side's value.
        b: the other side's value.

    Returns:
        The class, ``unknown`` for a flag that the table does not hold, and the reason.
    """
    flag = table().get(name)
    if flag is None:
        return "unknown", "The flag is not on the list."
    return max(flag.class_of(a), flag.class_of(b), key=SEVERITY.index), flag.reason


@cache
def spellings() -> dict[str, tuple[str, bool]]:
    """Every spelling (without dashes) of every flag: its name, and False for a negation."""
    known: dict[str, tuple[str, bool]] = {}
    for flag in table().values():
        known[flag.name] = (flag.name, True)
        known.update(dict.fromkeys(flag.aliases, (flag.name, True)))
        if flag.negation:
            known[flag.negation] = (flag.name, False)
    return known
