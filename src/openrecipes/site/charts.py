"""Step times and losses as geometry: pure functions from plain values to shapes.

A value that is unknown or not finite leaves a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from openrecipes.site import words
from openrecipes.site.scales import (
    Scale,
    axis,
    padded,
    step_axis,
    thin,
    ticks,
)
from openrecipes.site.shapes import Band, Bar, Chart, Dot, Line

#: Above this many steps bars would be thinner than a pixel on a phone; a line is drawn instead.
MOST_BARS = 80
#: The most points a line is drawn with; longer runs are thinned so that extremes stay.
MOST_POINTS = 400
#: Relative differences from here on, infinity and NaN among them, leave a gap: no axis shows them.
_FARTHEST = 1e100


def _line(
    kind: str, label: str, series: Iterable[tuple[int, float | None]], x: Scale, y: Scale
) -> Line:
    """A line through ``series``; unknown values part it, and a lone point becomes a dot."""
    runs: list[list[tuple[float, float]]] = [[]]
    for number, loss in series:
        if loss is not None and math.isfinite(loss):
            runs[-1].append((float(number), float(loss)))
        elif runs[-1]:
            runs.append([])
    segments, dots = [], []
    for points in runs:
        if len(points) == 1:
            step, value = points[0]
            dots.append(Dot(x(step), y(value), f"{label}, step {step:.0f}", kind))
        elif points:
            kept = thin(points, MOST_POINTS)
            segments.append(" ".join(f"{x(s):g},{y(v):g}" for s, v in kept))
    return Line(kind, label, tuple(segments), tuple(dots))


def step_times(
    times: Sequence[tuple[int, float | None]],
    window: tuple[int, int] | None,
    median: float | None = None,
) -> Chart | None:
    """Seconds per step over steps, the measured window marked.

    The height fits the window: warm-up steps that are far slower are cut off at the top and say
    so, since else they would press the steps that count into a flat line.

    Args:
        times: (step, seconds) in ascending order.
        window: first and last step of the measured window, inclusive.
        median: the window's median, drawn as a rule.
    """
    known = [(s, t) for s, t in times if t is not None and math.isfinite(t) and t >= 0]
    if not known:
        return None
    first, last = known[0][0], known[-1][0]
    inside = [t for s, t in known if window and window[0] <= s <= window[1]]
    inside = inside or [t for _, t in known[1:]] or [known[0][1]]
    top = max(inside)
    overall = max(t for _, t in known)
    high = overall * 1.05 if overall <= top * 1.6 else top * 1.35
    high = high or 1.0
    x, y = Scale(first - 0.5, last + 0.5), Scale(0.0, high, flip=True)
    width = round(100 / (last - first + 1), 3)
    bars: tuple[Bar, ...] = ()
    lines: tuple[Line, ...] = ()
    if last - first < MOST_BARS:
        bars = tuple(
            Bar(
                x=round(x(s - 0.5) + width * 0.13, 2),
                y=max(y(t), 0.0),
                width=round(width * 0.74, 2),
                height=round(100 - max(y(t), 0.0), 2),
                title=f"step {s}: {words.seconds(t)}",
                kind="in" if window is None or window[0] <= s <= window[1] else "",
                cut=t > high,
            )
            for s, t in known
        )
    else:
        lines = (_line("candidate", "step time", [(s, min(t, high)) for s, t in known], x, y),)
    band = None
    if window:
        start = x(max(window[0], first) - 0.5)
        size = round(x(min(window[1], last) + 0.5) - start, 2)
        if size > 0:
            band = Band(start, size)
    cut = [(s, t) for s, t in known if t > high]
    summary = f"Step times of {words.plural(len(known), 'step')}"
    if window:
        summary += f"; the measured window is steps {window[0]} to {window[1]}"
    if cut:
        worst = max(cut, key=lambda p: p[1])
        summary += (
            f"; {words.plural(len(cut), 'step')} taller than the picture, "
            f"the tallest is step {worst[0]} with {words.seconds(worst[1])}"
        )
    keys = [("inside", f"measured window, steps {window[0]} to {window[1]}")] if window else []
    rule = None
    if median is not None and math.isfinite(median) and median <= high:
        rule = y(median)
        keys.append(("rule", f"median {words.seconds(median)}"))
    return Chart(
        title="Step time",
        summary=summary + ".",
        x_label="step",
        y_label="seconds",
        x_ticks=step_axis(first, last, x),
        y_ticks=axis(ticks(0.0, high), y),
        bars=bars,
        lines=lines,
        x_band=band,
        rule=rule,
        keys=tuple(keys),
        table_head=("step", "seconds", "window"),
        table=rows(
            (
                str(s),
                words.significant(t, 4),
                "yes" if window and window[0] <= s <= window[1] else "no",
            )
            for s, t in known
        ),
    )


def rows(found: Iterable[tuple[str, ...]], most: int = 200) -> tuple[tuple[str, ...], ...]:
    """The table beside a picture; none where it would be longer than ``most`` rows."""
    kept = tuple(found)
    return kept if len(kept) <= most else ()


def losses(
    candidate: Sequence[tuple[int, float | None]],
    reference: Sequence[tuple[int, float | None]] = (),
) -> Chart | None:
    """Loss over steps, candidate over reference."""
    known = [v for _, v in [*candidate, *reference] if v is not None and math.isfinite(v)]
    if not known:
        return None
    steps = [s for s, _ in [*candidate, *reference]]
    low, high = padded(known)
    x = Scale(min(steps), max(max(steps), min(steps) + 1))
    y = Scale(low, high, flip=True)
    lines = [_line("candidate", "candidate", candidate, x, y)]
    if reference:
        lines.insert(0, _line("reference", "reference", reference, x, y))
    summary = f"Loss over {words.plural(len(candidate), 'step')}"
    first, last = _ends(candidate)
    if first is not None and last is not None:
        summary += f", from {words.significant(first, 4)} to {words.significant(last, 4)}"
    if reference:
        summary += ", beside the reference run"
    there = dict(reference)
    return Chart(
        title="Loss",
        summary=summary + ".",
        x_label="step",
        y_label="",
        x_ticks=step_axis(min(steps), max(steps), x),
        y_ticks=axis(ticks(low, high), y),
        lines=tuple(lines),
        table_head=("step", "candidate", "reference") if reference else ("step", "loss"),
        table=rows(
            (str(s), _digits(v), _digits(there.get(s))) if reference else (str(s), _digits(v))
            for s, v in candidate
        ),
    )


def _ends(series: Sequence[tuple[int, float | None]]) -> tuple[float | None, float | None]:
    known = [v for _, v in series if v is not None and math.isfinite(v)]
    return (known[0], known[-1]) if known else (None, None)


def _digits(value: float | None) -> str:
    return words.UNKNOWN if value is None or not math.isfinite(value) else f"{value:.6g}"


def loss_difference(
    candidate: Sequence[tuple[int, float | None]],
    reference: Sequence[tuple[int, float | None]],
    noise_floor: float | None = None,
) -> Chart | None:
    """(candidate - reference) / |reference| over the steps both have, with the noise band.

    Args:
        candidate: (step, loss).
        reference: (step, loss).
        noise_floor: relative difference that mere reordering gives; drawn as a band around zero.
    """
    there = dict(reference)
    series = [
        (s, apart)
        for s, v in candidate
        if v is not None
        and (g := there.get(s)) is not None
        and g != 0
        and abs(apart := (v - g) / abs(g)) < _FARTHEST
    ]
    if not series:
        return None
    reach = max(max(abs(v) for _, v in series), noise_floor or 0.0) * 1.15 or 1e-6
    first, last = series[0][0], series[-1][0]
    x = Scale(first, max(last, first + 1))
    y = Scale(-reach, reach, flip=True)
    largest = max(series, key=lambda p: abs(p[1]))
    summary = (
        f"Relative difference of the losses; the largest is "
        f"{words.significant(abs(largest[1]), 2)} at step {largest[0]}"
    )
    band = None
    if noise_floor:
        band = Band(y(noise_floor), round(y(-noise_floor) - y(noise_floor), 2))
        summary += f"; the noise band is {words.significant(noise_floor, 2)} wide to each side"
    return Chart(
        title="Difference",
        summary=summary + ".",
        x_label="step",
        y_label="relative difference",
        x_ticks=step_axis(first, last, x),
        y_ticks=axis(ticks(-reach, reach, 6), y),
        lines=(_line("difference", "difference", series, x, y),),
        y_band=band,
        rule=y(0.0),
        keys=(("noise", "noise band"),) if band else (),
    )
