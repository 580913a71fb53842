"""Recipes as sides, and reviews in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openrecipes.cli.main import run
from openrecipes.errors import InputError
from openrecipes.gate.check import check
from openrecipes.gate.review import read_reviews

from .records import record

RECIPE = """\
# a recipe for tests
schema_version: 1
model: tiny
gpu:
  type: CPU
  count: 2
  per_node: 2
status: planned
workload:
  row_tokens: 512
  global_batch: 8
  precision: fp32
layout:
  tp: 1
  pp: 1
  ep: 1
  etp: 1
  dp: 2
  max_tokens_per_gpu: 512
  rows_per_microbatch: 1
stack:
  engine: native
arguments:
  # the schedule
  lr: '1e-4'
  steps: '20'
env:
  OMP_NUM_THREADS: '1'
"""


def recipe(path: Path, *changes: tuple[str, str]) -> Path:
    text = RECIPE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def test_two_recipes_are_at_best_a_review(tmp_path: Path) -> None:
    candidate = recipe(tmp_path / "candidate.yaml", ("  ep: 1", "  ep: 2"))
    verdict = check(candidate, recipe(tmp_path / "reference.yaml"))
    document = verdict.as_json()
    assert (verdict.verdict, verdict.exit_code) == ("review", 3)
    assert document["convergence"] is None
    (layout,) = [
        d for d in document["configuration"]["differences"] if d["flag"] != "rows.rows_sha256"
    ]
    assert (layout["flag"], layout["class"], layout["candidate"]) == (
        "expert-model-parallel-size",
        "layout",
        2,
    )
    assert not list(tmp_path.glob("verdicts*"))
    assert run(["check", str(candidate), str(candidate)]) == 3


def test_a_recipe_that_changes_the_training_fails(tmp_path: Path) -> None:
    reference = recipe(tmp_path / "reference.yaml")
    for change in (("lr: '1e-4'", "lr: '1.1e-4'"), ("global_batch: 8", "global_batch: 16")):
        candidate = recipe(tmp_path / "candidate.yaml", change)
        assert check(candidate, reference).verdict == "fail"


def test_the_same_number_written_otherwise_is_no_difference(tmp_path: Path) -> None:
    candidate = recipe(tmp_path / "candidate.yaml", ("lr: '1e-4'", "lr: '0.0001'"))
    found = check(candidate, recipe(tmp_path / "reference.yaml")).configuration
    assert [d.flag for d in found.differences] == ["rows.rows_sha256"]


def test_a_recipe_and_a_run(tmp_path: Path) -> None:
    side = recipe(tmp_path / "recipe.yaml")
    flags = {"max-tokens-per-gpu": 512, "use-dynamic-batch-size": True}
    reference = record(tmp_path / "run", flags=flags)
    verdict = check(side, reference)
    assert verdict.verdict in ("review", "fail")
    assert verdict.convergence is None
    assert "rows.rows_sha256" in {d.flag for d in verdict.configuration.differences}
    assert "model.parameters" in verdict.configuration.not_compared
    with pytest.raises(InputError, match="--replicate"):
        check(side, reference, [reference])


def test_a_review_is_recorded_in_the_recipe_and_honoured(tmp_path: Path) -> None:
    new = ("  steps: '20'\n", "  steps: '20'\n  brand-new-flag: '0.55'\n")
    candidate = recipe(tmp_path / "candidate.yaml", new)
    reference = recipe(tmp_path / "reference.yaml")
    assert "brand-new-flag" in {
        d.flag for d in check(candidate, reference).configuration.differences if d.kind == "unknown"
    }
    argv = ["review", str(candidate), "--class", "placement", "--reason", "moves state"]
    assert run([*argv, "--by", "Ada", "--json", "--", "--brand-new-flag"]) == 0
    (review,) = read_reviews(candidate)
    assert (review["flag"], review["class"], review["by"]) == ("brand-new-flag", "placement", "Ada")
    assert review["date"] is not None
    text = candidate.read_text()
    assert text.startswith(new_text := RECIPE.replace(*new)), "the rest of the recipe is untouched"
    assert len(text) > len(new_text)
    found = {d.flag: d for d in check(candidate, reference).configuration.differences}
    assert found["brand-new-flag"].kind == "placement"
    assert found["brand-new-flag"].verdict == "pass"

    assert run([*argv[:3], "kernel", *argv[4:], "--by", "Ada", "brand-new-flag"]) == 0
    assert [r["class"] for r in read_reviews(candidate)] == ["kernel"], "replaced, not added"


def test_reviews_of_a_recipe_count_for_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reviewed = recipe(tmp_path / "recipe.yaml")
    assert (
        run(
            [
                "review",
                str(reviewed),
                "env.NEW_SWITCH",
                "--class",
                "io",
                "--reason",
                "a log",
                "--by",
                "Ada",
            ]
        )
        == 0
    )
    candidate = record(tmp_path / "c", env={"OMP_NUM_THREADS": "1", "NEW_SWITCH": "1"})
    reference = record(tmp_path / "r")
    assert run(["check", str(candidate), str(reference)]) == 3
    assert run(["check", str(candidate), str(reference), "--reviews", str(reviewed)]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("flag", "class_", "reason", "by"),
    [
        ("lr", "placement", "harmless", "Eve"),
        ("env.NVIDIA_TF32_OVERRIDE", "io", "harmless", "Eve"),
        ("stack.pytorch", "io", "harmless", "Eve"),
        ("brand-new-flag", "unknown", "harmless", "Eve"),
        ("brand-new-flag", "nonsense", "harmless", "Eve"),
        ("brand-new-flag", "io", " ", "Eve"),
        ("brand-new-flag", "io", "harmless", ""),
    ],
)
def test_a_wrong_review_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    class_: str,
    reason: str,
    by: str,
) -> None:
    path = recipe(tmp_path / "recipe.yaml")
    argv = ["review", str(path), flag, "--class", class_, "--reason", reason, "--by", by, "--json"]
    assert run(argv) == 2
    assert "error" in json.loads(capsys.readouterr().out)
    assert path.read_text() == RECIPE


def test_a_field_that_one_recipe_leaves_open_is_compared_by_its_flag(tmp_path: Path) -> None:
    flag = ("  steps: '20'\n", "  steps: '20'\n  use-precision-aware-optimizer: true\n")
    offload = "offload:\n    optimizer_fraction: 0.5\n"
    both = ("  rows_per_microbatch: 1\n", f"  rows_per_microbatch: 1\n  {offload}")
    told = (both[0], both[1] + "    precision_aware: true\n")
    engine = ("engine: native", "engine: miles")
    candidate = recipe(tmp_path / "candidate.yaml", engine, both, flag)
    found = check(candidate, recipe(tmp_path / "reference.yaml", engine, told)).configuration
    assert [d.flag for d in found.differences] == ["rows.rows_sha256"]


REGISTRY = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(
    ("candidate", "reference"),
    [
        (
            "nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4.yaml",
            "nemotron-3-nano-30b-a3b/h200/attune-tp2-pp2-ep2.yaml",
        ),
        (
            "nemotron-3-super-120b-a12b/h200/attune-tp4-pp2-ep8-mt16k.yaml",
            "nemotron-3-super-120b-a12b/h200/attune-tp4-pp2-ep8.yaml",
        ),
    ],
)
def test_published_recipes_have_their_references_configuration(
    candidate: str, reference: str
) -> None:
    found = check(REGISTRY / candidate, REGISTRY / reference)
    assert found.configuration.verdict == "pass"
    assert found.configuration.differences
    assert found.verdict == "review"
