"""Processes that the tests of the engine share: one world of each size runs them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine.step.gang import Gang


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The same arithmetic here and in the spawned processes."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def two() -> Iterator[Gang]:
    gang = Gang(2)
    yield gang
    gang.close()


@pytest.fixture(scope="session")
def four() -> Iterator[Gang]:
    gang = Gang(4)
    yield gang
    gang.close()
