from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrecipes.site import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.153, "15.3%"),
        (0.0776, "7.76%"),
        (0.55, "55.0%"),
        (1.0, "100%"),
        (0.0, "0%"),
        (None, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_percent(value: float | None, text: str) -> None:
    assert words.percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.28, "$0.28"),
        (2.1, "$2.10"),
        (0.0042, "$0.0042"),
        (1234.5, "$1,234.50"),
        (None, "unknown"),
    ],
)
def test_dollars(value: float | None, text: str) -> None:
    assert words.dollars(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0042, "4.20 ms"),
        (16.77, "16.8 s"),
        (600, "10.0 min"),
        (15984, "4.44 h"),
        (2.7e5, "3.12 days"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("candidate", "reference", "text"),
    [
        (7814.02, 5229.2, "+49.4%"),
        (0.28, 0.42, "−33.3%"),
        (5.0, 5.0001, "same"),
        (1.0, 0.0, ""),
        (None, 1.0, ""),
    ],
)
def test_change(candidate: float | None, reference: float | None, text: str) -> None:
    assert words.change(candidate, reference) == text


@given(st.floats())
def test_no_value_ever_reads_as_nan(value: float) -> None:
    for form in (words.number, words.plain, words.dollars, words.percent, words.seconds):
        text = form(value)
        assert "nan" not in text and "inf" not in text
    assert "nan" not in words.gibibytes(value)


@pytest.mark.parametrize(("count", "text"), [(0, "0 steps"), (1, "1 step"), (1200, "1,200 steps")])
def test_plural(count: int, text: str) -> None:
    assert words.plural(count, "step") == text
    assert words.plural(2, "process") == "2 processes"
