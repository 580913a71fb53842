"""Axes: values to percent of a plot, and the round numbers that stand beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where it is (percent) and what it says."""

    at: float
    label: str


@dataclass(frozen=True)
class Scale:
    """Maps values to percent; ``flip`` for a y axis, ``log`` for a logarithmic one."""

    low: float
    high: float
    flip: bool = False
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where ``value`` lies, in percent."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        share = 0.5 if high == low else (at - low) / (high - low)
        return round(100 * (1 - share if self.flip else share), 2)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values (steps of 1, 2 or 5 times a power of ten) within ``low`` to ``high``."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    found = (0.0 if i == 0 else i * step for i in range(first, last + 1))
    return list(dict.fromkeys(found))  # neighbours may be one float, far from 0


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Values 1, 2 and 5 times powers of ten (thinned to the powers when there are many)."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**e for e in exponents for m in steps]
        found = [v for v in found if low * 0.999 <= v <= high * 1.001]
        if len(found) <= most:
            return found
    return found


def tick_label(value: float, values: Sequence[float]) -> str:
    """``value`` with as many decimals as tell the ``values`` apart."""
    if value == 0:
        return "0"
    gaps = [abs(b - a) for a, b in itertools.pairwise(values)] or [abs(value) or 1.0]
    gap = min(gaps)
    if max(abs(v) for v in values) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    decimals = max(0, -math.floor(math.log10(gap) + 1e-9))
    return f"{value:,.{decimals}f}"


def axis(values: Sequence[float], scale: Scale) -> tuple[Tick, ...]:
    """Ticks for ``values`` on ``scale``."""
    return tuple(Tick(scale(v), tick_label(v, values)) for v in values)


def step_axis(first: int, last: int, scale: Scale) -> tuple[Tick, ...]:
    """Ticks for step numbers: whole ones only."""
    whole = [v for v in ticks(first, max(last, first + 1)) if v == int(v) and v <= last]
    return axis(whole or [first], scale)


def thin(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most about ``most`` points; the lowest and the highest of each bucket stay."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most / 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        extremes = {min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])}
        kept.extend(sorted(extremes))
    return kept


def padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """Lowest and highest of ``values`` with some room on both sides."""
    low, high = min(values), max(values)
    pad = (high - low) * share or abs(high) * 0.1 or 1.0
    return low - pad, high + pad
