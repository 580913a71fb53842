"""The picture of a check: both loss curves, their difference and the noise band, as SVG.

Everything is drawn in ``currentColor`` with classes, so that a page's theme decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jinja2 import Environment, Template

from openrecipes.errors import one_line
from openrecipes.gate.curves import Curves
from openrecipes.gate.sides import Side
from openrecipes.metrics.convergence import PIPELINE, relative_difference

_WIDTH, _LEFT, _RIGHT = 720.0, 72.0, 16.0
_LOSS_TOP, _LOSS_HEIGHT = 52.0, 180.0
_APART_TOP, _APART_HEIGHT = 284.0, 120.0
#: Differences are drawn on a logarithmic scale from here; smaller ones lie on its floor.
_SMALLEST = 1e-9


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, and what it says."""

    at: float
    text: str


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span and math.isfinite(span) else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)


def draw(candidate: Side, reference: Side, curves: Curves) -> str:
    """The picture as SVG text.

    Args:
        candidate: a run.
        reference: a run.
        curves: the verdict over both, with the noise floor where there is one.
    """
    ours, theirs = _losses(candidate), _losses(reference)
    steps = sorted(ours.keys() | theirs.keys())
    x = _Scale(steps[0], max(steps[-1], steps[0] + 1), _LEFT, _WIDTH - _RIGHT)
    known = [value for value in (*ours.values(), *theirs.values()) if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    y = _Scale(low, high, _LOSS_TOP + _LOSS_HEIGHT, _LOSS_TOP)
    apart = {
        step: relative_difference(a, b)
        for step in steps
        if (a := ours.get(step)) is not None and (b := theirs.get(step)) is not None
    }
    band = _band(curves)
    exponents = _exponents([*apart.values(), *band.values()])
    log = _Scale(exponents[0], exponents[1], _APART_TOP + _APART_HEIGHT, _APART_TOP)
    log_y = {step: log(_log(value)) for step, value in apart.items() if value is not None}
    return _template().render(
        width=_WIDTH,
        height=_APART_TOP + _APART_HEIGHT + 44,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        loss_top=_LOSS_TOP,
        loss_bottom=_LOSS_TOP + _LOSS_HEIGHT,
        apart_top=_APART_TOP,
        apart_bottom=_APART_TOP + _APART_HEIGHT,
        candidate=one_line(candidate.name, 60),
        reference=one_line(reference.name, 60),
        result=curves.result,
        steps=len(steps),
        first=steps[0],
        last=steps[-1],
        candidate_path=_path({s: (x(s), y(v)) for s, v in ours.items() if v is not None}, steps),
        reference_path=_path({s: (x(s), y(v)) for s, v in theirs.items() if v is not None}, steps),
        apart_path=_path({step: (x(step), at) for step, at in log_y.items()}, steps),
        apart_points=[(x(step), at) for step, at in log_y.items()] if len(log_y) <= 60 else [],
        band_path=_filled([(x(s), log(_log(v))) for s, v in band.items()]),
        tolerance_path=_path(
            {
                step: (x(step), log(_log(PIPELINE.tolerance(loss))))
                for step, loss in theirs.items()
                if loss is not None
            },
            steps,
        ),
        loss_ticks=[Tick(y(v), f"{v:.4g}") for v in (low, (low + high) / 2, high)],
        step_ticks=[Tick(x(v), str(v)) for v in _whole_ticks(steps[0], steps[-1])],
        apart_ticks=[
            Tick(log(e), f"1e{e}")
            for e in range(exponents[0], exponents[1] + 1)
            if (e - exponents[0]) % max(1, (exponents[1] - exponents[0]) // 4) == 0
        ],
    )


def _losses(side: Side) -> dict[int, float | None]:
    return {step.step: step.loss for step in side.steps or ()}


def _band(curves: Curves) -> dict[int, float]:
    if curves.floor is None:
        return {}
    return dict(zip(curves.floor.steps, curves.floor.figures["loss"].band, strict=True))


def _log(value: float) -> float:
    return math.log10(min(1e6, max(_SMALLEST, value)))


def _exponents(values: Sequence[float | None]) -> tuple[int, int]:
    """Whole powers of ten around the values and the widest tolerance."""
    known = [_log(value) for value in values if value is not None and value > 0]
    widest = _log(max(tolerance for _, tolerance in PIPELINE.tolerances))
    low = math.floor(min([*known, widest - 2]))
    return low, math.ceil(max([*known, widest]))


def _path(points: dict[int, tuple[float, float]], steps: Sequence[int]) -> str:
    """An SVG path; a step without a point breaks the line."""
    commands, pen = [], "M"
    for step in steps:
        if step not in points:
            pen = "M"
            continue
        at_x, at_y = points[step]
        commands.append(f"{pen}{at_x:.2f} {at_y:.2f}")
        pen = "L"
    return " ".join(commands)


def _filled(points: Sequence[tuple[float, float]]) -> str:
    """The area from the points down to the lower edge of the second panel."""
    if not points:
        return ""
    bottom = _APART_TOP + _APART_HEIGHT
    line = " ".join(f"L{x:.2f} {y:.2f}" for x, y in points)
    return f"M{points[0][0]:.2f} {bottom:.2f} {line} L{points[-1][0]:.2f} {bottom:.2f} Z"


def _whole_ticks(first: int, last: int) -> list[int]:
    every = max(1, math.ceil((last - first) / 6))
    return list(range(first, last + 1, every))


@cache
def _template() -> Template:
    text = files(__package__).joinpath("check.svg.jinja").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
