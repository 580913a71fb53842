"""Reference runs that several tests share."""

from __future__ import annotations

import pytest

from tests.engine.step.jobs import Outcome, Run, train


@pytest.fixture(scope="session")
def reference() -> Outcome:
    """Ten steps on one process, one row per micro-batch."""
    return train(Run())
