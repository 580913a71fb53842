"""From runs to a recipe: what it holds, when it is verified, when nothing is written."""

import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from openrecipes.errors import InputError
from openrecipes.gate.check import check
from openrecipes.publish.options import Options, Price
from openrecipes.publish.publish import Published, publish
from openrecipes.publish.verify import verify
from openrecipes.recipe.document import load
from openrecipes.recipe.flags import recipe_flags
from openrecipes.recipe.lint import lint
from openrecipes.runs.record import RunRecord
from tests.publish.conftest import ADDRESS, BEGUN, HOST, USER, manifest_of, write_run

Edit = Callable[..., None]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out" / "r.yaml"


def test_a_checked_run_becomes_a_verified_recipe(
    candidate: Path, reference: Path, output: Path
) -> None:
    done = publish([candidate], output, reference=reference, options=Options(author_name="T"))
    assert not done.refused and done.notes == ()
    recipe = load(output).recipe
    assert recipe == done.recipe
    assert recipe.status == "verified"
    assert recipe.layout.label == "TP1 PP1 EP2 DP2"
    assert recipe.result is not None and recipe.result.tokens_per_s_per_gpu == 2497.56
    assert recipe.result.mfu is None and recipe.result.mfu_note
    assert recipe.correctness is not None and recipe.correctness.result == "pass"
    assert recipe.correctness.convergence is not None
    assert recipe.correctness.convergence.reference_run == "ref-1"
    assert recipe.workload.dataset is not None
    assert recipe.workload.dataset.rows_sha256 == "a1b2" * 16


def test_the_recipe_lints_without_error_or_warning(
    candidate: Path, reference: Path, output: Path
) -> None:
    publish([candidate], output, reference=reference)
    assert [f for f in lint(output) if f.severity != "note"] == []


def test_the_recipes_flags_are_the_runs(candidate: Path, reference: Path, output: Path) -> None:
    done = publish([candidate], output, reference=reference)
    run = manifest_of("x", ep=2, max_tokens=2048).flags
    flags = recipe_flags(done.recipe)
    for name, value in flags.items():
        if name not in ("model-config", "prompt-data", "output", "bf16"):
            assert run[name] == value, name
    assert flags["model-config"] == "$MODEL_CONFIG"
    assert flags["lr"] == 2e-3 and flags["train-iters"] == 20
    assert set(done.recipe.inputs or {}) == {"MODEL_CONFIG", "SFT_DATA", "RUN"}


def test_places_on_one_machine_are_no_part_of_the_environment(
    candidate: Path, reference: Path, output: Path
) -> None:
    done = publish([candidate], output, reference=reference)
    assert done.recipe.env == {"OMP_NUM_THREADS": "1"}


def test_without_a_check_it_is_measured(reference: Path, output: Path) -> None:
    done = publish([reference], output)
    assert done.recipe.status == "measured"
    assert done.recipe.correctness is None
    assert "openrecipes check" in done.notes[0]


def test_without_the_reference_it_is_measured(candidate: Path, output: Path) -> None:
    done = publish([candidate], output)
    assert done.recipe.status == "measured"
    assert "--reference" in done.notes[0]


@pytest.mark.parametrize("which", ["candidate", "reference"])
@pytest.mark.parametrize("file", ["manifest.json", "steps.jsonl"])
def test_a_verdict_on_other_bytes_does_not_count(
    candidate: Path, reference: Path, output: Path, which: str, file: str
) -> None:
    changed = (candidate if which == "candidate" else reference) / file
    changed.write_text(changed.read_text() + "\n")
    done = publish([candidate], output, reference=reference)
    assert done.recipe.status == "measured"
    assert done.recipe.correctness is None
    assert which in done.notes[0]


def test_a_failed_check_is_published_as_what_it_is(
    tmp_path: Path, reference: Path, output: Path
) -> None:
    run = write_run(tmp_path / "bad", manifest_of("bad", ep=2, max_tokens=2048), noise=2.0)
    assert check(run, reference).verdict == "fail"
    done = publish([run], output, reference=reference)
    assert done.recipe.status == "measured"
    assert done.recipe.correctness is not None and done.recipe.correctness.result == "fail"
    assert "fail" in done.notes[0]


def test_a_broken_verdict_is_told(candidate: Path, reference: Path, output: Path) -> None:
    (candidate / "verdicts" / "check.json").write_text("[]")
    with pytest.raises(InputError, match="no verdict"):
        publish([candidate], output, reference=reference)


def test_numbers_that_do_not_add_up_are_not_published(
    candidate: Path, edit: Edit, output: Path
) -> None:
    edit(candidate, times={"admitted": BEGUN, "finished": BEGUN + timedelta(seconds=1)})
    done = publish([candidate], output, bundle=True)
    assert done.refused
    assert any(f["field"] == "result.gpu_hours" for f in done.findings)
    assert not output.exists() and list(output.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"state": "failed", "failure": {"kind": "oom"}}, "state"),
        ({"state": "running"}, "state"),
        ({"state": "stopped"}, "state"),
        ({"profiler": True}, "profiler"),
        ({"parity_probe": True}, "parity_probe"),
        ({"stack": {"python": "3.11"}}, "stack.pytorch"),
        ({"model": {}}, "model.name"),
        ({"machine": {}}, "machine.gpu"),
        ({"rows": {"rows_sha256": "ab" * 32}}, "rows.row_tokens"),
        ({"layout": {"tp": 0}}, "layout"),
    ],
)
def test_what_cannot_be_published_is_told(
    candidate: Path, edit: Edit, output: Path, fields: dict[str, Any], field: str
) -> None:
    edit(candidate, **fields)
    with pytest.raises(InputError) as caught:
        publish([candidate], output, bundle=True)
    assert caught.value.field is not None and caught.value.field.startswith(field)
    assert not output.exists()
    assert not output.parent.exists() or list(output.parent.iterdir()) == []


def test_an_existing_recipe_is_replaced_only_by_force(candidate: Path, output: Path) -> None:
    publish([candidate], output, bundle=True)
    with pytest.raises(InputError, match="exists already"):
        publish([candidate], output, bundle=True)
    before = output.read_text()
    done = publish([candidate], output, options=Options(author_name="N"), bundle=True, force=True)
    assert output.read_text() != before
    assert done.evidence is not None and (done.evidence / "SHA256SUMS").is_file()


def test_a_foreign_folder_is_never_replaced(candidate: Path, output: Path) -> None:
    foreign = output.with_suffix(".evidence")
    foreign.mkdir(parents=True)
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="move it away"):
        publish([candidate], output, bundle=True, force=True)
    assert (foreign / "thesis.txt").read_text() == "years of work"


def published(candidate: Path, reference: Path, output: Path) -> Published:
    return publish(
        [candidate], output, reference=reference, options=Options(author_name="T"), bundle=True
    )


def test_nothing_of_the_machine_or_its_user_is_published(
    candidate: Path, reference: Path, output: Path
) -> None:
    done = published(candidate, reference, output)
    assert done.evidence is not None
    files = [output, *(path for path in done.evidence.rglob("*") if path.is_file())]
    assert len(files) > 8
    for file in files:
        text = file.read_text()
        for secret in (HOST, USER, ADDRESS, "/home/", "hf_abcdef"):
            assert secret not in text, f"{secret} in {file.name}"


def test_no_path_of_the_machine_is_published(
    tmp_path: Path, reference: Path, output: Path, edit: Edit
) -> None:
    place = "/scratch/project"
    run = write_run(tmp_path / "run", manifest_of("cand-1", ep=2, max_tokens=2048), noise=1e-6)
    manifest = RunRecord.open(run).manifest
    for record in (run, reference):
        edit(
            record,
            argv=[f"{place}/src/openrecipes/__main__.py", "run", f"--rows={place}/rows.parquet"],
            flags={**manifest.flags, "prompt-data": f"{place}/rows.parquet"},
            rows={**manifest.rows.model_dump(), "path": f"{place}/rows.parquet"},
            model={**manifest.model.model_dump(), "source": f"{place}/model"},
        )
    edit(reference, flags={**manifest.flags, "expert-model-parallel-size": 1})
    replicate = write_run(tmp_path / "again", manifest_of("again", ep=1, max_tokens=1024))
    other = RunRecord.open(reference).manifest
    edit(replicate, flags={**other.flags, "row-order-seed": 1}, rows=other.rows, model=other.model)
    check(run, reference, [replicate])
    done = published(run, reference, output)
    assert done.evidence is not None and done.recipe.correctness is not None
    for file in (output, *(path for path in done.evidence.rglob("*") if path.is_file())):
        assert place not in file.read_text(), file
        assert str(tmp_path) not in file.read_text(), file
    argv = RunRecord.open(done.evidence / "candidate").manifest.argv
    assert argv == ["openrecipes", "run", "--rows=rows.parquet"]
    assert verify(output).ok


def test_sha256sum_accepts_the_sums(candidate: Path, reference: Path, output: Path) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not installed")
    done = published(candidate, reference, output)
    ran = subprocess.run(
        ["sha256sum", "--strict", "-c", "SHA256SUMS"],
        cwd=done.evidence,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_steps_are_copied_byte_by_byte(candidate: Path, reference: Path, output: Path) -> None:
    done = published(candidate, reference, output)
    assert done.evidence is not None
    for name, source in (("candidate", candidate), ("reference", reference)):
        copy = done.evidence / name / "steps.jsonl"
        assert copy.read_bytes() == (source / "steps.jsonl").read_bytes()


def test_the_evidence_is_a_record_that_can_be_published_again(
    candidate: Path, reference: Path, output: Path
) -> None:
    first = published(candidate, reference, output)
    assert first.evidence is not None
    again = publish(
        [first.evidence / "candidate"],
        output.with_name("again.yaml"),
        reference=first.evidence / "reference",
        options=Options(author_name="T"),
    )
    assert again.recipe.status == "verified"
    assert again.recipe.result == first.recipe.result


def test_links_in_a_record_are_not_followed(
    candidate: Path, reference: Path, output: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.log"
    secret.write_text("not yours")
    (candidate / "logs" / "link.log").symlink_to(secret)
    done = published(candidate, reference, output)
    assert done.evidence is not None
    assert not (done.evidence / "candidate" / "logs" / "link.log").exists()


def test_runs_are_pooled(tmp_path: Path, output: Path) -> None:
    manifests = [manifest_of(f"run-{i}", ep=2, max_tokens=2048) for i in (1, 2)]
    runs = [
        write_run(tmp_path / m.id, m, speed=speed)
        for m, speed in zip(manifests, (1.0, 1.2), strict=True)
    ]
    done = publish(runs, output, bundle=True)
    assert not done.refused
    result = done.recipe.result
    assert result is not None and result.runs == 2 and len(result.runs_detail or ()) == 2
    assert done.evidence is not None and (done.evidence / "run-2" / "steps.jsonl").is_file()


def test_a_given_price_is_published_with_its_source(candidate: Path, output: Path) -> None:
    done = publish([candidate], output, options=Options(price=Price(usd_per_gpu_hour=0.5)))
    result = done.recipe.result
    assert result is not None and result.price is not None
    assert result.price.source == "given by the author"
    assert result.usd_per_million_tokens == pytest.approx(0.5e6 / 3600 / 2497.56, abs=0.005)


def test_the_first_line_names_the_place_in_a_registry(candidate: Path, tmp_path: Path) -> None:
    place = "recipes/nemotron-3-test-5m/cpu/t-tp1-pp1-ep2-mt2k.yaml"
    publish([candidate], tmp_path / place, options=Options(author_name="T"))
    assert (tmp_path / place).read_text().splitlines()[0] == f"# {place}"


def test_options_are_kept_for_verification(candidate: Path, reference: Path, output: Path) -> None:
    done = published(candidate, reference, output)
    assert done.evidence is not None
    options = json.loads((done.evidence / "publish.json").read_text())
    assert options == {"author_name": "T"}


def test_an_output_that_cannot_be_written_is_told(candidate: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a directory"):
        publish([candidate], tmp_path, force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can be written"):
        publish([candidate], tmp_path / "file" / "r.yaml")


def test_a_gpu_that_nobody_knows_has_neither_mfu_nor_price(
    candidate: Path, edit: Edit, output: Path
) -> None:
    edit(candidate, machine={"gpu": "X9000", "count": 2, "per_node": 2})
    done = publish([candidate], output)
    assert not done.refused
    result = done.recipe.result
    assert result is not None and result.mfu is None and result.usd_per_million_tokens is None
    assert "X9000" in (result.mfu_note or "") and "X9000" in (result.usd_note or "")


def test_component_tests_decide_a_kernel_difference(
    candidate: Path, reference: Path, output: Path
) -> None:
    file = candidate / "verdicts" / "check.json"
    verdict = json.loads(file.read_text())
    verdict["configuration"]["verdict"] = "component"
    test = {
        "component": "attention",
        "flag": "attention-backend",
        "precision": "bf16",
        "relative_error": 0.003,
        "bound": 0.01,
        "result": "pass",
    }
    verdict["components"] = [test]
    file.write_text(json.dumps(verdict))
    done = publish([candidate], output, reference=reference)
    assert done.recipe.correctness is not None
    assert done.recipe.correctness.configuration == "pass"
    assert [t.component for t in done.recipe.correctness.component_tests or ()] == ["attention"]
