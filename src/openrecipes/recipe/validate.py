"""Data against the schema: a recipe, or every fault with its place and what was expected."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from openrecipes.recipe.schema import Recipe

#: Fractions that are often given in percent.
_FRACTIONS = ("mfu", "optimizer_fraction", "supervised_token_ratio", "correlation")


@dataclass(frozen=True)
class Fault:
    """One fault of a document: where, what stood there, what should."""

    field: str
    found: Any
    expected: str
    message: str


def validate(data: Any) -> tuple[Recipe | None, list[Fault]]:
    """Check plain data against schema version 1 and the rules of its status.

    Args:
        data: plain Python data, as ``recipe.yaml.plain`` gives it.

    Returns:
        The recipe and no fault, or no recipe and at least one fault.
    """
    strange = _strange_keys(data)
    if strange:
        return None, strange
    try:
        return Recipe.model_validate(data), []
    except ValidationError as error:
        faults = [
            fault for details in error.errors(include_url=False) for fault in _faults(details, data)
        ]
        return None, list({fault.field: fault for fault in reversed(faults)}.values())[::-1]


def _strange_keys(value: Any, path: str = "") -> list[Fault]:
    """Keys that are not text: ``1:``, ``null:``, ``true:``."""
    if isinstance(value, list):
        found = [_strange_keys(item, f"{path}.{index}") for index, item in enumerate(value)]
        return [fault for faults in found for fault in faults]
    if not isinstance(value, dict):
        return []
    faults = []
    for key, item in value.items():
        here = f"{path}.{key}" if path else str(key)
        if not isinstance(key, str):
            faults.append(Fault(here, key, "a name as key", "a key must be text"))
        faults += _strange_keys(item, here)
    return faults


def _faults(details: ErrorDetails, data: Any) -> list[Fault]:
    kind = details["type"]
    context = details.get("ctx", {})
    path = _path(details["loc"], data)
    found = details["input"]
    if kind == "status":
        status = context["status"]
        return [
            Fault(
                name, None, f"a value, as status {status} requires", f"missing: {status} needs it"
            )
            for name in context["missing"]
        ]
    if kind == "missing":
        return [Fault(path, None, "a value", "missing: required here")]
    if kind == "extra_forbidden":
        return [Fault(path, _short(found), "no such key", "unknown key")]
    expected = details["msg"].removeprefix("Input should be ")
    if path.startswith("arguments."):
        expected = "text in quotes, true, or a list of text"
    name = path.rpartition(".")[2]
    if name in _FRACTIONS and isinstance(found, int | float) and 1 < found <= 100:
        expected += f"; it is a fraction: {found:g} percent is {found / 100:g}"
    return [Fault(path, _short(found), expected, f"should be {expected}")]


def _path(location: tuple[int | str, ...], data: Any) -> str:
    """The place in the document; pydantic's names of union branches are left out."""
    parts = []
    for part in location:
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        else:
            continue
        parts.append(str(part))
    return ".".join(parts)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return f"a map with {len(value)} keys"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no word for it
    return value
