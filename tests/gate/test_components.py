"""Component tests: the engine's kernels pass, kernels that are a little wrong do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from openrecipes.gate.check import check
from openrecipes.gate.components import formulas
from openrecipes.gate.components.cases import Function, Inputs, cases
from openrecipes.gate.components.measure import judge
from openrecipes.gate.rules import COMPONENTS
from openrecipes.recipe.correctness import ComponentTest
from openrecipes.runs.stack import capture

from .records import record

CASES = cases()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", COMPONENTS)
def test_the_engines_kernels_compute_their_formulas(name: str, precision: str) -> None:
    found = judge(name, CASES[name], precision)
    assert found.passed, found
    assert found.relative_error > 0, "two implementations, not one with itself"
    assert found.bound < (1e-5 if precision == "fp32" else 0.02)
    if name in ("SSD", "attention", "router and dispatch"):
        assert found.others is not None and found.gradients is not None


def leaking(given: Inputs) -> Tensor:
    """State that runs over the borders of segments."""
    return formulas.scan(**given, ids=torch.zeros(given["x"].shape[0]))


def coarse(given: Inputs) -> Tensor:
    """Attention whose inputs are rounded to ten bits, as TF32 does."""
    parts = {
        name: t + ((t * 1024).round() / 1024 - t).detach() if name != "v" else t
        for name, t in given.items()
    }
    return CASES["attention"].engine(parts)


def ahead(given: Inputs) -> Tensor:
    """Attention that sees one token of the future."""
    out = CASES["attention"].engine(given)
    return out + 0.1 * torch.cat([given["v"][1:], given["v"][:1]]).repeat_interleave(2, 1)


def unbiased(given: Inputs) -> Tensor:
    """A router that leaves the correction bias out of its choice."""
    bias = torch.zeros_like(given["gate.e_score_correction_bias"])
    return CASES["router and dispatch"].engine({**given, "gate.e_score_correction_bias": bias})


def crowded(given: Inputs) -> Tensor:
    """Experts whose outputs depend on how many tokens came with a token."""
    out = CASES["router and dispatch"].engine(given)
    return out * (1 + 1e-4 * (out.shape[0] > 100))


def smoothed(given: Inputs) -> Tensor:
    """A loss with a little label smoothing."""
    return CASES["cross entropy"].engine(given) * 0.999


def undecayed(given: Inputs) -> Tensor:
    """A vector that is decayed though it should not be."""
    out = CASES["optimizer"].engine(given).clone()
    out[-16:] -= 5 * 1e-3 * 0.1 * given["vector"]
    return out


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("SSD", leaking),
        ("attention", coarse),
        ("attention", ahead),
        ("router and dispatch", unbiased),
        ("router and dispatch", crowded),
        ("cross entropy", smoothed),
        ("optimizer", undecayed),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_kernel_that_is_a_little_wrong_fails(name: str, wrong: Function) -> None:
    found = judge(name, replace(CASES[name], engine=wrong), "fp32")
    assert not found.passed
    assert found.relative_error > 5 * found.bound


def test_a_kernel_that_gives_nan_fails() -> None:
    right = CASES["attention"]
    wrong = replace(right, engine=lambda given: right.engine(given) * torch.nan)
    found = judge("attention", wrong, "fp32")
    assert not found.passed
    assert found.as_json("attention-backend")["relative_error"] is None
    assert found.as_json("attention-backend")["result"] == "fail"


def test_a_change_of_stack_is_settled_by_component_tests(tmp_path: Path) -> None:
    stack = {"pytorch": capture("native")["pytorch"]}
    candidate = record(tmp_path / "c", stack=stack)
    verdict = check(candidate, record(tmp_path / "r", stack={"pytorch": "2.11.0"}))
    assert verdict.verdict == "pass"
    components = verdict.as_json()["components"]
    assert [test["component"] for test in components] == list(COMPONENTS)
    assert all(ComponentTest.model_validate(test).result == "pass" for test in components)
    assert components[0]["flag"] == "stack.pytorch"


def test_a_kernel_that_this_machine_lacks_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object) -> list[object]:
        raise RuntimeError("no kernel for this type\nand more")

    monkeypatch.setattr("openrecipes.gate.components.measure.measure", lacking)
    stack = {"pytorch": capture("native")["pytorch"]}
    candidate = record(tmp_path / "c", stack=stack)
    verdict = check(candidate, record(tmp_path / "r", stack={"pytorch": "2.11.0"}))
    assert verdict.verdict == "review"
    assert any("no kernel" in item for item in verdict.look_first)


def test_elsewhere_the_tests_are_not_run_and_a_person_decides(tmp_path: Path) -> None:
    candidate = record(tmp_path / "c", stack={"pytorch": "1.0"})
    verdict = check(candidate, record(tmp_path / "r"))
    assert verdict.verdict == "review"
    assert {test["result"] for test in verdict.components} == {"not run"}
    document = verdict.as_json()
    assert document["components"] == []
    assert [test["component"] for test in document["components_not_run"]] == list(COMPONENTS)
    assert any("PyTorch 1.0" in item for item in verdict.look_first)
