"""The measured window and the spread of its step times."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from openrecipes.errors import InputError

#: First steps of a run that the default window leaves out: kernels compile, caches fill.
WARM_UP_STEPS = 5

#: Whether the variance divides by n or by n - 1.
CvKind = Literal["population", "sample"]


@dataclass(frozen=True)
class Window:
    """Measured steps, ``first`` to ``last``, both inclusive, counted from 0."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


@dataclass(frozen=True)
class Spread:
    """Step times of a window in seconds; the CV in percent.

    A CV hides one long stall, so the median, the 95th percentile and the maximum stand beside it.
    """

    mean: float
    p50: float
    p95: float
    max: float
    cv_percent: float
    cv_kind: CvKind


def parse_window(text: str) -> Window:
    """``first:last`` as a window; raises InputError for anything else."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text.strip(), re.ASCII)
    if match is None or int(match[1]) > int(match[2]):
        raise InputError(
            "give the first and the last measured step, counted from 0",
            field="--window",
            found=text,
            expected="first:last, for instance 5:19",
        )
    return Window(int(match[1]), int(match[2]))


def default_window(steps: Collection[int], attempt_starts: Collection[int]) -> Window:
    """The longest stretch of consecutive steps after the warm-up without an attempt's first step.

    For a run of 20 steps without a restart this is 5:19. Of two stretches of one length the later
    is taken.

    Args:
        steps: numbers of the recorded steps, from 0.
        attempt_starts: numbers of the steps that are their attempt's first.

    Raises:
        InputError: no step is left.
    """
    usable = sorted(set(steps) - set(attempt_starts) - set(range(WARM_UP_STEPS)))
    if not usable:
        raise InputError(
            "run more steps, or give --window",
            field="steps",
            found=f"{len(set(steps))} steps",
            expected=f"at least {WARM_UP_STEPS + 1}: the first {WARM_UP_STEPS} are not measured",
        )
    best = stretch = Window(usable[0], usable[0])
    for step in usable[1:]:
        stretch = Window(stretch.first if step == stretch.last + 1 else step, step)
        if len(stretch) >= len(best):
            best = stretch
    return best


def check_window(window: Window, steps: Collection[int], attempt_starts: Collection[int]) -> None:
    """Raise InputError unless every step of ``window`` was recorded and may be measured."""
    wanted = range(window.first, window.last + 1)
    recorded = set(steps)
    last = max(recorded, default=-1)
    missing = window.last if window.last > last else _first(s for s in wanted if s not in recorded)
    if missing is not None:
        raise InputError(
            "give a window of recorded steps",
            field="--window",
            found=f"{window}, but step {missing} is not recorded",
            expected=f"steps up to {last}" if recorded else "recorded steps; there is none",
        )
    start = _first(s for s in wanted if s in attempt_starts)
    if start is not None:
        raise InputError(
            "choose a window without it",
            field="--window",
            found=f"{window}, but step {start} is the first of its attempt",
            expected="no attempt's first step in the window: it pays for the start",
        )


def spread(seconds: Sequence[float], kind: CvKind = "population") -> Spread:
    """Mean, percentiles and CV = std / mean of step times.

    Args:
        seconds: step times; finite, not negative, at least one above 0.
        kind: ``population`` divides the variance by n, ``sample`` by n - 1 (0 for a single step).

    Raises:
        ValueError: no step time, or one that is not a time.
    """
    if not seconds or not all(math.isfinite(s) and s >= 0 for s in seconds) or not any(seconds):
        raise ValueError("step times must be finite, not negative, and not all zero")
    ordered = sorted(seconds)
    largest = ordered[-1]
    # Scaled by the largest, so that neither squares nor sums leave the range of a float.
    scaled = [s / largest for s in ordered]
    n = len(scaled)
    mean = math.fsum(scaled) / n
    squares = math.fsum((s - mean) ** 2 for s in scaled)
    divisor = n if kind == "population" else max(n - 1, 1)
    return Spread(
        mean=mean * largest,
        p50=percentile(ordered, 50),
        p95=percentile(ordered, 95),
        max=largest,
        cv_percent=100 * math.sqrt(squares / divisor) / mean,
        cv_kind=kind,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Percentile of ascending values, linear between neighbours (numpy's default)."""
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    weight = position - low
    return ordered[low] * (1 - weight) + ordered[high] * weight


def _first(numbers: Iterable[int]) -> int | None:
    return next(iter(numbers), None)
