"""The class list: what a difference means, by the name of what differs.

Flags have their class in the flag table; everything else a run is made of (environment, stack,
model, rows, layout) has it in ``rules.toml``. Both are versioned data of the product.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Final

from openrecipes.flags.table import SEVERITY

#: Classes of a difference, mildest first; ``unknown`` is what no rule knows.
CLASSES: Final = (*SEVERITY, "unknown")
#: Classes that a person may give in a review.
REVIEWABLE: Final = SEVERITY
#: Components whose implementations are compared where a difference has class kernel.
COMPONENTS: Final = ("SSD", "attention", "router and dispatch", "cross entropy", "optimizer")


@dataclass(frozen=True)
class Ruling:
    """The class of a difference and the reason for it, in one sentence.

    ``component`` names the implementation to test where the class is kernel (``all``: every one).
    """

    kind: str
    reason: str
    component: str | None = None


@cache
def _rules() -> dict[str, Any]:
    return tomllib.loads(_text("gate", "rules.toml").decode())


def _text(room: str, name: str) -> bytes:
    return files("openrecipes").joinpath(room, name).read_bytes()


def version() -> str:
    """Version of the class list."""
    return str(_rules()["version"])


@cache
def sha256() -> str:
    """sha256 over what the class list says (classes of all flags, then ``rules.toml``), as hex."""
    flags = tomllib.loads(_text("flags", "flags.toml").decode())
    classes = {
        name: [entry["class"], entry.get("value_classes")]
        for name, entry in flags.items()
        if isinstance(entry, dict) and "class" in entry
    }
    said = json.dumps([classes, _rules()], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def verdict(kind: str) -> str:
    """The verdict of a difference of class ``kind``: pass, fail, component or review."""
    return str(_rules()["verdicts"].get(kind, "review"))


def environment(name: str) -> Ruling:
    """The class of the environment variable ``name``."""
    return _match("environment", name, f"No rule knows the environment variable {name}.")


def fact(name: str) -> Ruling:
    """The class of a fact that is no flag, by its dotted name (``stack.pytorch``)."""
    return _match("fact", name, f"No rule knows {name}.")


def component(flag: str) -> str:
    """The component that a flag of class kernel selects; ``all`` where the list does not say."""
    return str(_rules()["components"].get(flag, "all"))


def _match(table: str, name: str, otherwise: str) -> Ruling:
    for entry in _rules()[table]:
        if any(fnmatchcase(name, pattern) for pattern in entry["names"]):
            return Ruling(entry["class"], entry["reason"], entry.get("component"))
    return Ruling("unknown", otherwise)
