"""What the layouts are held against."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.engine.parallel.trial import Outcome, Run, alone, train


@pytest.fixture(scope="session")
def one_process() -> Callable[[Run], Outcome]:
    """The same training on one process, each made once."""
    made = cache(train)
    return lambda run: made(alone(run))
