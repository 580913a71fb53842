"""The commands of the figures: one JSON document, exit codes, errors without a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest

from openrecipes.cli.main import run
from tests.runs.records import make_run

Capture = pytest.CaptureFixture[str]


def json_of(capsys: Capture) -> dict[str, object]:
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == 1
    return dict(document)


def test_measure_prints_the_result_block(tmp_path: Path, capsys: Capture) -> None:
    path = make_run(tmp_path / "run").path
    assert run(["measure", str(path), "--window", "5:19", "--json"]) == 0
    result = json_of(capsys)["result"]
    assert isinstance(result, dict)
    assert result["window"] == [5, 19] and result["measured"] == "2026-10-15"


def test_measure_tells_people_too(tmp_path: Path, capsys: Capture) -> None:
    path = make_run(tmp_path / "run").path
    assert run(["measure", str(path)]) == 0
    told = capsys.readouterr().out
    assert "15.3%" in told and "0.28" in told and "15,728,640 tokens" in told


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_an_unfinished_run_is_measured_and_told(
    tmp_path: Path, capsys: Capture, state: str
) -> None:
    path = make_run(tmp_path / "run", steps=range(9), state=state).path
    told = f"{path} is not finished: its state is {state}, 9 steps are recorded so far"
    assert run(["measure", str(path)]) == 0
    shown = capsys.readouterr()
    assert "Tokens/s per GPU" in shown.out and shown.err == told + "\n"
    assert run(["measure", str(path), "--json"]) == 0
    document = json_of(capsys)
    assert document["notes"] == [told] and document["result"]


def test_a_finished_run_has_no_note(tmp_path: Path, capsys: Capture) -> None:
    assert run(["measure", str(make_run(tmp_path / "run").path), "--json"]) == 0
    assert json_of(capsys)["notes"] == []


@pytest.mark.parametrize(
    ("fields", "seconds", "why"),
    [
        ({"profiler": True}, 1.0, "the profiler was on"),
        ({"parity_probe": True}, 1.0, "the parity probe was on"),
        ({"flags": {}, "rows": {}, "step_fields": {"slots": 9, "tokens": 9,
          "supervised_tokens": 1}}, 1e4, "it rounds to nothing"),
    ],
)  # fmt: skip
def test_an_unknown_rate_has_its_own_reason(
    tmp_path: Path, capsys: Capture, fields: dict[str, Any], seconds: float, why: str
) -> None:
    path = make_run(tmp_path / "run", seconds=lambda step: seconds, **fields).path
    assert run(["measure", str(path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.split("  ", 1)[1].strip() == f"unknown: {why}"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--window", "19:5"], "--window"),
        (["--window", "0:19"], "--window"),
        (["--window", "5:25"], "--window"),
    ],
)
def test_a_wrong_window_is_exit_2(
    tmp_path: Path, capsys: Capture, words: list[str], field: str
) -> None:
    path = make_run(tmp_path / "run").path
    assert run(["measure", str(path), *words, "--json"]) == 2
    error = json_of(capsys)["error"]
    assert isinstance(error, dict) and error["field"] == field


def test_a_failed_run_is_exit_2(tmp_path: Path, capsys: Capture) -> None:
    path = make_run(tmp_path / "run", state="failed", failure={"kind": "oom", "step": 2}).path
    assert run(["measure", str(path)]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1 and "oom at step 2" in err


def test_a_negative_price_is_a_usage_error(tmp_path: Path, capsys: Capture) -> None:
    path = make_run(tmp_path / "run").path
    assert run(["measure", str(path), "--usd-per-gpu-hour", "-1"]) == 2


def test_stack_prints_one_document(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_SECRET", "do not show")
    assert run(["stack", "--json"]) == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert document["env"]["NCCL_DEBUG"] == "INFO"
    assert "MY_SECRET" in document["env_names"] and "do not show" not in text


def test_stack_tells_people_too(capsys: Capture) -> None:
    assert run(["stack"]) == 0
    assert "python" in capsys.readouterr().out
