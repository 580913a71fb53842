"""Small changes of a recipe: what a slip of a hand, a bad merge or a wrong copy does."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Mutant:
    """A changed recipe.

    ``fields`` are the places of the changed numbers, empty for a flag or a hash.
    """

    kind: str
    what: str
    data: dict[str, Any]
    fields: tuple[str, ...] = ()


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def place(path: Path) -> str:
    """The path as the table of relations writes it."""
    return re.sub(r"\.(\d+)(?=\.|$)", "[]", ".".join(map(str, path)))


def put(data: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy of ``data`` with one value changed."""
    changed = copy.copy(data)
    here: Any = changed
    for key in path[:-1]:
        here[key] = copy.copy(here[key])
        here = here[key]
    here[path[-1]] = value
    return changed


def numbers(data: dict[str, Any]) -> list[tuple[Path, int | float]]:
    return [
        (path, value)
        for path, value in leaves(data)
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def number_mutants(data: dict[str, Any], chance: random.Random) -> Iterator[Mutant]:
    for path, value in numbers(data):
        text = f"{value:.7f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        for position in [i for i, char in enumerate(text) if char.isdigit()]:
            for digit in chance.sample([d for d in "0123456789" if d != text[position]], 6):
                changed = text[:position] + digit + text[position + 1 :]
                number = type(value)(changed)
                yield Mutant("digit", changed, put(data, path, number), (place(path),))
        for factor in (10, 100, 1000):
            if value:
                yield Mutant("unit", f"x{factor}", put(data, path, value * factor), (place(path),))
                smaller = value / factor
                if isinstance(value, int):
                    smaller = value // factor
                yield Mutant("unit", f"/{factor}", put(data, path, smaller), (place(path),))


def swap_mutants(data: dict[str, Any], chance: random.Random, count: int) -> Iterator[Mutant]:
    known = numbers(data)
    for _ in range(count):
        (one, x), (two, y) = chance.sample(known, 2)
        if x != y:
            changed = put(put(data, one, y), two, x)
            yield Mutant("swap", f"{x} <-> {y}", changed, (place(one), place(two)))


def flag_mutants(data: dict[str, Any], chance: random.Random) -> Iterator[Mutant]:
    run = data["run"]
    for match in re.finditer(r"--[a-z][a-z0-9-]+((?: (?!--)[^\s\\]+)*)", run):
        start, end = match.span()
        yield Mutant("flag", f"drop {match[0]}", {**data, "run": run[:start] + run[end:]})
        doubled = f"{run[:end]} {match[0]}{run[end:]}"
        yield Mutant("flag", f"double {match[0]}", {**data, "run": doubled})
        for changed in altered(match[0], chance):
            yield Mutant("flag", changed, {**data, "run": run[:start] + changed + run[end:]})
    for name, value in data["arguments"].items():
        rest = {key: item for key, item in data["arguments"].items() if key != name}
        yield Mutant("flag", f"drop argument {name}", {**data, "arguments": rest})
        if isinstance(value, str):
            other = {**data["arguments"], name: value + ("5" if value[-1].isdigit() else "x")}
            yield Mutant("flag", f"alter argument {name}", {**data, "arguments": other})
    for name, value in data["env"].items():
        env = {**data["env"], name: value + "1"}
        yield Mutant("flag", f"alter env {name}", {**data, "env": env})


def altered(flag: str, chance: random.Random) -> Iterator[str]:
    name, _, value = flag.partition(" ")
    yield f"{name[:-1]} {value}".strip()  # a letter lost
    if not value:
        yield f"{name} 1"
        return
    digits = [i for i, char in enumerate(value) if char.isdigit()]
    for position in digits:
        digit = chance.choice([d for d in "123456789" if d != value[position]])
        yield f"{name} {value[:position]}{digit}{value[position + 1 :]}"
    if not digits:
        yield f"{name} {value}_2"


def hash_mutants(data: dict[str, Any], chance: random.Random) -> Iterator[Mutant]:
    """Hashes that are no longer well-formed."""
    for path, value in leaves(data):
        if not isinstance(value, str) or path[0] in ("run", "notes"):
            continue
        for match in re.finditer(r"\b[0-9a-f]{40,64}\b", value):
            start, end = match.span()
            middle = chance.randrange(start, end)
            for name, changed in (
                ("shorter", value[:middle] + value[middle + 1 :]),
                ("longer", value[:middle] + "a" + value[middle:]),
                ("not hex", value[:middle] + "g" + value[middle + 1 :]),
                ("upper case", value[:start] + match[0].upper() + value[end:]),
            ):
                if changed != value:
                    yield Mutant("hash", f"{place(path)} {name}", put(data, path, changed))
