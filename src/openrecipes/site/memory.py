"""Peak memory per rank, and wholes split into their parts (memory, a step's time)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openrecipes.site import words
from openrecipes.site.charts import MOST_BARS, rows
from openrecipes.site.scales import Scale, axis, step_axis, ticks
from openrecipes.site.shapes import Bar, Chart

#: The widest bar, in percent: two ranks are no two walls.
WIDEST = 8.0


def memory(peaks: Sequence[tuple[int, float | None]], what: str) -> Chart | None:
    """Peak memory per rank as bars.

    Args:
        peaks: for each rank its pipeline stage and its peak in bytes.
        what: which memory it is.
    """
    known = [v for _, v in peaks if v is not None and math.isfinite(v) and v >= 0]
    if not known or len(peaks) > MOST_BARS:
        return None
    unit, name = (2**30, "GiB") if max(known) >= 2**30 else (2**20, "MiB")
    x, y = Scale(-0.5, len(peaks) - 0.5), Scale(0.0, max(known) / unit * 1.05 or 1.0, flip=True)
    width = min(0.74 * 100 / len(peaks), WIDEST)
    bars = tuple(
        Bar(
            x=round(x(rank) - width / 2, 2),
            y=y(value / unit),
            width=round(width, 2),
            height=round(100 - y(value / unit), 2),
            title=f"rank {rank}, stage {stage}: {words.gibibytes(value)}",
            kind=f"stage s{stage % 8}",
        )
        for rank, (stage, value) in enumerate(peaks)
        if value is not None
    )
    stages = sorted({stage for stage, _ in peaks})
    return Chart(
        title="Peak memory",
        summary=f"Peak memory {what}, per rank: {words.gibibytes(min(known))} to "
        f"{words.gibibytes(max(known))}.",
        x_label="rank",
        y_label=name,
        x_ticks=step_axis(0, len(peaks) - 1, x),
        y_ticks=axis(ticks(0.0, y.high), y),
        bars=bars,
        keys=tuple((f"dot-stage s{s % 8}", f"stage {s}") for s in stages)
        if len(stages) > 1
        else (),
        table_head=("rank", "stage", name),
        table=rows(
            (str(rank), str(stage), words.UNKNOWN if v is None else words.significant(v / unit, 4))
            for rank, (stage, v) in enumerate(peaks)
        ),
    )


@dataclass(frozen=True)
class Part:
    """A part of a whole: where its slice lies (percent) and what it says."""

    label: str
    value: str
    start: float
    size: float


@dataclass(frozen=True)
class Split:
    """A whole and its parts, drawn as one stacked bar."""

    title: str
    whole: str
    parts: tuple[Part, ...]
    note: str


def split(
    title: str, parts: Sequence[tuple[str, float]], shown: Callable[[float], str], note: str
) -> Split | None:
    """Parts of a whole; None where there is nothing to split.

    Args:
        title: what is split.
        parts: labels and positive values.
        shown: how a value is written.
        note: what else a reader must know.
    """
    whole = sum(value for _, value in parts)
    if whole <= 0:
        return None
    found, start = [], 0.0
    for label, value in parts:
        share = 100 * value / whole
        found.append(Part(label, shown(value), round(start, 2), round(share, 2)))
        start += share
    return Split(title, shown(whole), tuple(found), note)
