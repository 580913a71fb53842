"""The command that a published recipe shows: pasted into a shell, it trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrecipes.cli.main import run as main
from openrecipes.publish.options import Options
from openrecipes.publish.publish import publish
from openrecipes.runs.record import RunRecord, RunWriter
from tests.launch.conftest import CONFIG, ROW_TOKENS, write_rows
from tests.publish.conftest import manifest_of, write_run


@pytest.fixture
def command(tmp_path: Path) -> str:
    """`run` of a recipe for two steps on two processes."""
    run = write_run(tmp_path / "measured", manifest_of("m-1", ep=2, max_tokens=96))
    manifest = RunRecord.open(run).manifest
    assert manifest.layout is not None
    RunWriter(run, manifest).update(
        flags={**manifest.flags, "train-iters": 2},
        rows={"row_tokens": ROW_TOKENS},
        layout={**manifest.layout, "rows_per_microbatch": 2},
    )
    lines = (run / "steps.jsonl").read_text().replace("8192", str(8 * ROW_TOKENS))
    (run / "steps.jsonl").write_text(lines.replace("4096", "90"))
    # Not written: lint sees that a run of 20 steps is no run of 2.
    text = publish([run], tmp_path / "r.yaml", options=Options(window="1:3")).recipe.run
    assert text is not None
    return text


def pasted(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_published_command_trains_where_it_is_pasted(command: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_rows(tmp_path / "rows.parquet", 16)
    inputs = {"MODEL_CONFIG": "config.json", "SFT_DATA": "rows.parquet"}
    ran = pasted(command, tmp_path, **inputs, RUN="out/run")
    assert ran.returncode == 0, ran.stderr
    record = RunRecord.open(tmp_path / "out" / "run")
    assert record.manifest.state == "done" and len(record.steps()) == 2
    assert record.manifest.layout is not None and record.manifest.layout["ep"] == 2


def test_a_place_that_is_not_set_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--output", "", "--model-config", "c", "--prompt-data", "r"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "--output" in told
    assert list(tmp_path.iterdir()) == []
