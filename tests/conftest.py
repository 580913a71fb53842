"""What the whole suite shares: tests that need a program which pip cannot bring."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

import pytest

# A suite started in the background has SIGINT ignored, and so would every command it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

_missing = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_missing] = []


@pytest.fixture(scope="session")
def missing(pytestconfig: pytest.Config):  # type: ignore[no-untyped-def]
    """Call it with the name of what is missing and how to get it.

    The test is skipped, and the end of the run says so loudly; where ``OPENRECIPES_REQUIRE`` (names
    separated by commas) lists the name, it fails instead.
    """

    def report(name: str, remedy: str) -> NoReturn:
        required = os.environ.get("OPENRECIPES_REQUIRE", "").replace(" ", "").split(",")
        if name in required:
            pytest.fail(f"{name} is required (OPENRECIPES_REQUIRE) and missing: {remedy}")
        pytestconfig.stash[_missing].append(f"{name} is missing: {remedy}")
        pytest.skip(f"{name} is missing: {remedy}")

    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for told in dict.fromkeys(config.stash[_missing]):
        terminalreporter.section("TESTS WERE SKIPPED", sep="!", yellow=True, bold=True)
        terminalreporter.line(told, yellow=True)
