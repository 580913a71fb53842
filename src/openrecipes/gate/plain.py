"""Values from foreign documents, made fit for JSON and for a terminal."""

from __future__ import annotations

import math
from datetime import date, datetime
from pathlib import Path
from typing import Any

_DEEPEST = 20


def plain(value: Any, depth: int = 0) -> Any:
    """``value`` as JSON can hold it: no NaN, no lone surrogates, no foreign types.

    NaN and infinity become their names, so that a difference in them is seen, not lost.
    """
    if depth > _DEEPEST:
        return "…"
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {_text(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Path):
        return _text(value)
    return _text(value)


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode("utf-8")


def same(a: Any, b: Any) -> bool:
    """Whether two values of a flag say the same: 1 and 1.0 do, 1 and true do not."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


def flatten(prefix: str, value: Any) -> dict[str, Any]:
    """Nested dicts as dotted names: ``{"offload": {"a": 1}}`` gives ``layout.offload.a``."""
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= flatten(f"{prefix}.{key}", item)
    return flat
