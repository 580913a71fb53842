"""Differences of class kernel: which component tests they need, and whether they can run here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openrecipes.errors import one_line
from openrecipes.gate.configuration import Difference
from openrecipes.gate.rules import COMPONENTS
from openrecipes.gate.sides import Side
from openrecipes.runs.stack import capture, machine


def test(differences: Sequence[Difference], candidate: Side) -> list[dict[str, Any]]:
    """Run the component tests that differences of verdict ``component`` need.

    The candidate's kernels are compared with their formulas, in fp32 and in the run's precision.
    That can only be done on the candidate's own stack and type of machine; elsewhere the tests are
    listed as ``not run``, with the reason.

    Returns:
        An object per flag, component and precision; where a test was not run, ``result`` is
        ``not run`` and ``reason`` says why.
    """
    needed = [difference for difference in differences if difference.verdict == "component"]
    if not needed:
        return []
    wanted = [(d.flag, name) for d in needed for name in _names(d)]
    obstacle = _obstacle(candidate)
    if obstacle is not None:
        return [_not_run(flag, name, obstacle) for flag, name in wanted]
    return [entry for flag, name in wanted for entry in _run(flag, name, candidate)]


def _run(flag: str, name: str, candidate: Side) -> list[dict[str, Any]]:
    from openrecipes.gate.components.measure import measure

    device = "cpu" if candidate.facts.get("machine.gpu") == "CPU" else "cuda"
    try:
        return [found.as_json(flag) for found in measure(name, _precision(candidate), device)]
    except RuntimeError as error:  # torch lacks the kernel on this machine
        return [_not_run(flag, name, one_line(error))]


def verdict(tests: Sequence[dict[str, Any]]) -> str:
    """pass, fail, or review where one was not run; pass where none was needed."""
    results = {each["result"] for each in tests}
    if "fail" in results:
        return "fail"
    return "review" if "not run" in results else "pass"


def _names(difference: Difference) -> tuple[str, ...]:
    name = difference.component
    return (name,) if name in COMPONENTS else COMPONENTS


def _precision(side: Side) -> str:
    return next((name for name in ("bf16", "fp16") if side.flags.get(name)), "fp32")


def _not_run(flag: str, name: str, obstacle: str) -> dict[str, Any]:
    return {"component": name, "flag": flag, "result": "not run", "reason": obstacle}


def _obstacle(candidate: Side) -> str | None:
    """Why the candidate's kernels cannot be tested here; None where they can."""
    if candidate.kind != "run":
        return "a recipe has no run whose kernels could be tested"
    if candidate.engine != "native":
        return f"the kernels of the {candidate.engine} engine are tested on its own stack"
    ran_on, here = candidate.facts.get("machine.gpu"), machine()["gpu"]
    if ran_on != here:
        return f"the candidate ran on {ran_on}, this machine has {here}"
    ran_with, installed = candidate.facts.get("stack.pytorch"), capture("native")["pytorch"]
    if ran_with is None or ran_with != installed:
        return f"the candidate ran with PyTorch {ran_with}, installed here is {installed}"
    return None
