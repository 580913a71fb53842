"""Wrong input: one line, exit 2, nothing written, no process started."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import typer

from openrecipes.cli.main import run
from openrecipes.cli.train import end
from openrecipes.errors import ExitCode, InputError
from openrecipes.runs.record import RunRecord
from tests.launch.conftest import CONFIG, RECIPE, write_rows


@pytest.fixture
def base(shared: Path, tmp_path: Path) -> list[str]:
    """A `train` command that would work."""
    return [
        *("train", "--output", str(tmp_path / "run"), "--lr", "1e-3", "--train-iters", "4"),
        *("--model-config", str(shared / "config.json"), "--global-batch-size", "8"),
        *("--prompt-data", str(shared / "rows.parquet")),
    ]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--prompt-data", "missing.parquet"], "no such file"),
        (["--prompt-data", "{config}"], "expected a parquet file"),
        (["--train-iters", "9"], "expected >= 72 (9 steps of 8 rows)"),
        (["--train-iters", "9", "--num-epoch", "1"], "64 in 1 epochs"),
        (["--train-iters", "0"], "expected a whole number >= 1"),
        (["--train-iters", "１２"], "expected a whole number"),
        (["--distributed-timeout-minutes", "9" * 20], "expected a whole number <= 527040"),
        (["--seed", "9" * 20], "expected a whole number <="),
        (["--num-epoch", "9" * 20, "--steps", "1"], "expected a whole number <="),
        (["--num-rollout", "3", "--rollout-batch-size", "4", "--steps", "0"], "--steps"),
        (["--global-batch-size", "0"], "--global-batch-size"),
        (["--lr", "fast"], "--lr - found fast"),
        (["--lr", "-1"], "expected a number >= 0"),
        (["--min-lr", "1"], "at most the learning rate"),
        (["--lr-warmup-fraction", "1.0"], "< 1"),
        (["--lr-warmup-iters", "4"], "fewer than the 4 decay steps"),
        (["--lr-warmup-iters", "1", "--lr-warmup-fraction", "0.1"], "not together"),
        (["--adam-beta1", "1.0"], "< 1"),
        (["--use-dynamic-batch-size"], "--max-tokens-per-gpu"),
        (["--eval-interval", "2"], "--valid-data"),
        (["--parity-probe-steps", "0,4"], "step numbers 0 to 3"),
        (["--parity-probe-steps", "０"], "step numbers 0 to 3"),
        (["--hf-checkpoint", "model"], "--model-config"),
        (["--attention-dropout", "0.1"], "no dropout"),
        (["--tensor-model-parallel-size", "3"], "tensor-model-parallel-size"),
        (["--expert-model-parallel-size", "2"], "expert-world-divides"),
        (["--nproc-per-node", "3"], "3"),
        (["--nproc-per-node", "16"], "16"),
        (["--learning-rate", "1"], "unknown flag"),
        (["--micro-batch-size", "3", "--nproc-per-node", "2"], "3"),
    ],
)
def test_train_refuses(
    base: list[str],
    more: list[str],
    told: str,
    shared: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = [word.replace("{config}", str(shared / "config.json")) for word in more]
    assert run([*base, *words]) == 2
    error = capfd.readouterr().err
    assert told in error and error.count("\n") == 1, error
    assert not (tmp_path / "run").exists()


def test_tokens_above_the_models_vocabulary(
    base: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = write_rows(tmp_path / "wide.parquet", 32, vocabulary=200)
    assert run([*base, "--prompt-data", str(rows)]) == 2
    assert "expected 0 to 95, the model's vocabulary" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_later_global_batch_without_a_target(
    base: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = write_rows(tmp_path / "rows.parquet", 16, without_target=range(8, 16))
    size = ["--global-batch-size", "8", "--train-iters", "2"]
    assert run([*base, "--prompt-data", str(rows), *size]) == 2
    assert "rows 8 to 15" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_model_that_the_engine_does_not_know(
    base: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, "model_type": "llama"}))
    assert run([*base, "--model-config", str(config)]) == 2
    assert f"{config}: model_type" in capfd.readouterr().err


def test_an_export_that_no_dtype_is_known_for(
    base: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, "dtype": "float16"}))
    assert run([*base, "--model-config", str(config), "--export-hf", str(tmp_path / "out")]) == 2
    assert "dtype - found float16" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_existing_run_is_kept(
    base: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    assert run(base) == 2
    assert "exists already" in capfd.readouterr().err
    assert (tmp_path / "run" / "manifest.json").read_text() == "{}"


def test_a_build_report_of_other_rows(
    base: list[str], shared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = write_rows(tmp_path / "rows.parquet", 32)
    report = tmp_path / "rows.parquet.build.json"
    report.write_text(json.dumps({"rows_sha256": "0" * 64, "build": {}}))
    assert run([*base, "--prompt-data", str(rows)]) == 2
    assert "rows_sha256" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        (("ep: 2", "ep: 3"), [], "ep"),
        (("row_tokens: 48", "row_tokens: 1024"), [], "row_tokens"),
        (("type: CPU", "type: H200"), [], "GPUs on this machine"),
        (("engine: native", "engine: miles"), [], "--engine"),
        (("seed: '7'", "lr-decay-style: WSD"), [], "duplicate"),
        (("seed: '7'", "save: '$NOT_SET_ANYWHERE'"), [], "--save"),
        (("seed: '7'}", "seed: '7'}\nenv: {A: $NOT_SET_ANYWHERE}"), [], "NOT_SET_ANYWHERE"),
        (("", ""), ["--launcher", "ray"], "--launcher"),
        (("", ""), ["--engine", "automodel"], "--engine"),
    ],
)
def test_run_refuses(
    change: tuple[str, str],
    options: list[str],
    told: str,
    inputs: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace(*change) if change[0] else RECIPE)
    output = tmp_path / "run"
    words = ["run", str(recipe), *inputs, "--steps", "2", "--output", str(output), *options]
    assert run(words) == 2
    error = capfd.readouterr().err
    assert told in error and error.count("\n") == 1, error
    assert not output.exists()


def test_a_refusal_as_json(
    base: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*base, "--prompt-data", "missing.parquet", "--json"]) == 2
    told = json.loads(capfd.readouterr().out)
    assert told["format"] == 1 and told["error"]["file"] == "missing.parquet"


def test_dry_run_shows_the_command_and_writes_nothing(
    shared: Path, inputs: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    words = ["run", str(shared / "recipe.yaml"), *inputs, "--output", str(output)]
    assert run([*words, "--steps", "2", "--dry-run"]) == 0
    text = capfd.readouterr().out
    assert text.startswith("openrecipes train ") and "--nproc-per-node 2" in text
    assert "--expert-model-parallel-size 2" in text and "--steps 2" in text
    assert run([*words, "--steps", "2", "--dry-run", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["world_size"] == 2 and told["layout"]["ep"] == 2 and told["flags"]["steps"] == 2
    assert not output.exists()


def test_rows_longer_than_a_micro_batchs_tokens_are_told_once(
    inputs: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, output = tmp_path / "recipe.yaml", tmp_path / "run"
    fewer = ("max_tokens_per_gpu: 96,\n  rows_per_microbatch: 2", "max_tokens_per_gpu: 5")
    assert fewer[0] in RECIPE
    recipe.write_text(RECIPE.replace(*fewer))
    words = ["run", str(recipe), *inputs, "--output", str(output), "--steps", "2", "--dry-run"]
    assert run([*words, "--json"]) == 0
    out, err = capfd.readouterr()
    layout = json.loads(out)["layout"]
    assert (layout["max_tokens_per_gpu"], layout["rows_per_microbatch"]) == (5, 1)
    assert err.count("\n") == 1 and err.startswith("note: --max-tokens-per-gpu 5 is less than")
    recipe.write_text(RECIPE)
    assert run([*words, "--json"]) == 0
    assert capfd.readouterr().err == ""


def test_an_interrupted_start_is_a_stop(
    base: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("openrecipes.launch.local.Ranks", interrupt)
    assert run(base) == 4
    assert capfd.readouterr().err.count("stopped") == 1
    assert RunRecord.open(tmp_path / "run").manifest.state == "stopped"


def test_a_ctrl_c_after_a_stop_says_nothing_more(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(typer.Exit) as ended:
            end(ExitCode.STOPPED, tmp_path, as_json=False)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.exit_code == 4


@pytest.mark.parametrize(
    ("change", "flags", "told"),
    [
        ({"num_key_value_heads": 1, "hybrid_override_pattern": "M**M"}, [], "shared head"),
        ({}, ["--sequence-parallel", "--recompute-granularity", "selective"], "layernorm"),
    ],
    ids=["one key-value head", "layernorm"],
)
def test_layouts_with_known_faults_are_refused(
    change: dict[str, object], flags: list[str], told: str
) -> None:
    from openrecipes.architectures.nemotron_h import NemotronHConfig
    from openrecipes.engine.job import _refuse_known_faults
    from openrecipes.layouts.layout import Layout

    given = {**CONFIG, **change}
    if "hybrid_override_pattern" in change:
        given["num_hidden_layers"] = 4
    config = NemotronHConfig.from_hf(given)
    layout = Layout.from_flags(
        {
            "tensor-model-parallel-size": 2,
            "sequence-parallel": bool(flags),
            "recompute-granularity": "selective" if flags else None,
            "recompute-modules": ["layernorm"] if flags else None,
        },
        2,
        row_tokens=64,
        layers=config.num_hidden_layers,
    )
    with pytest.raises(InputError, match=told):
        _refuse_known_faults(layout, config)
