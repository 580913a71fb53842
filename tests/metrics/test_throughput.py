"""Rate, MFU, price and GPU-hours: the published figures, and no NaN whatever comes in."""

import math
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrecipes.metrics.rounding import half_digit, written
from openrecipes.metrics.throughput import (
    gpu_hours,
    mfu,
    tokens_per_second_per_gpu,
    usd_per_million_tokens,
)

H200_PEAK = 989e12
P5EN_USD_PER_GPU_HOUR = 63.296 / 8

# name, N, tokens/s/GPU, published MFU, published USD per million tokens
SEEDS = [
    ("nano", 3_227_369_472, 7814.02, 0.153, 0.28),
    ("super", 12_232_228_864, 1045.21, 0.0776, 2.10),
]


@pytest.mark.parametrize(("name", "n", "rate", "published_mfu", "usd"), SEEDS)
def test_published_figures_come_out(
    name: str, n: int, rate: float, published_mfu: float, usd: float
) -> None:
    assert written("mfu", mfu(n, rate, H200_PEAK)) == published_mfu
    price = usd_per_million_tokens(P5EN_USD_PER_GPU_HOUR, rate)
    assert written("usd_per_million_tokens", price) == usd


def test_rate_is_tokens_over_seconds_and_gpus() -> None:
    assert tokens_per_second_per_gpu(15_728_640, 251.6, 8) == pytest.approx(7814.3, abs=0.05)
    assert tokens_per_second_per_gpu(0, 1.0, 1) == 0


def test_gpu_hours_count_every_gpu() -> None:
    assert gpu_hours(8, 540) == pytest.approx(1.2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: tokens_per_second_per_gpu(1, 0, 1),
        lambda: tokens_per_second_per_gpu(1, 1, 0),
        lambda: tokens_per_second_per_gpu(-1, 1, 1),
        lambda: tokens_per_second_per_gpu(math.nan, 1, 1),
        lambda: mfu(1, 1, 0),
        lambda: mfu(0, 1, 1),
        lambda: mfu(1, math.inf, 1),
        lambda: usd_per_million_tokens(1, 0),
        lambda: usd_per_million_tokens(-1, 1),
        lambda: gpu_hours(1, -1),
        lambda: mfu(1e308, 1e308, 1.0),
    ],
)
def test_senseless_input_is_refused(call: Callable[[], float]) -> None:
    with pytest.raises(ValueError, match=r"must be|too large"):
        call()


anything = st.floats(allow_nan=True, allow_infinity=True)


@given(anything, anything, anything)
def test_the_result_is_finite_or_refused(a: float, b: float, c: float) -> None:
    calls = [
        lambda: tokens_per_second_per_gpu(a, b, c),  # type: ignore[arg-type]
        lambda: mfu(a, b, c),
        lambda: usd_per_million_tokens(a, b),
        lambda: gpu_hours(a, b),  # type: ignore[arg-type]
    ]
    for call in calls:
        with suppress(ValueError):
            assert math.isfinite(call())


@pytest.mark.parametrize(
    ("figure", "value", "expected", "half"),
    [
        ("tokens_per_s_per_gpu", 7814.0231, 7814.02, 0.005),
        ("mfu", 0.152999, 0.153, 0.0005),
        ("mfu", 0.077567, 0.0776, 0.00005),
        ("correlation", 0.99999968, 0.9999997, 5e-8),
        ("final_loss_difference", 0.0000429731, 0.000043, 5e-8),
        ("final_loss_difference", 0.0, 0.0, 5e-4),
        ("usd_per_million_tokens", 2.1028, 2.10, 0.005),
        ("step_time_cv_percent", 7.5149, 7.51, 0.005),
    ],
)
def test_written_figures(figure: str, value: float, expected: float, half: float) -> None:
    assert written(figure, value) == expected
    assert half_digit(figure, value) == pytest.approx(half)


@given(st.sampled_from(["mfu", "tokens_per_s_per_gpu", "correlation"]), st.floats(1e-6, 1e6))
def test_writing_moves_a_figure_by_at_most_half_a_digit(figure: str, value: float) -> None:
    assert abs(written(figure, value) - value) <= half_digit(figure, value) * (1 + 1e-6)


def test_nan_is_never_written() -> None:
    with pytest.raises(ValueError, match="finite"):
        written("mfu", math.nan)
