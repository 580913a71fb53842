"""The noise floor: multiples, intervals, and replicates that are none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from openrecipes.errors import InputError
from openrecipes.gate.check import check
from openrecipes.gate.noise import LIMIT, RESOLUTION

from .records import losses, record


def replicate(path: Path, scale: float = 1e-6, **fields: Any) -> Path:
    norms = [(1.0 + 0.1 * math.sin(s)) * (1 + 1e-6) for s in range(20)]
    order = {"flags": {"row-order-seed": 1, **fields.pop("flags", {})}}
    given = {"curve": losses(scale=scale), "grad_norms": norms, **order, **fields}
    return record(path, **given)


@pytest.mark.parametrize(
    ("scale", "verdict"), [(1e-6, "pass"), (5e-6, "pass"), (2e-5, "fail"), (1e-3, "fail")]
)
def test_the_candidate_is_measured_in_floors(tmp_path: Path, scale: float, verdict: str) -> None:
    candidate = record(tmp_path / "c", curve=losses(scale=scale))
    found = check(candidate, record(tmp_path / "r"), [replicate(tmp_path / "n")])
    assert found.verdict == verdict
    floor = found.as_json()["convergence"]["noise_floor"]
    assert floor["replicates"] == 1
    assert floor["loss"]["multiple"] == pytest.approx(scale / 1e-6, rel=1e-3)
    low, high = floor["loss"]["interval_95"]
    assert low <= floor["loss"]["multiple"] * 1.001 and floor["loss"]["multiple"] <= high * 1.001
    assert floor["grad_norm"]["multiple"] == 0


@pytest.mark.parametrize(
    ("replicates", "scale", "verdict"),
    [(1, 3e-5, "review"), (3, 3e-5, "fail"), (1, 3e-4, "fail"), (1, 5e-6, "pass")],
)
def test_in_half_precision_few_replicates_leave_a_doubt(
    tmp_path: Path, replicates: int, scale: float, verdict: str
) -> None:
    half = {"bf16": True}
    again = [
        replicate(tmp_path / f"n{n}", flags={"row-order-seed": n, "micro-batch-size": 2, **half})
        for n in range(replicates)
    ]
    candidate = record(tmp_path / "c", curve=losses(scale=scale), flags=half)
    assert check(candidate, record(tmp_path / "r", flags=half), again).verdict == verdict


def test_gradient_norms_count_too(tmp_path: Path) -> None:
    norms = [(1.0 + 0.1 * math.sin(s)) * (1 + 1e-3) for s in range(20)]
    candidate = record(tmp_path / "c", grad_norms=norms)
    found = check(candidate, record(tmp_path / "r"), [replicate(tmp_path / "n")])
    assert found.verdict == "fail"
    assert found.convergence is not None
    assert set(found.convergence.failures) == {"noise_floor_grad_norm"}


def test_a_floor_of_zero_is_the_resolution(tmp_path: Path) -> None:
    reference = record(tmp_path / "r")
    again = record(tmp_path / "n", flags={"row-order-seed": 3})
    near = [loss * (1 + 5 * RESOLUTION["loss"]) for loss in losses()]
    far = [loss * (1 + 20 * RESOLUTION["loss"]) for loss in losses()]
    assert check(record(tmp_path / "near", curve=near), reference, [again]).verdict == "pass"
    assert check(record(tmp_path / "far", curve=far), reference, [again]).verdict == "fail"


def test_one_far_step_is_a_persons_decision(tmp_path: Path) -> None:
    """The interval over steps reaches below the limit when one step alone makes the multiple."""
    reference, again = record(tmp_path / "r"), replicate(tmp_path / "n")
    curve = losses()
    curve[10] *= 1 + 8e-4
    found = check(record(tmp_path / "c", curve=curve), reference, [again])
    assert found.verdict == "review"
    assert found.convergence is not None
    figure = found.convergence.floor
    assert figure is not None
    assert figure.figures["loss"].low <= LIMIT < figure.figures["loss"].multiple


def test_a_floor_over_the_effect_of_a_learning_rate_is_told(tmp_path: Path) -> None:
    noisy = [loss * (1 + 2e-4 * math.sin(7 * s)) for s, loss in enumerate(losses())]
    norms = [(1.0 + 0.1 * math.sin(s)) * (1 + 3e-3) for s in range(20)]
    again = replicate(tmp_path / "n", curve=noisy, grad_norms=norms)
    found = check(record(tmp_path / "c"), record(tmp_path / "r"), [again])
    assert found.verdict == "pass"
    assert found.convergence is not None
    assert any("rehearsal" in note for note in found.convergence.notes)
    assert found.as_json()["convergence"]["noise_floor"]["resolves_learning_rate_x1.1"] is False


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"step": {"supervised_tokens": 1500}}, "other rows"),
        ({"flags": {"lr": 1.1e-4}}, "another lr"),
        ({"flags": {"expert-model-parallel-size": 2}}, "another expert-model-parallel-size"),
        ({"rows": {"rows_sha256": "b" * 64}}, "another rows.rows_sha256"),
        ({"stack": {"pytorch": "2.11.0"}}, "another stack.pytorch"),
        ({"curve": losses(19)}, "other tokens per step"),
        ({"curve": [*losses(19), None]}, "no finite numbers"),
    ],
)
def test_a_replicate_that_is_none_is_refused(
    tmp_path: Path, fields: dict[str, Any], told: str
) -> None:
    again = replicate(tmp_path / "n", **fields)
    with pytest.raises(InputError, match=told):
        check(record(tmp_path / "c"), record(tmp_path / "r"), [again])
    assert not (tmp_path / "c/verdicts").exists()


def test_neither_side_is_its_own_replicate(tmp_path: Path) -> None:
    candidate, reference = record(tmp_path / "c"), record(tmp_path / "r")
    again = replicate(tmp_path / "n")
    for replicates in ([candidate], [reference], [again, again]):
        with pytest.raises(InputError, match="itself"):
            check(candidate, reference, replicates)


def test_a_broken_candidate_still_fails_with_a_replicate(tmp_path: Path) -> None:
    candidate = record(tmp_path / "c", curve=[*losses(19), None])
    found = check(candidate, record(tmp_path / "r"), [replicate(tmp_path / "n")])
    assert found.verdict == "fail"
    assert found.as_json()["convergence"]["noise_floor"] is None
    assert not any("No replicate" in note for note in found.as_json()["convergence"]["notes"])
