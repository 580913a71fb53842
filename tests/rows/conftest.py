from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openrecipes.cli.main import run
from tests.rows.given import CONVERSATIONS, TOKENIZER


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: its exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def build(cli: Any, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """``rows build`` with the demo's tokenizer into ``tmp_path/rows.parquet``."""

    def call(*arguments: object, input_: object = CONVERSATIONS) -> tuple[int, str, str]:
        given = [str(a) for a in arguments]
        base: list[object] = ["rows", "build", "--input", input_, "--tokenizer", TOKENIZER]
        if "--output" not in given:
            base += ["--output", tmp_path / "rows.parquet"]
        if "--num-workers" not in given:
            base += ["--num-workers", 1]
        return cli(*base, *given)

    return call
