"""From words of a command line to typed flags, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from openrecipes.errors import InputError
from openrecipes.flags.table import Flag, Value, spellings, table

#: Numbers as programs write them: Python alone would also take ``１２``, ``1_000`` and blanks.
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def parse_argv(argv: Sequence[str]) -> dict[str, Value]:
    """Read flags from a command line; the last of a repeated flag counts, as in argparse.

    Args:
        argv: words such as ``["--lr", "1e-5", "--sequence-parallel"]``; ``--lr=1e-5`` too.

    Returns:
        Typed values by flag name, in the order given.

    Raises:
        InputError: an unknown flag, a word that is no flag, a missing or wrong value.
    """
    given: dict[str, Value] = {}
    words = list(argv)
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("--") or word == "--":
            raise InputError("remove it, or name its flag", found=word, expected="a --flag")
        spelling, equals, attached = word[2:].partition("=")
        flag, positive = _lookup(spelling)
        values = [attached] if equals else []
        if flag.type != "switch" and not equals:
            while position < len(words) and not words[position].startswith("--"):
                values.append(words[position])
                position += 1
                if flag.type != "list":
                    break
        given[flag.name] = _value(flag, spelling, values, positive)
    return given


def _lookup(spelling: str) -> tuple[Flag, bool]:
    known = spellings()
    if spelling not in known:
        near = get_close_matches(spelling, known, n=1)
        raise InputError(
            f"did you mean --{near[0]}?" if near else "see docs/train.md for the flags",
            field=f"--{spelling}",
            found="an unknown flag",
        )
    name, positive = known[spelling]
    return table()[name], positive


def _value(flag: Flag, spelling: str, values: list[str], positive: bool) -> Value:
    if flag.type == "switch":
        if values:
            raise InputError(
                "give the flag alone", field=f"--{spelling}", found=values[0], expected="no value"
            )
        return positive
    if not values:
        raise InputError("give its value", field=f"--{spelling}", expected=_expectation(flag))
    return check_value(flag, values if flag.type == "list" else values[0])


def check_value(flag: Flag, value: object) -> Value:
    """``value``, typed or as text, as the type that the flag has.

    Raises:
        InputError: it is of another type, not finite, or none of the flag's choices.
    """
    try:
        typed = _convert(flag.type, value)
    except (ValueError, TypeError):
        raise InputError(
            "correct the value", field=f"--{flag.name}", found=value, expected=_expectation(flag)
        ) from None
    for item in typed if isinstance(typed, list) else [typed]:
        if flag.choices and item is not None and item not in flag.choices:
            raise InputError(
                "correct the value",
                field=f"--{flag.name}",
                found=item,
                expected=_expectation(flag),
            )
    return typed


def _convert(type_: str, value: object) -> Value:
    if value is None:
        return None
    if type_ == "switch":
        if isinstance(value, bool):
            return value
        raise TypeError
    if isinstance(value, bool):
        raise TypeError
    if type_ == "list":
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]
    if isinstance(value, list):
        raise TypeError
    if type_ == "int":
        if isinstance(value, float):
            raise TypeError
        return int(_written(_WHOLE, value))
    if type_ == "float":
        number = float(_written(_REAL, value))
        if not math.isfinite(number):
            raise ValueError
        return number
    text = str(value)
    if not text:
        raise ValueError
    return text


def _written(pattern: re.Pattern[str], value: object) -> str:
    text = str(value)
    if not pattern.fullmatch(text):
        raise ValueError
    return text


def _expectation(flag: Flag) -> str:
    if flag.choices:
        return " | ".join(flag.choices)
    return {
        "int": "a whole number",
        "float": "a number",
        "path": "a path",
        "switch": "true or false",
    }.get(flag.type, "a value")


def resolve(given: Mapping[str, object], engine: str) -> dict[str, Value]:
    """All flags that ``engine`` looks at, defaults filled, and those given besides.

    Args:
        given: flags by name; values typed or as text.
        engine: ``native``, ``miles`` or ``automodel``.

    Returns:
        Typed values in the table's order.

    Raises:
        InputError: an unknown flag, a wrong value, or a value that the engine refuses.
    """
    flags = table()
    for name in given:
        if name not in flags:
            _lookup(name)
            raise InputError(
                "use the flag's long name", field=f"--{name}", found="another spelling"
            )
    resolved: dict[str, Value] = {}
    for name, flag in flags.items():
        support = flag.support[engine]
        if name in given:
            value = check_value(flag, given[name])
            if not support.takes(value):
                raise InputError(
                    support.note or f"the {engine} engine does not have it",
                    field=f"--{name}",
                    found=value,
                    expected=_taken(flag, engine),
                )
            resolved[name] = value
        elif support.status != "ignored":
            resolved[name] = support.default
    if resolved.get("expert-tensor-parallel-size", 0) is None:
        resolved["expert-tensor-parallel-size"] = resolved["tensor-model-parallel-size"]
    return resolved


def _taken(flag: Flag, engine: str) -> str:
    support = flag.support[engine]
    if support.allows:
        return " | ".join(str(value) for value in support.allows)
    if support.refuses:
        return " | ".join(c for c in flag.choices if c not in support.refuses)
    return "not to be given" if support.default in (None, False, []) else str(support.default)


def ineffective(given: Mapping[str, object], engine: str) -> dict[str, str]:
    """The given flags that ``engine`` ignores, each with the reason."""
    flags = table()
    return {
        name: flags[name].support[engine].note or "the engine has no counterpart"
        for name in given
        if name in flags and flags[name].support[engine].status == "ignored"
    }


def render_argv(flags: Mapping[str, Value]) -> list[str]:
    """Words of a command line that :func:`parse_argv` reads back; absent values are left out."""
    words: list[str] = []
    for name, value in flags.items():
        if value is None or value == []:
            continue
        if isinstance(value, bool):
            negation = table()[name].negation if name in table() else None
            if value:
                words.append(f"--{name}")
            elif negation:
                words.append(f"--{negation}")
        elif isinstance(value, list):
            words += [f"--{name}", *value]
        else:
            words += [f"--{name}", str(value)]
    return words
