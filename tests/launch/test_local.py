"""Runs on local processes, ended in every way: nothing is lost and no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from openrecipes.runs.record import RunRecord
from tests.launch.conftest import openrecipes

Start = Callable[..., "subprocess.Popen[str]"]


def children(pid: int) -> list[int]:
    """Processes that ``pid`` has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def gone(pids: list[int], seconds: float = 10) -> bool:
    """Whether all of them have ended within this time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = [p for p in pids if Path(f"/proc/{p}").exists() and not is_zombie(p)]
        if not alive:
            return True
        time.sleep(0.05)
    return False


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_for_steps(output: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if len((output / "steps.jsonl").read_text().splitlines()) >= count:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"no {count} steps: {process.communicate(timeout=30)}")


def one_step(shared: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A run of one process and one step."""
    return openrecipes(
        *("train", "--model-config", shared / "config.json", "--output", output, "--lr", "1e-3"),
        *("--prompt-data", shared / "rows.parquet", "--global-batch-size", "8"),
        *("--train-iters", "1", *more),
    )


@pytest.fixture
def long_run(shared: Path, tmp_path: Path, started: Start) -> tuple[subprocess.Popen[str], Path]:
    """A run of two ranks that would take hours, past its third step."""
    output = tmp_path / "run"
    process = started(
        *("train", "--model-config", shared / "config.json"),
        *("--prompt-data", shared / "rows.parquet", "--output", output, "--nproc-per-node", "2"),
        *("--expert-model-parallel-size", "2", "--global-batch-size", "8", "--lr", "1e-3"),
        *("--num-epoch", "100000"),
    )
    wait_for_steps(output, 3, process)
    return process, output


def test_a_recipe_on_two_processes_trains_as_one_process_does(
    shared: Path, inputs: list[str], tmp_path: Path
) -> None:
    run = openrecipes(
        *("run", shared / "recipe.yaml", *inputs, "--steps", "4", "--output", tmp_path / "two"),
        "--json",
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["format"] == 1 and told["state"] == "done" and told["steps"] == 4
    assert "step 4/4" in run.stderr
    # A rank by itself, as torchrun starts it, prepares and closes its own record.
    alone = openrecipes(
        *("train", "--model-config", shared / "config.json", "--prompt-data"),
        *(shared / "rows.parquet", "--output", tmp_path / "one", "--lr", "1e-3", "--seed", "7"),
        *("--lr-decay-style", "constant", "--global-batch-size", "8", "--train-iters", "4"),
        RANK="0",
        WORLD_SIZE="1",
    )
    assert alone.returncode == 0, alone.stderr

    two, one = RunRecord.open(tmp_path / "two"), RunRecord.open(tmp_path / "one")
    for found, expected in zip(two.steps(), one.steps(), strict=True):
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
        assert found.expert_load == expected.expert_load
    assert one.manifest.state == "done" and one.manifest.world_size == 1

    manifest, step = two.manifest, two.steps()[1]
    assert (step.slots, step.tokens) == (8 * 48, 8 * 44)
    assert 0 < (step.supervised_tokens or 0) < 8 * 44
    assert (step.step_time_s or 0) > (step.data_time_s or 0) > 0
    assert len(step.peak_rss_bytes or []) == 2 and step.peak_memory_bytes is None
    assert manifest.world_size == 2 and manifest.layout is not None and manifest.layout["ep"] == 2
    assert manifest.flags["lr"] == 1e-3 and manifest.flags["adam-beta2"] == 0.999
    assert manifest.model.name == "Small" and manifest.model.parameters
    assert manifest.rows.rows_sha256 and manifest.rows.row_tokens == 48
    times = manifest.times
    assert times.admitted and times.started and times.first_step and times.finished
    assert times.admitted <= times.started <= times.first_step <= times.finished
    assert manifest.memory is not None and manifest.memory["optimizer"] > 0
    assert sorted(p.name for p in (tmp_path / "two" / "logs").iterdir()) == [
        "rank-0.log",
        "rank-1.log",
    ]


def test_a_rank_that_is_killed_ends_the_run_in_seconds(
    long_run: tuple[subprocess.Popen[str], Path],
) -> None:
    process, output = long_run
    ranks = children(process.pid)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    _, told = process.communicate(timeout=15)
    assert process.returncode == 1
    assert "rank 1 failed" in told and "SIGKILL" in told
    assert gone(ranks, 1)
    record = RunRecord.open(output)
    assert record.manifest.state == "failed" and record.manifest.failure is not None
    assert (record.manifest.failure.kind, record.manifest.failure.rank) == ("crash", 1)
    assert len(record.steps()) >= 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_closes_the_record(
    long_run: tuple[subprocess.Popen[str], Path], number: signal.Signals
) -> None:
    process, output = long_run
    ranks = children(process.pid)
    process.send_signal(number)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 4
    assert told.count("stopped") == 1
    assert gone(ranks, 1)
    record = RunRecord.open(output)
    assert record.manifest.state == "stopped" and record.manifest.times.finished
    assert len(record.steps()) >= 3


def test_a_launcher_that_is_killed_leaves_no_rank_and_a_closed_record(
    long_run: tuple[subprocess.Popen[str], Path], shared: Path
) -> None:
    process, output = long_run
    ranks = children(process.pid)
    process.kill()
    assert gone(ranks)
    record = RunRecord.open(output)
    failure = record.manifest.failure
    assert record.manifest.state == "failed" and record.manifest.times.finished
    assert failure is not None and (failure.kind, failure.phase) == ("crash", "launcher")
    assert len(record.steps()) >= 3
    again = one_step(shared, output, "--force")
    assert again.returncode == 0, again.stderr
    assert [step.step for step in RunRecord.open(output).steps()] == [0]


def test_a_run_that_goes_on_is_not_replaced(
    long_run: tuple[subprocess.Popen[str], Path], shared: Path
) -> None:
    process, output = long_run
    before = RunRecord.open(output).manifest.id
    second = one_step(shared, output, "--force")
    assert second.returncode == 2
    assert "a run that still goes on" in second.stderr and second.stderr.count("\n") == 1
    assert process.poll() is None
    record = RunRecord.open(output)
    assert record.manifest.id == before and record.manifest.state == "running"
    numbers = [step.step for step in record.lines()]
    assert numbers == list(range(len(numbers)))


def test_a_loss_that_is_not_finite_ends_the_run(shared: Path, tmp_path: Path) -> None:
    done = openrecipes(
        *("train", "--model-config", shared / "config.json", "--prompt-data"),
        *(shared / "rows.parquet", "--output", tmp_path / "run", "--global-batch-size", "8"),
        *("--lr", "1e18", "--lr-decay-style", "constant", "--train-iters", "8"),
    )
    assert done.returncode == 1
    assert "not finite" in done.stderr
    record = RunRecord.open(tmp_path / "run")
    failure, last = record.manifest.failure, record.steps()[-1]
    assert record.manifest.state == "failed" and failure is not None
    assert failure.kind == "nan" and failure.step == last.step < 7
    assert last.loss is None or last.grad_norm is None


def test_validation_export_and_probe(shared: Path, tmp_path: Path) -> None:
    rows = shared / "rows.parquet"
    done = openrecipes(
        *("train", "--model-config", shared / "config.json", "--prompt-data", rows),
        *("--output", tmp_path / "run", "--global-batch-size", "8", "--lr", "1e-3"),
        *("--num-epoch", "1", "--steps", "4", "--nproc-per-node", "2"),
        *("--expert-model-parallel-size", "2", "--valid-data", rows, "--eval-interval", "3"),
        *("--export-hf", tmp_path / "model", "--parity-probe-steps", "0,2", "--bf16"),
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "logs" / "validation.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3]
    assert 3 < json.loads(lines[0])["loss"] < 6
    probes = (tmp_path / "run" / "probe.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in probes] == [0, 2]
    assert RunRecord.open(tmp_path / "run").manifest.parity_probe is True
    again = openrecipes(
        *("train", "--hf-checkpoint", tmp_path / "model", "--prompt-data", rows, "--output"),
        *(tmp_path / "again", "--global-batch-size", "8", "--lr", "1e-3", "--train-iters", "1"),
    )
    assert again.returncode == 0, again.stderr
