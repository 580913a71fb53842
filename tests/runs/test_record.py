"""The run record: keys, appending, cut and broken lines, attempts."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openrecipes.errors import InputError
from openrecipes.flags.parse import resolve
from openrecipes.flags.table import ENGINES
from openrecipes.runs.lock import RecordLock
from openrecipes.runs.record import (
    MANIFEST,
    STEPS,
    Failure,
    Manifest,
    RecordTaken,
    RunRecord,
    RunWriter,
    Step,
    Times,
    new_run_id,
    utc_now,
)

MANIFEST_KEYS = [
    "run_version",
    "id",
    "engine",
    "launcher",
    "state",
    "argv",
    "flags",
    "env",
    "model",
    "rows",
    "layout",
    "world_size",
    "stack",
    "machine",
    "times",
    "effective",
    "profiler",
    "parity_probe",
    "memory",
    "checkpoints",
    "failure",
]
STEP_KEYS = [
    "attempt",
    "step",
    "loss",
    "grad_norm",
    "lr",
    "slots",
    "tokens",
    "supervised_tokens",
    "step_time_s",
    "data_time_s",
    "peak_memory_bytes",
    "peak_reserved_bytes",
    "peak_rss_bytes",
    "expert_load",
]


def manifest(**fields: object) -> Manifest:
    return Manifest(id=new_run_id(), engine="native", launcher="local", **fields)


def step(number: int, attempt: int = 1, **fields: object) -> Step:
    return Step(attempt=attempt, step=number, **fields)


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    return RunWriter.create(tmp_path / "run", manifest())


def read(writer: RunWriter) -> RunRecord:
    return RunRecord.open(writer.path)


def test_the_files_hold_exactly_the_keys_of_version_1(writer: RunWriter) -> None:
    writer.append(step(0, loss=1.5))
    document = json.loads((writer.path / MANIFEST).read_text())
    assert list(document) == MANIFEST_KEYS
    assert list(document["model"]) == [
        "name", "source", "revision", "config_sha256", "parameters", "active_parameters",
    ]  # fmt: skip
    assert list(document["rows"]) == [
        "path", "rows_sha256", "parquet_sha256", "row_tokens", "dataset",
    ]  # fmt: skip
    assert list(document["machine"]) == ["gpu", "count", "per_node", "hosts"]
    assert list(document["times"]) == ["admitted", "started", "first_step", "finished"]
    assert list(document["effective"]) == ["recompute", "ineffective_flags"]
    assert list(json.loads((writer.path / STEPS).read_text())) == STEP_KEYS


def test_update_rewrites_the_manifest_and_checks_it(writer: RunWriter) -> None:
    now = utc_now()
    writer.update(
        state="failed",
        world_size=2,
        times=Times(admitted=now),
        failure=Failure(kind="oom", step=3, rank=1),
    )
    kept = read(writer).manifest
    assert (kept.state, kept.world_size, kept.times.admitted) == ("failed", 2, now)
    assert kept.failure is not None and kept.failure.kind == "oom"
    text = json.loads((writer.path / MANIFEST).read_text())["times"]["admitted"]
    assert text.endswith("Z")
    with pytest.raises(ValueError, match="state"):
        writer.update(state="asleep")
    assert read(writer).manifest.state == "failed"


def test_launcher_and_rank_0_write_in_turns(writer: RunWriter) -> None:
    rank_0 = RunWriter.open(writer.path)
    rank_0.update(world_size=2)
    writer.update(state="done")
    kept = read(writer).manifest
    assert (kept.world_size, kept.state) == (2, "done")
    assert writer.manifest == kept


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_never_written(writer: RunWriter, bad: float) -> None:
    writer.append(step(0, loss=bad, grad_norm=bad, step_time_s=bad))
    writer.update(flags={"lr": bad}, memory={"weights": bad})
    for name in (MANIFEST, STEPS):
        text = (writer.path / name).read_text()
        assert "NaN" not in text and "Infinity" not in text
    assert read(writer).steps()[0].loss is None


@pytest.mark.parametrize("bad", ["NaN", "-Infinity", "1e999"])
def test_a_nan_that_another_program_wrote_is_refused(writer: RunWriter, bad: str) -> None:
    writer.append(step(0))
    writer.update(state="done")
    with (writer.path / STEPS).open("a") as stream:
        stream.write(f'{{"attempt": 1, "step": 1, "expert_load": {{"max": {bad}}}}}\n')
    with pytest.raises(InputError) as caught:
        read(writer).steps()
    assert caught.value.file == f"{writer.path / STEPS}:2"
    assert caught.value.field == "expert_load.max"


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        ("flags", {"tensor-model-parallel-size": "<script>"}, "flags.tensor-model-parallel-size"),
        ("flags", {"tensor-model-parallel-size": "2"}, "flags.tensor-model-parallel-size"),
        ("flags", {"tensor-model-parallel-size": True}, "flags.tensor-model-parallel-size"),
        ("flags", {"global-batch-size": 10**400}, "flags.global-batch-size"),
        ("flags", {"lr": math.nan}, "flags.lr"),
        ("flags", {"lr": {}}, "flags.lr"),
        ("flags", {"sequence-parallel": 1}, "flags.sequence-parallel"),
        ("flags", {"recompute-modules": [1]}, "flags.recompute-modules"),
        ("flags", {"recompute-granularity": "all"}, "flags.recompute-granularity"),
        ("flags", {"unknown": [{"a": math.inf}]}, "flags.unknown.0.a"),
        ("layout", {"tp": "x"}, "layout.tp"),
        ("layout", {"tp": 1}, "layout.pp"),
        ("memory", {"weights": math.nan}, "memory.weights"),
    ],
)
def test_a_value_that_no_run_has_is_refused(
    writer: RunWriter, place: str, value: dict[str, Any], field: str
) -> None:
    document = json.loads((writer.path / MANIFEST).read_text())
    document[place] = value
    (writer.path / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read(writer)
    assert (caught.value.file, caught.value.field) == (str(writer.path / MANIFEST), field)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engines_defaults_and_unknown_flags_are_taken(writer: RunWriter, engine: str) -> None:
    writer.update(flags={**resolve({"lr": 1}, engine), "new-flag": [{"any": "thing"}]})
    assert read(writer).manifest.flags["new-flag"] == [{"any": "thing"}]


@pytest.mark.parametrize("state", ["running", "failed", "stopped"])
@pytest.mark.parametrize("tail", ['{"attempt": 1, "st', '{"attempt": 1, "st\n', '{"attempt": 1}'])
def test_a_cut_last_line_is_tolerated_while_the_run_is_not_done(
    writer: RunWriter, state: str, tail: str
) -> None:
    writer.append(step(0))
    writer.update(state=state)
    with (writer.path / STEPS).open("a") as stream:
        stream.write(tail)
    assert [s.step for s in read(writer).steps()] == [0]


def test_a_cut_last_line_of_a_finished_run_is_an_error(writer: RunWriter) -> None:
    writer.append(step(0))
    writer.update(state="done")
    with (writer.path / STEPS).open("a") as stream:
        stream.write('{"attempt": 1, "st')
    with pytest.raises(InputError) as caught:
        read(writer).steps()
    assert caught.value.file == f"{writer.path / STEPS}:2"


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1, 2]",
        '{"attempt": 1}',
        '{"attempt": 1, "step": -1}',
        '{"attempt": 1, "step": true}',
        '{"attempt": 1, "step": "1"}',
        '{"attempt": 1, "step": 1, "unknown": 2}',
        '{"attempt": 1, "step": 1, "step_time_s": -1.0}',
        '{"attempt": 1, "step": 1, "slots": 10, "tokens": 11}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_a_broken_line_in_the_middle_is_named(writer: RunWriter, line: str) -> None:
    writer.append(step(0))
    with (writer.path / STEPS).open("ab") as stream:
        stream.write(line.encode("utf-8", "surrogateescape") + b"\n")
    writer.append(step(2))
    with pytest.raises(InputError) as caught:
        read(writer).steps()
    assert caught.value.file == f"{writer.path / STEPS}:2"


def test_a_step_recorded_twice_in_one_attempt_is_an_error(writer: RunWriter) -> None:
    writer.append(step(0))
    writer.append(step(0))
    with pytest.raises(InputError, match="step 0 of attempt 1 a second time"):
        read(writer).steps()


def test_the_highest_attempt_of_a_step_counts(writer: RunWriter) -> None:
    for number in range(4):
        writer.append(step(number, loss=1.0))
    for number in range(2, 6):
        writer.append(step(number, attempt=2, loss=2.0))
    record = read(writer)
    assert [(s.step, s.loss) for s in record.steps()] == [
        (0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0), (5, 2.0),
    ]  # fmt: skip
    assert record.attempt_starts() == {0, 2}


def test_a_resumed_writer_drops_the_cut_line_and_goes_on(writer: RunWriter) -> None:
    writer.append(step(0))
    with (writer.path / STEPS).open("a") as stream:
        stream.write('{"attempt": 1, "st')
    RunWriter.open(writer.path).append(step(1, attempt=2))
    assert [(s.attempt, s.step) for s in read(writer).steps()] == [(1, 0), (2, 1)]


def test_a_resumed_writer_keeps_a_whole_line_that_lacks_its_newline(writer: RunWriter) -> None:
    (writer.path / STEPS).write_text('{"attempt": 1, "step": 0}')
    RunWriter.open(writer.path).append(step(1, attempt=2))
    assert [s.step for s in read(writer).steps()] == [0, 1]


def test_an_existing_run_is_replaced_only_by_force(writer: RunWriter) -> None:
    writer.append(step(0))
    (writer.path / "mine.txt").write_text("kept")
    with pytest.raises(InputError, match="exists already"):
        RunWriter.create(writer.path, manifest())
    assert len(read(writer).steps()) == 1
    writer.close()
    RunWriter.create(writer.path, manifest(), force=True)
    assert read(writer).steps() == []
    assert (writer.path / "mine.txt").read_text() == "kept"


def test_a_record_that_is_being_written_is_not_replaced(writer: RunWriter) -> None:
    writer.append(step(0))
    with pytest.raises(InputError, match="a run that still goes on"):
        RunWriter.create(writer.path, manifest(), force=True)
    assert len(read(writer).steps()) == 1


def test_a_lock_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    """However it ends, and not before the process that inherited it."""
    record = tmp_path / "run"
    record.mkdir()
    hold = (
        "import os, sys, subprocess, pathlib\n"
        "from openrecipes.runs.lock import RecordLock\n"
        "lock = RecordLock(pathlib.Path(sys.argv[1]))\n"
        "heir = subprocess.Popen(['sleep', '60'], pass_fds=(lock.descriptor,))\n"
        "print(heir.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", hold, str(record)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        heir = int(holder.stdout.readline())
        holder.kill()
    with pytest.raises(InputError, match="a run that still goes on"):
        RecordLock(record)
    os.kill(heir, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while True:
        try:
            RecordLock(record).release()
            return
        except InputError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_writer_stops_when_another_run_has_its_directory(writer: RunWriter) -> None:
    shutil.rmtree(writer.path)
    other = RunWriter.create(writer.path, Manifest(id="other", engine="native", launcher="local"))
    for write in (
        lambda: writer.append(step(0)),
        lambda: writer.update(state="done"),
        lambda: RunWriter.open(writer.path, writer.manifest.id),
    ):
        with pytest.raises(RecordTaken, match="other, another run"):
            write()
    assert read(other).steps() == [] and read(other).manifest.state == "running"


def test_a_directory_that_is_no_run_record_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        RunRecord.open(tmp_path / "absent")
    with pytest.raises(InputError, match=r"no manifest\.json"):
        RunRecord.open(tmp_path)
    (tmp_path / MANIFEST).write_text('{"run_version": 2}')
    with pytest.raises(InputError, match="run_version"):
        RunRecord.open(tmp_path)
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(InputError, match="run record"):
        RunRecord.open(tmp_path)
    (tmp_path / MANIFEST).write_text('{"run_version": 1, "id": "x", "engine": "native"}')
    with pytest.raises(InputError) as caught:
        RunRecord.open(tmp_path)
    assert caught.value.field == "launcher"


def test_a_record_without_a_steps_file_is_told(writer: RunWriter) -> None:
    (writer.path / STEPS).unlink()
    with pytest.raises(InputError, match="no such file"):
        read(writer).steps()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can be written"):
        RunWriter.create(tmp_path / "file" / "run", manifest())
    with pytest.raises(InputError, match="a directory"):
        RunWriter.create(tmp_path / "file", manifest())


line = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b'{"attempt": 1, "step": 0, "loss": 1e999}',
            b'{"attempt": 1, "step": 1, "loss": -Infinity, "step_time_s": NaN}',
            b'{"attempt": 9223372036854775808, "step": 1}',
            b'{"attempt": 1, "step": 2, "expert_load": {"max": NaN}}',
            b"null",
            b"{}",
        ]
    ),
)


@given(st.lists(line, max_size=6), st.sampled_from(["running", "done"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_any_bytes_give_steps_or_one_clear_error(
    writer: RunWriter, lines: list[bytes], state: str
) -> None:
    writer.update(state=state)
    (writer.path / STEPS).write_bytes(b"\n".join(lines))
    try:
        steps = read(writer).steps()
    except InputError as error:
        assert error.file is not None and error.file.startswith(str(writer.path / STEPS))
    else:
        json.dumps([s.model_dump(mode="json") for s in steps], allow_nan=False)
