"""The verdict over two run records: configuration, curves, document, exit codes."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openrecipes.cli.main import run
from openrecipes.errors import InputError
from openrecipes.gate import rules
from openrecipes.gate.check import check

from .records import losses, record


def difference(document: dict[str, Any], flag: str) -> dict[str, Any]:
    return next(d for d in document["configuration"]["differences"] if d["flag"] == flag)


def test_the_same_training_in_another_layout_passes(tmp_path: Path) -> None:
    reference = record(tmp_path / "reference")
    candidate = record(
        tmp_path / "candidate",
        flags={
            "expert-model-parallel-size": 2,
            "recompute-granularity": "full",
            "recompute-method": "uniform",
            "recompute-num-layers": 1,
        },
        curve=losses(scale=1e-7),
    )
    verdict = check(candidate, reference)
    assert verdict.verdict == "pass"
    assert verdict.exit_code == 0
    document = json.loads((candidate / "verdicts/check.json").read_text())
    assert document == verdict.as_json()
    found = difference(document, "expert-model-parallel-size")
    assert (found["candidate"], found["reference"]) == (2, 1)
    assert (found["class"], found["verdict"]) == ("layout", "pass")
    assert found["reason"].endswith(".")
    assert difference(document, "recompute-granularity")["class"] == "memory"
    convergence = document["convergence"]
    assert convergence["result"] == "pass"
    assert convergence["correlation"] > 0.999999
    assert convergence["pointwise_failures"] == 0
    assert convergence["noise_floor"] is None
    assert any("published procedure" in note for note in convergence["notes"])
    assert convergence["equal_per_step"] == dict.fromkeys(
        ("slots", "tokens", "supervised_tokens", "lr"), True
    )


def test_the_document_names_its_inputs_by_hash(tmp_path: Path) -> None:
    candidate, reference = record(tmp_path / "a"), record(tmp_path / "b")
    document = check(candidate, reference).as_json()
    for side, path in (("candidate", candidate), ("reference", reference)):
        assert document["inputs"][side]["sha256"] == {
            name: hashlib.sha256((path / name).read_bytes()).hexdigest()
            for name in ("manifest.json", "steps.jsonl")
        }
    assert document["rules"]["version"] == rules.version()
    assert len(document["rules"]["sha256"]) == 64
    assert document["format"] == 1


@pytest.mark.parametrize(
    ("changed", "class_", "verdict", "exit_code"),
    [
        ({"flags": {"lr": 1.1e-4}}, "workload", "fail", 1),
        ({"flags": {"adam-eps": 1e-6}}, "numerics", "fail", 1),
        ({"flags": {"prompt-data": "elsewhere.parquet"}}, "io", "pass", 0),
        ({"rows": {"rows_sha256": "b" * 64}}, "workload", "fail", 1),
        ({"rows": {}}, "workload", "review", 3),
        ({"model": {"config_sha256": "d" * 64}}, "workload", "fail", 1),
        ({"model": {"config_sha256": "c" * 64, "source": "other"}}, "workload", "review", 3),
        ({"stack": {"pytorch": "2.11.0"}}, "kernel", "component", 3),
        ({"stack": {"python": "3.11.9"}}, "io", "pass", 0),
        ({"env": {"OMP_NUM_THREADS": "1", "NVIDIA_TF32_OVERRIDE": "1"}}, "numerics", "fail", 1),
        ({"env": {"OMP_NUM_THREADS": "4"}}, "layout", "pass", 0),
        ({"env": {"OMP_NUM_THREADS": "1", "NEW_SWITCH": "1"}}, "unknown", "review", 3),
        ({"world_size": 4}, "layout", "pass", 0),
        ({"machine": {"gpu": "H200"}}, "kernel", "component", 3),
    ],
)
def test_each_class_has_its_verdict(
    tmp_path: Path, changed: dict[str, Any], class_: str, verdict: str, exit_code: int
) -> None:
    candidate = record(tmp_path / "candidate", **changed)
    found = check(candidate, record(tmp_path / "reference"))
    differences = found.configuration.differences
    assert [(d.kind, d.verdict) for d in differences] == [(class_, verdict)]
    assert found.exit_code == exit_code
    assert bool(found.reasons) == (exit_code != 0)


def test_a_flag_that_no_table_knows_stops_for_review_and_a_review_settles_it(
    tmp_path: Path,
) -> None:
    reference = record(tmp_path / "reference")
    candidate = record(tmp_path / "candidate")
    manifest = json.loads((candidate / "manifest.json").read_text())
    manifest["flags"]["brand-new-flag"] = 0.55
    (candidate / "manifest.json").write_text(json.dumps(manifest))
    assert check(candidate, reference).verdict == "review"

    review = {
        "flag": "brand-new-flag",
        "class": "placement",
        "candidate": "0.55",
        "reason": "moves state",
        "by": "Ada",
    }
    verdict = check(candidate, reference, reviews=[review])
    assert verdict.verdict == "pass"
    found = difference(verdict.as_json(), "brand-new-flag")
    assert (found["class"], found["review"]["by"]) == ("placement", "Ada")
    for spoilt in (
        {"candidate": "0.6"},
        {"class": "unknown"},
        {"class": "harmless"},
        {"reason": ""},
    ):
        assert check(candidate, reference, reviews=[review | spoilt]).verdict == "review"
    assert check(candidate, reference, reviews=[review | {"class": "numerics"}]).verdict == "fail"


def test_a_review_does_not_overrule_the_class_list(tmp_path: Path) -> None:
    candidate = record(tmp_path / "candidate", flags={"lr": 2e-4})
    review = {"flag": "lr", "class": "placement", "reason": "I would like it", "by": "Eve"}
    assert check(candidate, record(tmp_path / "reference"), reviews=[review]).verdict == "fail"


def test_flags_that_the_engine_ignores_change_nothing(tmp_path: Path) -> None:
    candidate = record(tmp_path / "candidate", flags={"attention-backend": "flash"})
    verdict = check(candidate, record(tmp_path / "reference"))
    (found,) = verdict.configuration.differences
    assert (found.kind, found.verdict) == ("kernel", "pass")
    assert "ignores" in found.reason


LAYOUT = {"tp": 1, "pp": 1, "etp": 1, "dp": 2}


def test_a_layout_field_is_not_told_twice(tmp_path: Path) -> None:
    candidate = record(
        tmp_path / "candidate", flags={"expert-model-parallel-size": 2}, layout={**LAYOUT, "ep": 2}
    )
    reference = record(tmp_path / "reference", layout={**LAYOUT, "label": "EP1"})
    names = [d.flag for d in check(candidate, reference).configuration.differences]
    assert names == ["expert-model-parallel-size"]


@pytest.mark.parametrize(
    ("candidate", "told"),
    [
        ({"curve": losses(10)}, "steps"),
        ({"curve": [*losses(19), None]}, "finite"),
        ({"grad_norms": [*[1.0] * 19, None]}, "finite"),
        ({"curve": [loss * 1.2 for loss in losses()]}, "pointwise"),
        ({"curve": [*losses(19), losses()[-1] * 1.04]}, "final_loss"),
        ({"curve": losses()[::-1]}, "correlation"),
        ({"step": {"supervised_tokens": 1999}}, "supervised_tokens"),
        ({"step": {"lr": 1.01e-4}}, "lr"),
        ({"state": "failed"}, "candidate_failed"),
        ({"failure": {"kind": "nan", "step": 7}, "state": "failed"}, "candidate_failed"),
    ],
)
def test_curves_that_part_fail(tmp_path: Path, candidate: dict[str, Any], told: str) -> None:
    verdict = check(record(tmp_path / "c", **candidate), record(tmp_path / "r"))
    assert verdict.verdict == "fail"
    assert verdict.convergence is not None
    assert told in verdict.convergence.failures
    assert verdict.look_first


def test_a_missing_step_fails(tmp_path: Path) -> None:
    candidate, reference = record(tmp_path / "c"), record(tmp_path / "r")
    lines = (candidate / "steps.jsonl").read_text().splitlines(keepends=True)
    (candidate / "steps.jsonl").write_text("".join(lines[:7] + lines[8:]))
    verdict = check(candidate, reference)
    assert verdict.convergence is not None
    assert "step 7" in verdict.convergence.failures["steps"]


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_an_unfinished_run_is_a_persons_decision(tmp_path: Path, state: str) -> None:
    verdict = check(record(tmp_path / "c", state=state), record(tmp_path / "r"))
    assert verdict.verdict == "review"
    assert any(state in reason for reason in verdict.reasons)


def test_a_record_is_no_proof_of_itself(tmp_path: Path) -> None:
    candidate = record(tmp_path / "c")
    check(candidate, record(tmp_path / "r"))
    before = (candidate / "verdicts/check.json").read_bytes()
    copy = shutil.copytree(candidate, tmp_path / "copy")
    for other in (candidate, copy):
        with pytest.raises(InputError, match="the same record"):
            check(candidate, other)
        assert (candidate / "verdicts/check.json").read_bytes() == before


def test_no_step_is_wrong_input_and_nothing_is_written(tmp_path: Path) -> None:
    candidate = record(tmp_path / "c", curve=[])
    with pytest.raises(InputError, match=r"steps\.jsonl"):
        check(candidate, record(tmp_path / "r"))
    assert not (candidate / "verdicts").exists()


def test_the_command_prints_one_document_and_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate, reference = record(tmp_path / "c"), record(tmp_path / "r")
    assert run(["check", str(candidate), str(reference), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["format"], document["verdict"]) == (1, "pass")
    assert set(document) >= {"configuration", "convergence", "components"}
    assert run(["check", str(candidate), str(tmp_path / "none"), "--json"]) == 2
    assert "error" in json.loads(capsys.readouterr().out)
    other = record(tmp_path / "x", flags={"lr": 2e-4})
    assert run(["check", str(other), str(reference)]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_hostile_text_reaches_the_terminal_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b[2J[bold]x[/bold]\u202e\ud800</svg>"
    candidate = record(tmp_path / "c")
    manifest = json.loads((candidate / "manifest.json").read_text())
    manifest["id"] = "x\x1b[2J</svg><script>"
    manifest["env"]["A" + hostile.replace("\ud800", "")] = "v"
    manifest["flags"]["[red]" + hostile] = [hostile, {hostile: 1}]
    (candidate / "manifest.json").write_text(json.dumps(manifest))
    reference = record(tmp_path / "r")
    assert run(["check", str(candidate), str(reference)]) == 3
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown and "\u202e" not in shown
    assert "[bold]" in shown
    assert run(["check", str(candidate), str(reference), "--json"]) == 3
    json.loads(capsys.readouterr().out)
    picture = (candidate / "verdicts/check.svg").read_text()
    assert "<script>" not in picture and "\x1b" not in picture


def test_the_picture_is_svg_that_a_theme_can_colour(tmp_path: Path) -> None:
    import xml.etree.ElementTree as ElementTree

    candidate = record(tmp_path / "c", curve=[*losses(10), None, *losses()[11:]])
    check(candidate, record(tmp_path / "r"))
    text = (candidate / "verdicts/check.svg").read_text()
    root = ElementTree.fromstring(text)
    assert root.attrib["stroke"] == "currentColor"
    assert "#" not in text.replace("#check", "")
    classes = {element.attrib.get("class") for element in root.iter()}
    assert {"candidate", "reference", "difference", "tolerance"} <= classes


loss = st.one_of(
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, 1.0, 5e-324, 1e308]),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ours=st.lists(loss, min_size=1, max_size=6), theirs=st.lists(loss, min_size=1, max_size=6))
def test_any_curve_gets_a_verdict_without_nan(
    tmp_path_factory: pytest.TempPathFactory,
    ours: list[float | None],
    theirs: list[float | None],
) -> None:
    path = tmp_path_factory.mktemp("any")
    candidate = record(path / "c", curve=ours, grad_norms=ours)
    verdict = check(candidate, record(path / "r", curve=theirs, grad_norms=theirs))
    json.dumps(verdict.as_json(), allow_nan=False)
    if None in [*ours, *theirs] or len(ours) != len(theirs) or len(ours) < 2:
        assert verdict.verdict == "fail"
    elif verdict.verdict == "pass":
        assert all(
            math.isclose(a, b, rel_tol=0.12, abs_tol=1e-300)
            for a, b in [(ours[-1] or 0.0, theirs[-1] or 0.0)]
        )
