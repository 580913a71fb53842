"""The measured window and the spread of its step times."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrecipes.errors import InputError
from openrecipes.metrics.steps import (
    Window,
    check_window,
    default_window,
    parse_window,
    percentile,
    spread,
)


def test_window_is_first_and_last_inclusive() -> None:
    window = parse_window("5:19")
    assert (window.first, window.last, len(window), str(window)) == (5, 19, 15, "5:19")


@pytest.mark.parametrize("text", ["", "5", "5-19", "19:5", "-1:4", "a:b", "1:2:3", "1.0:2", "٣:٤"])
def test_other_windows_are_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_window(text)
    assert caught.value.field == "--window"


def test_default_window_drops_the_first_five_steps() -> None:
    assert default_window(range(20), {0}) == Window(5, 19)
    assert default_window(range(6), {0}) == Window(5, 5)


def test_default_window_never_holds_the_first_step_of_an_attempt() -> None:
    assert default_window(range(20), {0, 10}) == Window(11, 19)
    assert default_window(range(20), {0, 17}) == Window(5, 16)
    assert default_window(range(20), {0, 12}) == Window(13, 19)  # of equal lengths the later


def test_default_window_skips_gaps() -> None:
    assert default_window([*range(10), *range(12, 30)], {0}) == Window(12, 29)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_too_few_steps_have_no_default_window(count: int) -> None:
    with pytest.raises(InputError, match="at least 6"):
        default_window(range(count), {0})


def test_a_window_must_be_recorded_and_free_of_starts() -> None:
    check_window(Window(1, 19), range(20), {0})
    with pytest.raises(InputError, match="step 20 is not recorded"):
        check_window(Window(5, 20), range(20), {0})
    with pytest.raises(InputError, match="step 7 is not recorded"):
        check_window(Window(5, 9), [*range(7), 8, 9], {0})
    with pytest.raises(InputError, match="step 0 is the first of its attempt"):
        check_window(Window(0, 5), range(20), {0})
    with pytest.raises(InputError, match="step 8 is the first of its attempt"):
        check_window(Window(5, 19), range(20), {0, 8})
    with pytest.raises(InputError, match="there is none"):
        check_window(Window(5, 19), [], set())
    with pytest.raises(InputError, match="step 999999999 is not recorded"):
        check_window(Window(5, 999_999_999), range(20), {0})


def test_spread_against_the_standard_library_and_numpy() -> None:
    times = [4.0, 4.2, 3.9, 4.1, 9.0, 4.0]
    population = spread(times)
    assert population.mean == pytest.approx(statistics.fmean(times))
    cv = 100 * statistics.pstdev(times) / statistics.fmean(times)
    assert population.cv_percent == pytest.approx(cv)
    cv = 100 * statistics.stdev(times) / statistics.fmean(times)
    assert spread(times, "sample").cv_percent == pytest.approx(cv)
    assert population.p50 == pytest.approx(np.percentile(times, 50))
    assert population.p95 == pytest.approx(np.percentile(times, 95))
    assert population.max == 9.0


def test_one_step_has_no_spread() -> None:
    for kind in ("population", "sample"):
        assert spread([2.0], kind).cv_percent == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [[], [0.0], [1.0, -1.0], [1.0, math.nan], [math.inf]])
def test_what_is_no_step_time_is_refused(times: list[float]) -> None:
    with pytest.raises(ValueError, match="step times"):
        spread(times)


@given(st.lists(st.floats(0, 1e308, exclude_min=True), min_size=1, max_size=30))
def test_spread_is_always_finite_and_ordered(times: list[float]) -> None:
    result = spread(times)
    assert all(map(math.isfinite, (result.mean, result.p50, result.p95, result.cv_percent)))
    assert result.p50 <= result.p95 * (1 + 1e-12) and result.p95 <= result.max * (1 + 1e-12)
    assert 0 <= result.cv_percent <= 100 * math.sqrt(len(times)) * (1 + 1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)
