"""Do two runs train alike, step by step? The published procedure and what it misses.

The procedure (correlation, point-wise and final difference, outliers) is in
``metrics.convergence``. Beside it: the same number of tokens and the same learning rate in every
step, gradient norms, the runs' own state, and the noise floor where replicates were given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

from openrecipes.gate.noise import LIMIT, RESOLUTION, Floor
from openrecipes.gate.sides import Side
from openrecipes.metrics import convergence as published
from openrecipes.runs.record import Step

#: What a step must have in common, with the relative tolerance of its figure.
_COMMON: Final = {"slots": 0.0, "tokens": 0.0, "supervised_tokens": 0.0, "lr": 1e-6}


@dataclass(frozen=True)
class Curves:
    """The verdict over the curves of two runs.

    Attributes:
        result: pass, fail or review.
        figures: what the published procedure found.
        failures: failed criteria by name, each with a sentence.
        doubts: what a person has to decide, by name.
        notes: what the verdict rests on.
        gradient_norm: figures of the gradient-norm curves.
        common: per figure that must be equal in each step: true, false, or null where unknown.
        floor: the noise floor; None without a replicate.
        first: the step to look at first, where there is one.
        resumed: per side, the steps at which a run went on after a stop.
        resumes: resumes at which the losses part, in words.
    """

    result: str
    figures: published.Convergence
    failures: dict[str, str]
    doubts: dict[str, str]
    notes: list[str]
    gradient_norm: dict[str, Any]
    common: dict[str, bool | None]
    floor: Floor | None
    first: int | None = None
    resumed: dict[str, list[int]] = field(default_factory=dict)
    resumes: tuple[str, ...] = ()
    thresholds: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The convergence part of a verdict."""
        figures = self.figures
        return {
            "result": self.result,
            "procedure": "Megatron-Bridge validate_convergence, pipeline thresholds",
            "steps": figures.steps,
            "correlation": figures.correlation,
            "final_loss_difference": figures.final_loss_difference,
            "pointwise_failures": figures.pointwise_failures,
            "outliers": figures.outliers,
            "max_relative_difference": figures.max_relative_difference,
            "noise_floor": None if self.floor is None else self.floor.as_json(),
            "gradient_norm": self.gradient_norm,
            "equal_per_step": self.common,
            "failures": self.failures,
            "doubts": self.doubts,
            "notes": self.notes,
            "first_step_to_look_at": self.first,
            "resumed": self.resumed,
            "thresholds": self.thresholds,
        }


def judge(candidate: Side, reference: Side, floor: Floor | None, replicates: int = 0) -> Curves:
    """Judge the steps of two runs.

    Args:
        candidate: a run.
        reference: a run.
        floor: the noise floor of the reference and the candidate's multiple of it.
        replicates: how many were given; without a floor all the same, the curves allow none.
    """
    ours, theirs = candidate.steps or (), reference.steps or ()
    figures = published.compare(_curve(ours), _curve(theirs))
    failures, doubts = dict(figures.failures), dict[str, str]()
    for name, side in (("candidate", candidate), ("reference", reference)):
        _judge_state(name, side, failures, doubts)
    common: dict[str, bool | None] = {}
    for figure, tolerance in _COMMON.items():
        common[figure], told = _equal(figure, tolerance, ours, theirs)
        if told:
            failures[figure] = told
    notes = []
    if floor is None and replicates:
        notes.append("The curves fail as they are; no multiple of the noise floor is given.")
    elif floor is None:
        notes.append(
            "No replicate was given: the verdict rests on the published procedure alone, which "
            "even a doubled learning rate can pass. Give --replicate for a noise floor."
        )
    else:
        failures |= floor.failures()
        doubts |= floor.doubts()
        notes += floor.notes()
    resumed = {"candidate": _resumed(ours), "reference": _resumed(theirs)}
    unknown = [figure for figure, equal in common.items() if equal is None]
    if unknown:
        notes.append(f"Not recorded on both sides, so not compared: {', '.join(unknown)}.")
    return Curves(
        result="fail" if failures else "review" if doubts else "pass",
        figures=figures,
        failures=failures,
        doubts=doubts,
        notes=notes,
        gradient_norm=_gradient_norms(ours, theirs),
        common=common,
        floor=floor,
        first=_first_apart(ours, theirs),
        resumed=resumed,
        resumes=_parting_resumes(resumed, ours, theirs),
        thresholds=_thresholds(),
    )


def _curve(steps: Sequence[Step]) -> published.Curve:
    return published.Curve(
        {step.step: step.loss for step in steps}, {step.step: step.grad_norm for step in steps}
    )


def _judge_state(name: str, side: Side, failures: dict[str, str], doubts: dict[str, str]) -> None:
    if side.failure is not None:
        kind, step = side.failure.get("kind"), side.failure.get("step")
        where = "" if step is None else f" at step {step}"
        failures[f"{name}_failed"] = f"the {name}'s run failed{where}: {kind}"
    elif side.state == "failed":
        failures[f"{name}_failed"] = f"the {name}'s run failed"
    elif side.state != "done":
        doubts[f"{name}_state"] = f"the {name}'s run is not done but {side.state}"


def _equal(
    figure: str, tolerance: float, ours: Sequence[Step], theirs: Sequence[Step]
) -> tuple[bool | None, str | None]:
    """Whether a figure is equal in every common step, and where it first is not."""
    other = {step.step: getattr(step, figure) for step in theirs}
    known = False
    for step in ours:
        a, b = getattr(step, figure), other.get(step.step)
        if a is None or b is None:
            continue
        known = True
        if not math.isclose(a, b, rel_tol=tolerance, abs_tol=0.0):
            return False, f"{figure} at step {step.step}: {a:.9g} against {b:.9g}"
    return (True if known else None), None


def _gradient_norms(ours: Sequence[Step], theirs: Sequence[Step]) -> dict[str, Any]:
    pairs = _pairs("grad_norm", ours, theirs)
    apart = [published.relative_difference(a, b) for _, a, b in pairs]
    known = [value for value in apart if value is not None]
    return {
        "steps": len(pairs),
        "correlation": published.pearson([a for _, a, _ in pairs], [b for _, _, b in pairs])
        if pairs
        else None,
        "max_relative_difference": max(known) if pairs and len(known) == len(pairs) else None,
    }


def _pairs(
    figure: str, ours: Sequence[Step], theirs: Sequence[Step]
) -> list[tuple[int, float, float]]:
    """(step, ours, theirs) where both are known and finite."""
    other = {step.step: getattr(step, figure) for step in theirs}
    pairs = ((step.step, getattr(step, figure), other.get(step.step)) for step in ours)
    return [(step, a, b) for step, a, b in pairs if a is not None and b is not None]


def _first_apart(ours: Sequence[Step], theirs: Sequence[Step]) -> int | None:
    """The first step over its point-wise tolerance, else the step with the largest difference."""
    worst: tuple[float, int] | None = None
    for step, a, b in _pairs("loss", ours, theirs):
        apart = published.relative_difference(a, b)
        if apart is None or apart > published.PIPELINE.tolerance(b):
            return step
        if apart > 0 and (worst is None or apart > worst[0]):
            worst = (apart, step)
    return None if worst is None else worst[1]


def _resumed(steps: Sequence[Step]) -> list[int]:
    """The first counting step of each attempt but the first."""
    return [after.step for before, after in pairwise(steps) if after.attempt != before.attempt]


def _parting_resumes(
    resumed: dict[str, list[int]], ours: Sequence[Step], theirs: Sequence[Step]
) -> tuple[str, ...]:
    """Resumes after which the losses differ ten times more than they ever did before."""
    apart = {
        step: published.relative_difference(a, b) or 0.0
        for step, a, b in _pairs("loss", ours, theirs)
    }
    found = []
    for name, starts in resumed.items():
        for start in starts:
            before = max((value for step, value in apart.items() if step < start), default=0.0)
            after = max((value for step, value in apart.items() if step >= start), default=0.0)
            if after > LIMIT * max(before, RESOLUTION["loss"]):
                found.append(f"the losses part where the {name} was resumed, at step {start}")
    return tuple(found)


def _thresholds() -> dict[str, Any]:
    values = asdict(published.PIPELINE)
    values["tolerances"] = [
        {"loss_above": above if math.isfinite(above) else None, "relative": relative}
        for above, relative in published.PIPELINE.tolerances
    ]
    return values
