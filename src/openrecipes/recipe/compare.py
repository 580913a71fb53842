"""What differs between two recipes, each difference with its class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from openrecipes.flags.table import classify, table
from openrecipes.recipe.flags import recipe_flags
from openrecipes.recipe.schema import Recipe

#: Blocks compared field by field, and the class of their differences where no flag has one.
_BLOCKS = {"gpu": "machine", "workload": "workload", "stack": "stack", "env": "environment"}
_TEXTS = ("label", "summary", "highlights")


@dataclass(frozen=True)
class Difference:
    """One difference.

    Args:
        part: layout, flags, result, gpu, workload, stack or env.
        name: the field or flag.
        a: the first recipe's value, ``None`` where absent.
        b: the second's.
        class_: the class of a flag's difference; for other fields their block.
        reason: why, for a flag.
        change: for a measured figure, b / a - 1.
    """

    part: str
    name: str
    a: Any
    b: Any
    class_: str
    reason: str | None = None
    change: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The object of ``compare --json``."""
        document = asdict(self)
        document["class"] = document.pop("class_")
        return document


def compare(a: Recipe, b: Recipe) -> list[Difference]:
    """All differences: layout, flags, result, then machine, workload, stack and environment."""
    return [*_layout(a, b), *_flags(a, b), *_result(a, b), *_blocks(a, b)]


def _pairs(a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    one, two = _leaves(a), _leaves(b)
    for name in dict.fromkeys([*one, *two]):
        if one.get(name) != two.get(name):
            yield name, one.get(name), two.get(name)


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    leaves: dict[str, Any] = {}
    for key, item in value.items():
        leaves |= _leaves(item, f"{path}.{key}" if path else str(key))
    return leaves


def _layout(a: Recipe, b: Recipe) -> Iterator[Difference]:
    flag_of = {flag.field: name for name, flag in table().items() if flag.field}
    one, two = (recipe.layout.model_dump(exclude=set(_TEXTS)) for recipe in (a, b))
    for name, x, y in _pairs(one, two):
        flag = flag_of.get(f"layout.{name}")
        kind, reason = classify(flag, x, y) if flag else (_layout_class(name), None)
        yield Difference("layout", name, x, y, kind, reason)


def _layout_class(name: str) -> str:
    """Fields that no flag holds: whole blocks that are absent, and DP."""
    return {"recompute": "memory", "offload": "placement"}.get(name.partition(".")[0], "layout")


def _flags(a: Recipe, b: Recipe) -> Iterator[Difference]:
    one, two = recipe_flags(a), recipe_flags(b)
    for name in dict.fromkeys([*one, *two]):
        flag = table().get(name)
        if one.get(name) == two.get(name) or (flag and (flag.field or "").startswith("layout.")):
            continue
        kind, reason = classify(name, one.get(name), two.get(name))
        yield Difference("flags", name, one.get(name), two.get(name), kind, reason)


def _result(a: Recipe, b: Recipe) -> Iterator[Difference]:
    one, two = (recipe.result.block() if recipe.result else {} for recipe in (a, b))
    for name, x, y in _pairs(one, two):
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (x, y))
        change = y / x - 1 if numbers and x else None
        yield Difference("result", name, x, y, "result", change=change)


def _blocks(a: Recipe, b: Recipe) -> Iterator[Difference]:
    for part, kind in _BLOCKS.items():
        one, two = getattr(a, part), getattr(b, part)
        plain = [v if v is None or isinstance(v, dict) else v.block() for v in (one, two)]
        for name, x, y in _pairs(plain[0] or {}, plain[1] or {}):
            yield Difference(part, name, x, y, kind)
