"""`openrecipes publish` and `verify`: exit codes and the JSON contract."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from openrecipes.cli.main import run
from tests.publish.conftest import BEGUN, manifest_of, write_run

Capture = pytest.CaptureFixture[str]


def words(candidate: Path, reference: Path, output: Path) -> list[str]:
    return [
        *("publish", str(candidate), "--reference", str(reference), "--output", str(output)),
        *("--bundle", "--author-name", "T", "--author-url", "https://example.org"),
    ]


def test_publish_then_verify(
    candidate: Path, reference: Path, tmp_path: Path, capsys: Capture
) -> None:
    output = tmp_path / "r.yaml"
    assert run([*words(candidate, reference, output), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == 1 and document["status"] == "verified"
    assert document["recipe"] == str(output) and output.is_file()
    evidence = document["evidence"]
    assert run(["verify", str(output), "--evidence", evidence, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "format": 1, "ok": True, "checked": document["checked"], "differences": [],
    }  # fmt: skip


def test_a_difference_is_exit_1(
    candidate: Path, reference: Path, tmp_path: Path, capsys: Capture
) -> None:
    output = tmp_path / "r.yaml"
    run(words(candidate, reference, output))
    output.write_text(output.read_text().replace("2497.56", "2498.56"))
    capsys.readouterr()
    assert run(["verify", str(output), "--json"]) == 1
    fields = [d["field"] for d in json.loads(capsys.readouterr().out)["differences"]]
    assert "result.tokens_per_s_per_gpu" in fields
    assert run(["verify", str(output)]) == 1
    assert "2498.56" in capsys.readouterr().out


def test_numbers_that_do_not_add_up_are_exit_1(
    candidate: Path, tmp_path: Path, capsys: Capture, edit: Callable[..., None]
) -> None:
    edit(candidate, times={"admitted": BEGUN, "finished": BEGUN + timedelta(seconds=1)})
    output = tmp_path / "out" / "r.yaml"
    assert run(["publish", str(candidate), "--output", str(output)]) == 1
    assert "Nothing was written" in capsys.readouterr().err
    assert run(["publish", str(candidate), "--output", str(output), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["refused"] and document["recipe"] is None
    assert not output.exists()


def test_an_existing_output_is_exit_2(
    candidate: Path, reference: Path, tmp_path: Path, capsys: Capture
) -> None:
    output = tmp_path / "r.yaml"
    output.write_text("mine")
    assert run(words(candidate, reference, output)) == 2
    assert "--force" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert run([*words(candidate, reference, output), "--force"]) == 0


@pytest.mark.parametrize("command", [["publish", "no/run", "--output", "r.yaml"], ["verify", "no"]])
def test_what_is_not_there_is_exit_2(command: list[str], capsys: Capture) -> None:
    assert run(command) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        ("flags", {"tensor-model-parallel-size": "<script>"}, "flags.tensor-model-parallel-size"),
        ("flags", {"lr": float("nan")}, "flags.lr"),
        ("layout", {"tp": "x"}, "layout.tp"),
    ],
)
@pytest.mark.parametrize("command", ["measure", "check", "publish", "site"])
def test_a_record_with_an_impossible_value_is_exit_2_everywhere(
    candidate: Path,
    reference: Path,
    tmp_path: Path,
    capsys: Capture,
    command: str,
    place: str,
    value: dict[str, object],
    field: str,
) -> None:
    output, recipes, site = tmp_path / "p.yaml", tmp_path / "own", tmp_path / "site"
    argv = {
        "measure": ["measure", str(candidate)],
        "check": ["check", str(candidate), str(reference)],
        "publish": words(candidate, reference, output),
        "site": ["site", "build", "--recipes", str(recipes), "--output", str(site)],
    }[command]
    if command == "site":
        assert run(["publish", str(candidate), "--output", str(recipes / "r.yaml")]) == 0
        argv += ["--runs", str(tmp_path)]
    before = (candidate / "verdicts" / "check.json").read_bytes()
    file = candidate / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest[place] = {**manifest[place], **value}
    file.write_text(json.dumps(manifest))
    capsys.readouterr()
    assert run(argv) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and f"{file}: {field} - found" in told
    assert (candidate / "verdicts" / "check.json").read_bytes() == before
    assert not output.exists() and not site.exists()


@pytest.mark.parametrize("which", [0, 1])
def test_a_record_without_its_steps_is_one_line(
    candidate: Path, reference: Path, tmp_path: Path, capsys: Capture, which: int
) -> None:
    file = (candidate, reference)[which] / "steps.jsonl"
    file.unlink()
    output = tmp_path / "out" / "r.yaml"
    assert run(words(candidate, reference, output)) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {file} - ") and told.count("\n") == 1
    assert not output.parent.exists()


@pytest.mark.parametrize("usd", ["inf", "nan", "-1", "0", "1e-300", "1e300", "cheap", ""])
def test_a_price_that_is_none_is_wrong_usage(
    candidate: Path, tmp_path: Path, capsys: Capture, usd: str
) -> None:
    output = tmp_path / "out" / "r.yaml"
    for argv in (["publish", str(candidate), "--output", str(output)], ["measure", str(candidate)]):
        assert run([*argv, f"--usd-per-gpu-hour={usd}"]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "--usd-per-gpu-hour" in told
    assert not output.parent.exists()


@pytest.mark.parametrize("usd", ["0.0001", "1000000"])
def test_the_farthest_prices_give_figures(
    candidate: Path, tmp_path: Path, capsys: Capture, usd: str
) -> None:
    argv = ["publish", str(candidate), "--output", str(tmp_path / "r.yaml"), "--usd-per-gpu-hour"]
    assert run([*argv, usd]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


def test_every_pooled_run_is_finished(tmp_path: Path, capsys: Capture) -> None:
    runs = [
        write_run(tmp_path / name, manifest_of(name, ep=2, max_tokens=2048, state=state))
        for name, state in (("a", "done"), ("b", "running"))
    ]
    output = tmp_path / "out" / "r.yaml"
    assert run(["publish", *map(str, runs), "--output", str(output)]) == 2
    told = capsys.readouterr().err
    assert f"{runs[1]}: state - found running" in told
    assert not output.exists()
