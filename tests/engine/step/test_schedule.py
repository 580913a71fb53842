"""The learning rate, step by step, as Megatron's scheduler gives it."""

from __future__ import annotations

import math

import pytest

from openrecipes.engine.schedule import DecayStyle, Schedule


def schedule(style: DecayStyle = "cosine", warmup: float = 2.0, init: float = 0.0) -> Schedule:
    return Schedule(1e-5, 1e-6, style, warmup * 128, 20 * 128, 128, init)


def test_warm_up_starts_at_zero_and_reaches_the_rate_after_its_samples() -> None:
    rates = [schedule().at(step) for step in range(4)]
    assert rates[:3] == pytest.approx([0.0, 5e-6, 1e-5])
    assert rates[3] < 1e-5


def test_cosine_ends_above_the_lowest_rate_which_the_step_after_would_have() -> None:
    made = schedule()
    expected = 1e-6 + 9e-6 * (1 + math.cos(math.pi * 17 / 18)) / 2
    assert made.at(19) == pytest.approx(expected)
    assert made.at(20) == pytest.approx(1e-6) and made.at(99) == 1e-6


def test_linear_and_constant() -> None:
    assert schedule("linear").at(11) == pytest.approx(1e-6 + 9e-6 * 0.5)
    assert schedule("constant").at(19) == 1e-5


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert schedule(warmup=0).at(0) == pytest.approx(1e-5)


def test_warm_up_may_start_above_zero_and_end_between_steps() -> None:
    made = schedule(warmup=1.5, init=1e-6)
    assert made.at(0) == 1e-6 and made.at(1) == pytest.approx(1e-6 + 9e-6 / 1.5)
