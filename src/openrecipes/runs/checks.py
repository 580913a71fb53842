"""What no record may hold, whoever wrote it: NaN, flags of another type, an impossible layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from openrecipes.errors import InputError
from openrecipes.flags.parse import check_value
from openrecipes.flags.table import Flag, table
from openrecipes.layouts.layout import Layout

_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "path": (str,),
    "switch": (bool,),
    "list": (list,),
}
_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "path": "a path",
    "switch": "true or false",
    "list": "a list of texts",
}
#: No flag means a larger number, and arithmetic on figures stays in range up to it.
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Wrong:
    """A value that a record cannot have: where, what, and what would be right."""

    field: str
    found: Any
    expected: str


def not_finite(document: Any) -> Wrong | None:
    """The first NaN or infinity in ``document``; JSON has neither, and a record writes null."""
    left = [("", document)]
    while left:
        field, value = left.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return Wrong(field, value, "a finite number, or null where it is not known")
        items: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            items = list(value.items())
        elif isinstance(value, list):
            items = list(enumerate(value))
        left += [(f"{field}.{key}" if field else str(key), item) for key, item in reversed(items)]
    return None


def wrong_flag(flags: Mapping[str, Any]) -> Wrong | None:
    """The first flag whose value is not of its type; flags that no table knows may hold anything.

    A record's flags are typed: ``2`` is a whole number, the text ``"2"`` is none.
    """
    known = table()
    for name, value in flags.items():
        flag = known.get(name)
        if flag is not None and value is not None and not _fits(flag, value):
            expected = " | ".join(flag.choices) or _NAMES.get(flag.type, "a text")
            return Wrong(f"flags.{name}", value, expected)
    return None


def _fits(flag: Flag, value: Any) -> bool:
    if isinstance(value, bool) != (flag.type == "switch"):
        return False
    if not isinstance(value, _TYPES[flag.type]):
        return False
    if isinstance(value, int | float) and abs(value) > _LARGEST:
        return False
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        return False
    try:
        check_value(flag, value)
    except InputError:
        return False
    return True


def wrong_layout(layout: Mapping[str, Any] | None) -> Wrong | None:
    """The first field of a layout block that no layout can have."""
    if layout is None:
        return None
    try:
        Layout.model_validate(layout)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(["layout", *map(str, first["loc"])])
        found = None if first["type"] == "missing" else first["input"]
        return Wrong(field, found, first["msg"])
    return None
