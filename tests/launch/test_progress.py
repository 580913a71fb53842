"""What is shown of a run while it runs, and which failure is shown when it has failed."""

from __future__ import annotations

import io
from collections import deque
from pathlib import Path

import pytest
from rich.console import Console

from openrecipes.engine.recording import RankFailure
from openrecipes.launch.local import first_failure
from openrecipes.launch.progress import Follower, Progress, describe, duration
from openrecipes.runs.record import Failure


def line(step: int, loss: str = "2.5") -> str:
    return f'{{"step": {step}, "loss": {loss}, "slots": 100, "step_time_s": 0.5}}\n'


def test_only_whole_lines_are_read_and_each_once(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    assert follower.new_steps() == []
    file = tmp_path / "steps.jsonl"
    file.write_text(line(0) + line(1)[:9])
    assert [step["step"] for step in follower.new_steps()] == [0]
    file.write_text(line(0) + line(1))
    assert [step["step"] for step in follower.new_steps()] == [1]
    assert follower.new_steps() == []


def test_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    text = io.StringIO()
    (tmp_path / "steps.jsonl").write_text(line(0) + line(1))
    progress = Progress(tmp_path, 4, Console(file=text, width=200))
    progress.close()
    assert text.getvalue() == (
        "step 1/4  loss 2.5000\nstep 2/4  loss 2.5000  200 tokens/s  1 s left\n"
    )


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    text = io.StringIO()
    (tmp_path / "steps.jsonl").write_text(line(0) + line(1))
    progress = Progress(tmp_path, 4, Console(file=text, width=120, force_terminal=True))
    progress.close()
    assert "step 2/4" in text.getvalue() and "200 tokens/s" in text.getvalue()


def test_a_loss_that_is_not_finite_is_said() -> None:
    step = {"step": 3, "loss": None}
    assert describe(step, deque([(100, 1.0)]), 5) == "loss not finite  100 tokens/s  5 s left"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def leave(record: Path, rank: int, time: float, message: str, follows: bool) -> None:
    (record / "logs").mkdir(exist_ok=True)
    failure = Failure(kind="crash", rank=rank, step=3, message=message)
    RankFailure(failure, time, follows).write(record, rank)


def test_the_first_own_failure_goes_before_lost_connections(tmp_path: Path) -> None:
    leave(tmp_path, 0, 1.0, "Connection closed by peer", True)
    leave(tmp_path, 1, 2.0, "ZeroDivisionError", False)
    assert first_failure(tmp_path, [0, 1], [1, 1]).message == "ZeroDivisionError"


def test_a_rank_that_left_no_word_goes_before_lost_connections(tmp_path: Path) -> None:
    leave(tmp_path, 0, 1.0, "Connection closed by peer", True)
    failure = first_failure(tmp_path, [0, 1], [1, -9])
    assert failure.rank == 1 and failure.message == "ended by signal SIGKILL" and failure.step == 3


def test_a_rank_that_ended_early_is_told_with_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("Traceback\nImportError: no torch\n\n")
    failure = first_failure(tmp_path, [0], [1, None])
    assert failure.message == "ended with exit code 1: ImportError: no torch"


def test_launcher_and_engine_mean_the_same_variables() -> None:
    from openrecipes.engine import worker
    from openrecipes.engine.parallel import world
    from openrecipes.launch import processes

    assert processes.WATCH_STDIN == worker.WATCH_STDIN
    assert processes.STORE_SOCKET == world.STORE_SOCKET
