import json

import pytest

from openrecipes.cli.main import run
from openrecipes.recipe import yaml
from openrecipes.recipe.document import load, parse
from openrecipes.recipe.lint import lint

from .recipes import ALL, NANO, SUPER


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def wrong(tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text(NANO.read_text().replace("mfu: 0.153", "mfu: 0.155"))
    return file


@pytest.fixture
def warned(tmp_path):
    file = tmp_path / "warned.yaml"
    file.write_text(NANO.read_text().replace("gpu_hours: 1.2", "gpu_hours: 99"))
    return file


def document(capsys):
    out = capsys.readouterr().out
    return json.loads(out)


def test_lint_of_clean_recipes(capsys):
    assert run(["lint", "--strict", *map(str, ALL)]) == 0
    assert "4 recipes: 0 errors, 0 warnings, 3 notes" in capsys.readouterr().out


def test_lint_fails_on_an_error_and_strictly_on_a_warning(wrong, warned, capsys):
    assert run(["lint", str(NANO), str(wrong)]) == 1
    assert run(["lint", str(warned)]) == 0
    assert run(["lint", "--strict", str(warned)]) == 1
    out = capsys.readouterr().out
    assert "wrong.yaml:" in out and "error mfu: result.mfu: found 0.155" in out


def test_lint_as_json(wrong, capsys):
    assert run(["lint", str(NANO), str(wrong), "--json"]) == 1
    found = document(capsys)
    assert found["format"] == 1
    assert [one["path"] for one in found["files"]] == [str(NANO), str(wrong)]
    (finding,) = [one for one in found["files"][1]["findings"] if one["severity"] == "error"]
    assert finding == {
        "rule": "mfu",
        "severity": "error",
        "field": "result.mfu",
        "found": 0.155,
        "expected": 0.153,
        "message": finding["message"],
    }
    assert run(["lint", str(NANO), "--format", "json"]) == 0
    assert document(capsys)["files"][0]["findings"][0]["severity"] == "note"


def test_lint_as_github_annotations(wrong, capsys):
    assert run(["lint", str(wrong), "--format", "github"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::error")]
    assert ",title=mfu::result.mfu: found 0.155" in line and ",line=" in line


def test_a_schema_fault_is_a_finding_and_an_unreadable_file_is_not(tmp_path, capsys):
    file = tmp_path / "r.yaml"
    file.write_text(NANO.read_text() + "surprise: 1\n")
    assert run(["lint", str(file), "--json"]) == 1
    (finding,) = document(capsys)["files"][0]["findings"]
    assert (finding["rule"], finding["field"]) == ("schema", "surprise")


def test_a_file_that_cannot_be_read_hides_no_finding(wrong, tmp_path, capsys):
    file = tmp_path / "r.yaml"
    file.write_text("a: [")
    missing = tmp_path / "missing.yaml"
    assert run(["lint", str(file), str(wrong), str(missing), "--json"]) == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [one["path"] for one in found["files"]] == [str(wrong)]
    assert "mfu" in [one["rule"] for one in found["files"][0]["findings"]]
    assert set(found["error"]) == {"file", "field", "found", "expected", "action"}
    assert [line.split(" - ")[0] for line in err.splitlines()] == [
        f"error: {file}:1", f"error: {missing}",
    ]  # fmt: skip
    assert run(["lint", str(file), str(wrong)]) == 2
    assert "1 recipe: 1 error, 0 warnings, 1 note; 1 file cannot be read" in capsys.readouterr().out
    assert run(["lint", str(file)]) == 2
    assert capsys.readouterr().out == ""


def test_every_other_command_refuses_a_recipe_that_is_none(tmp_path, capsys):
    file = tmp_path / "r.yaml"
    file.write_text(NANO.read_text() + "surprise: 1\n")
    for argv in (["show", str(file), "--json"], ["compare", str(file), str(NANO), "--json"]):
        assert run(argv) == 2
        assert document(capsys)["error"]["field"] == "surprise"


def test_nan_in_a_recipe_is_still_json(tmp_path, capsys):
    file = tmp_path / "r.yaml"
    file.write_text(NANO.read_text().replace("mfu: 0.153", "mfu: .nan"))
    assert run(["lint", str(file), "--json"]) == 1
    assert document(capsys)["files"][0]["findings"][0]["found"] == "nan"


@pytest.mark.parametrize("command", ["lint", "show", "compare", "migrate", "import", "doctor"])
def test_keys_that_are_no_numbers_are_told_as_json(command, tmp_path, capsys):
    file = tmp_path / "r.yaml"
    file.write_text(NANO.read_text().replace("\nenv:\n", "\nenv:\n  .nan: efa\n  -.inf: x\n"))
    files = [str(file)] * (2 if command == "compare" else 1)
    assert run([command, *files, "--json"]) == (1 if command == "lint" else 2)
    told = document(capsys)
    faults = [told["error"]] if "error" in told else told["files"][0]["findings"]
    assert faults[0]["field"] == "env.nan" and faults[0]["found"] == "nan"


@pytest.mark.parametrize("engine", ["native", "miles", "automodel"])
@pytest.mark.parametrize(
    "model, gpu, gpus",
    [
        ("Nemotron-3-Nano-30B-A3B", "H200", 8),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "H100", 64),
        ("Nemotron-3-Nano-30B-A3B", "CPU", 2),
    ],
)
def test_a_new_recipe_lints(engine, model, gpu, gpus, tmp_path):
    output = tmp_path / "new.yaml"
    argv = ["new", "--model", model, "--gpu", gpu, "--gpus", str(gpus), "--engine", engine]
    assert run([*argv, "--output", str(output)]) == 0
    assert [found for found in lint(output) if found.severity != "note"] == []
    assert "\n# yaml-language-server: $schema=schema/recipe.schema.yaml\n" in output.read_text()
    recipe = load(output).recipe
    assert (recipe.status, recipe.engine, recipe.gpu.count) == ("planned", engine, gpus)
    assert run([*argv, "--output", str(output)]) == 2  # it exists
    assert run([*argv, "--output", str(output), "--force"]) == 0


def test_a_native_job_of_several_machines_names_the_first(tmp_path):
    output = tmp_path / "new.yaml"
    argv = ["new", "--model", "Nemotron-3-Nano-30B-A3B", "--gpus", "16", "--output", str(output)]
    assert run(argv) == 0
    recipe = load(output).recipe
    assert '"$MASTER"' in recipe.run and "MASTER" in recipe.inputs
    assert lint(output) == []


def test_new_for_a_users_own_checkpoint(tmp_path, capsys):
    from openrecipes.architectures import configs

    folder = tmp_path / "my-model"
    folder.mkdir()
    config = configs.find("Nemotron-3-Nano-30B-A3B").config()
    argv = ["new", "--hf-checkpoint", str(folder), "--gpus", "8", "--json"]
    names = {None: "my-model", "org/Better-7B": "Better-7B", "/data/own/": "own", "./": "my-model",
             "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "Nemotron-3-Nano-30B-A3B"}  # fmt: skip
    for given, name in names.items():
        (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": given}))
        assert run(argv) == 0
        assert document(capsys)["recipe"]["model"] == name


def test_new_with_rows(tmp_path, capsys):
    import numpy as np

    from openrecipes.rows.parquet import Row, RowsWriter

    rows = tmp_path / "rows.parquet"
    with RowsWriter(rows, 256) as writer:
        mask = np.ones(256, np.uint8)
        mask[0] = 0
        lengths = np.array([256], np.int32)
        for _ in range(100):
            writer.write(Row(np.arange(256, dtype=np.int32), mask, lengths))
    block = {"name": "mine", "rows_sha256": None, "build": {"rows": 100, "row_tokens": 256}}
    (tmp_path / "rows.parquet.build.json").write_text(json.dumps(block))
    output = tmp_path / "new.yaml"
    argv = ["new", "--model", "Nemotron-3-Nano-30B-A3B", "--rows", str(rows), "--gpus", "8"]
    assert run([*argv, "--global-batch", "32", "--output", str(output), "--json"]) == 0
    recipe = document(capsys)["recipe"]
    workload = recipe["workload"]
    assert workload["row_tokens"] == 256 and workload["dataset"]["name"] == "mine"
    assert recipe["arguments"]["train-iters"] == "3"  # 100 rows give no more
    assert lint(output) == []
    assert run([*argv, "--global-batch", "8", "--json"]) == 0
    assert document(capsys)["recipe"]["arguments"]["train-iters"] == "12"
    for more in (["--global-batch", "128"], ["--global-batch", "32", "--steps", "4"]):
        assert run([*argv, *more]) == 2
        assert "--rows - found 100 rows, expected at least 128" in capsys.readouterr().err
    assert run([*argv[:-3], str(tmp_path / "none.parquet")]) == 2


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--model", "Qwen3-30B-A3B"], "Nemotron-3-Nano-30B-A3B"),
        (["--model", "unheard"], "Nemotron-3-Super-120B-A12B"),
        (["--model", "Nemotron-3-Ultra-550B-A55B", "--engine", "miles"], "native"),
        (["--model", "Nemotron-3-Nano-30B-A3B", "--gpu", "TPU"], "H200"),
        (["--model", "Nemotron-3-Nano-30B-A3B", "--gpus", "12"], "multiple of 8"),
        (
            ["--model", "Nemotron-3-Nano-30B-A3B", "--global-batch", "7", "--engine", "automodel"],
            "--global-batch",
        ),
        ([], "--hf-checkpoint"),
        (["--hf-checkpoint", "missing"], "config.json"),
    ],
)
def test_new_refuses_what_nothing_can_run(argv, words, capsys):
    assert run(["new", *argv]) == 2
    assert words in capsys.readouterr().err


def test_a_checkpoint_of_another_kind_is_refused_with_the_list(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert run(["new", "--hf-checkpoint", str(tmp_path)]) == 2
    assert "Nemotron-3-Nano-30B-A3B" in capsys.readouterr().err


@pytest.mark.parametrize("path", ALL)
def test_import_moves_flags_into_arguments(path, tmp_path):
    output = tmp_path / "imported.yaml"
    assert run(["import", str(path), "--output", str(output)]) == 0
    recipe = load(output).recipe
    assert recipe.arguments["lr"] == "1e-5" and "HF_CKPT" in recipe.inputs
    lines = output.read_text().splitlines()
    assert lines[:2] == path.read_text().splitlines()[:2]
    assert lines[2] == "# yaml-language-server: $schema=../../../schema/recipe.schema.yaml"
    again = tmp_path / "again.yaml"
    assert run(["import", str(output), "--output", str(again)]) == 0
    assert again.read_text() == output.read_text()


@pytest.mark.parametrize("path", [NANO, SUPER])
def test_a_bare_launch_script_becomes_a_planned_recipe(path, tmp_path):
    original = load(path).recipe
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\nset -e\n" + original.run)
    output = tmp_path / "imported.yaml"
    argv = ["import", str(script), "--row-tokens", "8192", "--output", str(output)]
    assert run(argv) == 0
    recipe = load(output).recipe
    assert (recipe.model, recipe.status) == (original.model, "planned")
    assert (recipe.gpu.count, recipe.engine) == (original.gpu.count, "miles")
    assert recipe.env == original.env
    for axis in ("tp", "pp", "cp", "ep", "etp", "dp", "sequence_parallel", "rows_per_microbatch"):
        assert getattr(recipe.layout, axis) == getattr(original.layout, axis)
    assert [found for found in lint(output) if found.severity != "note"] == []


def test_what_a_script_does_beside_is_left_out_and_told(tmp_path, capsys):
    script = tmp_path / "run.sh"
    run_ = load(NANO).recipe.run.replace("python3 train.py", "cd /tmp && python3 -O x/train.py")
    script.write_text(f"#!/bin/bash\nset -e\n{run_.rstrip()} --lr 2 2>&1 | tee log\nrm -rf /\n")
    assert run(["import", str(script), "--row-tokens", "8192"]) == 0
    out, err = capsys.readouterr()
    assert "rm -rf" not in out and "tee" not in out
    assert [line.removeprefix(f"{script}: ") for line in err.splitlines()] == [
        "left out: set -e",
        "left out: cd /tmp &&",
        "left out: 2>&1",
        "left out: |",
        "left out: tee log",
        "left out: rm -rf /",
        "started by python3 train.py instead of python3 -O x/train.py",
        "--lr stands twice: the last one counts",
    ]
    script.write_text(load(NANO).recipe.run)
    assert run(["import", str(script), "--row-tokens", "8192"]) == 0
    assert capsys.readouterr().err == ""


def test_a_torchrun_script_of_our_own(tmp_path, capsys):
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nnodes 2 --nproc-per-node 4 -m openrecipes train --bf16 --seq-length 4096 \\\n"
        "  --global-batch-size 64 --expert-model-parallel-size 4 --lr 1e-4 --train-iters 9\n"
    )
    argv = ["import", str(script), "--model", "Nemotron-3-Nano-30B-A3B", "--json"]
    assert run(argv) == 0
    recipe = document(capsys)["recipe"]
    assert recipe["gpu"]["count"] == 8 and recipe["workload"]["row_tokens"] == 4096
    assert recipe["workload"]["precision"] == "bf16" and recipe["layout"]["dp"] == 8
    assert recipe["stack"] == {"engine": "native"}


@pytest.mark.parametrize(
    "text, words",
    [
        ("hello", "launch script"),
        ("python3 train.py --lr 1", "--model"),
        ("layout: [", "YAML"),
        ("x.py --hf-checkpoint a/nemotron-3-nano-30b-a3b --lr 1", "--nproc-per-node"),
    ],
)
def test_import_refuses_what_it_cannot_read(text, words, tmp_path, capsys):
    file = tmp_path / "f"
    file.write_text(text)
    assert run(["import", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_migrate_numbers_a_document_without_version(tmp_path, capsys):
    old = tmp_path / "old.yaml"
    old.write_text(NANO.read_text().replace("schema_version: 1\n", ""))
    new = tmp_path / "new.yaml"
    assert run(["migrate", str(old), "--output", str(new), "--json"]) == 0
    found = document(capsys)
    assert (found["from"], found["to"], found["changed"]) == (0, 1, True)
    assert yaml.plain(yaml.parse(new.read_text())) == yaml.plain(yaml.parse(NANO.read_text()))
    assert parse(new.read_text()).recipe == load(NANO).recipe


def test_migrate_leaves_a_current_document_alone(capsys):
    assert run(["migrate", str(NANO)]) == 0
    assert capsys.readouterr().out == NANO.read_text()


def test_migrate_refuses_a_later_version(tmp_path, capsys):
    later = tmp_path / "later.yaml"
    later.write_text(NANO.read_text().replace("schema_version: 1", "schema_version: 2"))
    assert run(["migrate", str(later)]) == 2
    assert "update OpenRecipes" in capsys.readouterr().err


def test_schema_is_printed(capsys):
    assert run(["schema"]) == 0
    assert "$schema: https://json-schema.org" in capsys.readouterr().out
    assert run(["schema", "--json"]) == 0
    assert document(capsys)["schema"]["properties"]["layout"]
