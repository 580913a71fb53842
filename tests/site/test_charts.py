from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openrecipes.site import charts, memory, scales
from openrecipes.site.scatter import Point, price_and_rate
from openrecipes.site.shapes import Chart

VALUES = st.one_of(
    st.none(), st.floats(width=32), st.floats(min_value=0, max_value=1e6), st.just(0.0)
)
SERIES = st.lists(VALUES, max_size=130).map(lambda values: list(enumerate(values)))


def numbers(chart: Chart) -> list[float]:
    found = [t.at for t in (*chart.x_ticks, *chart.y_ticks)]
    for bar in chart.bars:
        found += [bar.x, bar.y, bar.width, bar.height]
    for line in chart.lines:
        found += [
            float(v) for seg in line.segments for pair in seg.split() for v in pair.split(",")
        ]
        found += [v for dot in line.dots for v in (dot.x, dot.y)]
    found += [v for dot in chart.dots for v in (dot.x, dot.y)]
    for band in (chart.x_band, chart.y_band):
        found += [band.start, band.size] if band else []
    return found


def sound(chart: Chart | None) -> None:
    if chart is None:
        return
    for value in numbers(chart):
        assert math.isfinite(value)
        assert -1 <= value <= 101
    assert chart.summary.endswith(".")
    assert "nan" not in chart.summary.lower() and "inf" not in chart.summary.lower()


@given(SERIES, st.one_of(st.none(), st.tuples(st.integers(0, 60), st.integers(0, 200))))
def test_step_times_are_sound_whatever_was_recorded(
    series: list[tuple[int, float | None]], window: tuple[int, int] | None
) -> None:
    sound(charts.step_times(series, window, None))


@example([(0, 1.0)], [(0, 5e-324)], None)
@example([(0, 1.0)], [(0, 1e-308)], None)
@given(SERIES, SERIES, st.one_of(st.none(), st.floats(min_value=1e-9, max_value=1)))
def test_losses_are_sound_whatever_was_recorded(
    ours: list[tuple[int, float | None]],
    theirs: list[tuple[int, float | None]],
    floor: float | None,
) -> None:
    sound(charts.losses(ours, theirs))
    sound(charts.loss_difference(ours, theirs, floor))


@example(137438953473.0, 6.103515625e-05, 4)
@given(
    st.floats(min_value=-1e12, max_value=1e12),
    st.floats(min_value=1e-9, max_value=1e12),
    st.integers(2, 8),
)
def test_ticks_are_round_ascending_and_inside(low: float, size: float, most: int) -> None:
    high = low + size
    found = scales.ticks(low, high, most)
    assert all(b > a for a, b in pairwise(found))
    assert len(found) <= most + 2
    slack = (high - low) * 1e-6 + abs(low) * 1e-9
    assert all(low - slack <= v <= high + slack for v in found)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 6.3, ["0", "2", "4", "6"]),
        (0, 0.9, ["0", "0.2", "0.4", "0.6", "0.8"]),
        (0, 12000, ["0", "5,000", "10,000"]),
        (-4e-5, 4e-5, ["-4e-5", "-2e-5", "0", "2e-5", "4e-5"]),
        (-2e-3, 2e-3, ["-0.002", "-0.001", "0", "0.001", "0.002"]),
    ],
)
def test_tick_labels(low: float, high: float, labels: list[str]) -> None:
    values = scales.ticks(low, high)
    assert [scales.tick_label(v, values) for v in values] == labels


def test_a_slow_first_step_is_cut_and_told() -> None:
    chart = charts.step_times([(0, 90.0), *((i, 4.0) for i in range(1, 20))], (5, 19), 4.0)
    assert chart is not None
    assert chart.bars[0].cut and not any(b.cut for b in chart.bars[1:])
    assert chart.bars[5].height > 60
    assert "step 0 with 90.0 s" in chart.summary


def test_an_unknown_loss_leaves_a_gap() -> None:
    chart = charts.losses([(0, 3.0), (1, 2.0), (2, None), (3, 1.5), (4, float("nan")), (5, 1.0)])
    assert chart is not None
    line = chart.lines[0]
    assert len(line.segments) == 1 and len(line.dots) == 2


def test_long_runs_are_thinned_but_keep_their_extremes() -> None:
    series = [(i, 10.0 if i == 7777 else 1.0) for i in range(20000)]
    chart = charts.losses(series)
    assert chart is not None
    points = chart.lines[0].segments[0].split()
    assert len(points) <= 2 * charts.MOST_POINTS
    assert min(float(p.split(",")[1]) for p in points) < 10
    assert chart.table == ()


def test_memory_bars_carry_their_stage() -> None:
    gib = 2**30
    chart = memory.memory([(0, 100 * gib), (0, 101 * gib), (1, 90 * gib), (1, None)], "allocated")
    assert chart is not None
    assert [bar.kind for bar in chart.bars] == ["stage s0", "stage s0", "stage s1"]
    assert "90.0 GiB to 101 GiB" in chart.summary


def test_a_split_fills_the_whole() -> None:
    split = memory.split("x", [("a", 1.0), ("b", 3.0)], str, "")
    assert split is not None
    assert [(p.start, p.size) for p in split.parts] == [(0.0, 25.0), (25.0, 75.0)]
    assert memory.split("x", [], str, "") is None


def test_scatter_links_few_and_clouds_many() -> None:
    points = [
        Point(0.1 * (i + 1), 100.0 * (i + 1), f"p{i}", "verified", f"{i}.html") for i in range(9)
    ]
    few = price_and_rate(points)
    assert few is not None and len(few.dots) == 9 and few.dots[3].link == "3.html"
    many = price_and_rate(points, most_links=5)
    assert many is not None and many.dots == () and many.clouds[0][0] == "verified"
    sound(few)
    assert price_and_rate([Point(None, 1.0, "x"), Point(0.0, 1.0, "x"), points[0]]) is None
