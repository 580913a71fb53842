"""The convergence procedure: its four criteria, its edges, and no NaN whatever comes in."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrecipes.metrics.convergence import (
    Curve,
    compare,
    count_outliers,
    pearson,
    relative_difference,
)


def curve(losses: Sequence[float | None], norms: Sequence[float | None] = ()) -> Curve:
    return Curve(dict(enumerate(losses)), dict(enumerate(norms)))


FALLING = [3.0 - 0.05 * i for i in range(20)]


def test_the_same_curve_passes() -> None:
    verdict = compare(curve(FALLING), curve(FALLING))
    assert verdict.result == "pass" and verdict.failures == {}
    assert verdict.correlation == pytest.approx(1.0)
    assert (verdict.final_loss_difference, verdict.pointwise_failures, verdict.steps) == (0, 0, 20)


def test_figures_against_numpy() -> None:
    rng = np.random.default_rng(0)
    g = np.linspace(3, 2.1, 40)
    c = g + rng.normal(0, 0.01, 40)
    verdict = compare(curve(c.tolist()), curve(g.tolist()))
    assert verdict.result == "pass"
    assert verdict.correlation == pytest.approx(np.corrcoef(c, g)[0, 1])
    assert verdict.final_loss_difference == pytest.approx(abs(c[-1] - g[-1]) / g[-1])
    r = c - g
    assert verdict.outliers == int((abs(r - r.mean()) > 3 * r.std()).sum())


def test_correlation_fails_alone() -> None:
    g = [2.50 + 0.01 * (-1) ** i for i in range(20)]
    c = [2.50 + 0.01 * (-1) ** (i // 2) for i in range(20)]
    assert set(compare(curve(c), curve(g)).failures) == {"correlation"}


@pytest.mark.parametrize(("level", "tolerance"), [(3.0, 0.10), (1.0, 0.05), (0.3, 0.02)])
def test_pointwise_tolerance_depends_on_the_reference_loss(level: float, tolerance: float) -> None:
    g = [level + 0.001 * i for i in range(20)]
    inside = [loss * (1 + 0.95 * tolerance) for loss in g[:-1]] + [g[-1]]
    outside = [loss * (1 + 1.05 * tolerance) for loss in g[:-1]] + [g[-1]]
    assert compare(curve(inside), curve(g)).pointwise_failures == 0
    verdict = compare(curve(outside), curve(g))
    assert verdict.pointwise_failures == 19
    assert "pointwise" in verdict.failures


@pytest.mark.parametrize(
    ("level", "tolerance"), [(2.0, 0.05), (0.5, 0.02)], ids=["2.0 is not above", "0.5 is not above"]
)
def test_tolerance_at_the_border(level: float, tolerance: float) -> None:
    g = [level] * 20
    c = [level * (1 + tolerance * 1.1)] * 20
    assert compare(curve(c), curve(g)).pointwise_failures == 20


def test_a_tenth_of_the_points_may_fail_and_no_more() -> None:
    for failing, result in ((2, False), (3, True)):
        c = list(FALLING)
        for i in range(failing):
            c[i * 3] *= 1.11
        verdict = compare(curve(c), curve(FALLING))
        assert verdict.pointwise_failures == failing
        assert ("pointwise" in verdict.failures) is result


def test_final_loss_fails_alone() -> None:
    c = [*FALLING[:-1], FALLING[-1] * 1.031]
    verdict = compare(curve(c), curve(FALLING))
    assert set(verdict.failures) == {"final_loss"}
    assert verdict.final_loss_difference == pytest.approx(0.031)


def test_outliers_fail_alone() -> None:
    # At most a ninth of all points can lie beyond 3 sigma: 22 of 200 do.
    g = [3.0 - 0.002 * i for i in range(200)]
    c = list(g)
    for i in range(11):
        c[i * 15] += 0.05
        c[i * 15 + 7] -= 0.05
    verdict = compare(curve(c), curve(g))
    assert verdict.outliers == 22
    assert set(verdict.failures) == {"outliers"}


def test_both_constant_and_equal_is_judged_by_the_other_criteria() -> None:
    verdict = compare(curve([2.0] * 20), curve([2.0] * 20))
    assert (verdict.result, verdict.correlation) == ("pass", None)


def test_both_constant_and_apart_fails() -> None:
    verdict = compare(curve([2.5] * 20), curve([2.0] * 20))
    assert set(verdict.failures) == {"pointwise", "final_loss"}


@pytest.mark.parametrize("which", ["candidate", "reference"])
def test_one_constant_curve_fails_by_name(which: str) -> None:
    curves = {"candidate": curve(FALLING), "reference": curve(FALLING)}
    curves[which] = curve([2.5] * 20)
    verdict = compare(**curves)
    assert verdict.correlation is None
    assert which in verdict.failures["correlation"]


def test_a_zero_reference_loss() -> None:
    g = [1.0, 0.5, 0.0]
    assert compare(curve(g), curve(g)).result == "pass"
    verdict = compare(curve([1.0, 0.5, 1e-9]), curve(g))
    assert verdict.final_loss_difference is None
    assert verdict.pointwise_failures == 1
    assert {"final_loss", "pointwise"} <= set(verdict.failures)


def test_a_negative_final_loss_does_not_pass_by_its_sign() -> None:
    verdict = compare(curve([1.0, -2.0]), curve([1.0, -1.0]))
    assert "final_loss" in verdict.failures


@pytest.mark.parametrize(
    ("c", "g", "told"),
    [
        (FALLING[:19], FALLING, "step 19 is missing from the candidate"),
        (FALLING, FALLING[:19], "step 19 is missing from the reference"),
        ([], FALLING, "missing from the candidate"),
        ([], [], "at least two steps"),
        ([1.0], [1.0], "at least two steps"),
    ],
)
def test_other_steps_fail(c: list[float], g: list[float], told: str) -> None:
    verdict = compare(curve(c), curve(g))
    assert verdict.result == "fail" and told in verdict.failures["steps"]
    assert verdict.correlation is None and verdict.final_loss_difference is None


def test_a_step_missing_from_both_fails() -> None:
    losses = {0: 1.0, 1: 0.9, 3: 0.8}
    assert "step 2" in compare(Curve(losses), Curve(losses)).failures["steps"]


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["candidate", "reference"])
@pytest.mark.parametrize("what", ["loss", "gradient norm"])
def test_a_number_that_is_not_finite_fails_first(bad: float | None, which: str, what: str) -> None:
    values: list[float | None] = [*FALLING[:7], bad, *FALLING[8:]]
    broken = curve(values, FALLING) if what == "loss" else curve(FALLING, values)
    curves = {"candidate": curve(FALLING, FALLING), "reference": curve(FALLING, FALLING)}
    curves[which] = broken
    verdict = compare(**curves)
    assert verdict.failures == {"finite": f"the {which}'s {what} at step 7 is not a finite number"}


def test_gradient_norms_that_nobody_recorded_are_not_judged() -> None:
    assert compare(curve(FALLING, [None] * 20), curve(FALLING)).result == "pass"


def test_relative_difference_and_pearson_at_the_ends_of_the_float_range() -> None:
    assert relative_difference(1e308, -1e308) == pytest.approx(2.0)
    assert relative_difference(1e308, 1e-308) is None
    assert pearson([1e-300, 2e-300, 3e-300], [1e300, 2e300, 3e300]) == pytest.approx(1.0)
    assert count_outliers([5e-324] * 3, 3) == 0


numbers = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
series = st.dictionaries(st.integers(0, 8), numbers, max_size=9)


@given(series, series, series, series)
def test_no_nan_ever_comes_out(
    c: dict[int, float | None],
    g: dict[int, float | None],
    norms_c: dict[int, float | None],
    norms_g: dict[int, float | None],
) -> None:
    _check(compare(Curve(c, norms_c), Curve(g, norms_g)))


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(finite, finite), min_size=2, max_size=12))
def test_no_nan_comes_out_of_finite_curves(pairs: list[tuple[float, float]]) -> None:
    verdict = compare(curve([c for c, _ in pairs]), curve([g for _, g in pairs]))
    assert "steps" not in verdict.failures and "finite" not in verdict.failures
    _check(verdict)


def _check(verdict: object) -> None:
    assert (verdict.result == "fail") == bool(verdict.failures)  # type: ignore[attr-defined]
    for name in ("correlation", "final_loss_difference", "max_relative_difference"):
        value = getattr(verdict, name)
        assert value is None or math.isfinite(value), name
    for name in ("pointwise_failures", "outliers"):
        value = getattr(verdict, name)
        assert value is None or 0 <= value <= verdict.steps  # type: ignore[attr-defined]
