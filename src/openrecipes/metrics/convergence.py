"""Does a candidate's loss curve follow the reference's? Megatron-Bridge's published procedure.

With its default "pipeline" thresholds. Per-step losses of candidate (c) and reference (g) over the
same steps and rows are judged by four criteria: Pearson correlation, point-wise relative
difference, relative difference of the final loss, and outliers among the residuals. Before them:
the steps must be the same, and every loss and gradient norm finite.

The edges that the procedure leaves to NaN are settled so:

- one curve constant, the other not: the correlation is undefined and its criterion fails;
- both curves constant: undefined, and the other criteria decide;
- a reference loss of 0: equal only to 0, any other candidate loss is a failure of that point;
- other steps, missing steps, fewer than two steps: fail, and no figure is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Losses = Mapping[int, float | None]


@dataclass(frozen=True)
class Thresholds:
    """Bounds of the four criteria; the defaults are the published "pipeline" ones."""

    correlation: float = 0.95
    #: (loss above which it holds, relative tolerance), first match counts.
    tolerances: tuple[tuple[float, float], ...] = ((2.0, 0.10), (0.5, 0.05), (-math.inf, 0.02))
    pointwise_fraction: float = 0.10
    final_loss: float = 0.03
    outlier_sigmas: float = 3.0
    outlier_fraction: float = 0.10

    def tolerance(self, reference_loss: float) -> float:
        """Relative tolerance at one reference loss."""
        return next(t for above, t in self.tolerances if reference_loss > above)


PIPELINE = Thresholds()


@dataclass(frozen=True)
class Curve:
    """Per step (counted from 0) its loss and, where recorded, its gradient norm.

    A null loss is a failed one. Gradient norms that are all null (or absent) are unknown and not
    judged; a null among numbers was NaN or infinite when it was recorded.
    """

    losses: Losses
    grad_norms: Losses = field(default_factory=dict)


@dataclass(frozen=True)
class Convergence:
    """The verdict and its figures; a figure is None where it is not defined.

    ``failures`` names the failed criteria (``steps``, ``finite``, ``correlation``, ``pointwise``,
    ``final_loss``, ``outliers``), each with a sentence.
    """

    result: Literal["pass", "fail"]
    steps: int
    correlation: float | None = None
    final_loss_difference: float | None = None
    pointwise_failures: int | None = None
    outliers: int | None = None
    max_relative_difference: float | None = None
    failures: dict[str, str] = field(default_factory=dict)


def compare(candidate: Curve, reference: Curve, thresholds: Thresholds = PIPELINE) -> Convergence:
    """Judge ``candidate`` against ``reference``; never raises, never gives NaN."""
    steps = sorted(set(candidate.losses) | set(reference.losses))
    fault = _steps_fault(candidate.losses, reference.losses)
    if fault is not None:
        return Convergence("fail", len(steps), failures={"steps": fault})
    for name, curve in (("candidate", candidate), ("reference", reference)):
        fault = _finite_fault(name, curve)
        if fault is not None:
            return Convergence("fail", len(steps), failures={"finite": fault})
    c = [float(candidate.losses[s] or 0.0) for s in steps]
    g = [float(reference.losses[s] or 0.0) for s in steps]
    return _judge(c, g, thresholds)


def _judge(c: Sequence[float], g: Sequence[float], thresholds: Thresholds) -> Convergence:
    n = len(c)
    failures: dict[str, str] = {}

    correlation = pearson(c, g)
    if correlation is None and is_constant(c) != is_constant(g):
        which = "candidate" if is_constant(c) else "reference"
        failures["correlation"] = f"the {which}'s loss is constant, the other's is not"
    elif correlation is not None and correlation < thresholds.correlation:
        failures["correlation"] = f"{correlation:.7f} < {thresholds.correlation}"

    differences = [relative_difference(a, b) for a, b in zip(c, g, strict=True)]
    pointwise = sum(
        difference is None or difference > thresholds.tolerance(loss)
        for difference, loss in zip(differences, g, strict=True)
    )
    if pointwise > thresholds.pointwise_fraction * n:
        failures["pointwise"] = f"{pointwise} of {n} points are over their tolerance"

    final = differences[-1]
    if final is None:
        failures["final_loss"] = "the reference's final loss is 0, the candidate's is not"
    elif final > thresholds.final_loss:
        failures["final_loss"] = f"{final:.3g} > {thresholds.final_loss}"

    outliers = count_outliers([a - b for a, b in zip(c, g, strict=True)], thresholds.outlier_sigmas)
    if outliers > thresholds.outlier_fraction * n:
        failures["outliers"] = (
            f"{outliers} of {n} residuals are over {thresholds.outlier_sigmas} sigma"
        )

    known = [d for d in differences if d is not None]
    return Convergence(
        result="fail" if failures else "pass",
        steps=n,
        correlation=correlation,
        final_loss_difference=final,
        pointwise_failures=pointwise,
        outliers=outliers,
        max_relative_difference=max(known) if len(known) == n else None,
        failures=failures,
    )


def relative_difference(value: float, reference: float) -> float | None:
    """|value - reference| / |reference|; None where that is not a finite number."""
    if value == reference:
        return 0.0
    if reference == 0:
        return None
    # Divided first: the difference of two large numbers may overflow, their ratio does not.
    difference = abs(value / reference - 1.0)
    exact = abs(value - reference) / abs(reference)
    chosen = exact if math.isfinite(exact) else difference
    return chosen if math.isfinite(chosen) else None


def pearson(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson correlation, within [-1, 1]; None where a curve is constant."""
    if is_constant(x) or is_constant(y):
        return None
    dx, dy = _unit_deviations(x), _unit_deviations(y)
    norm = math.sqrt(math.fsum(a * a for a in dx)) * math.sqrt(math.fsum(b * b for b in dy))
    if norm == 0:
        return None
    return max(-1.0, min(1.0, math.fsum(a * b for a, b in zip(dx, dy, strict=True)) / norm))


def is_constant(values: Sequence[float]) -> bool:
    """Whether every value is the same."""
    return min(values) == max(values)


def count_outliers(residuals: Sequence[float], sigmas: float) -> int:
    """Residuals further than ``sigmas`` population standard deviations from their mean."""
    deviations = _unit_deviations(residuals)
    sigma = math.sqrt(math.fsum(d * d for d in deviations) / len(deviations))
    return sum(abs(d) > sigmas * sigma for d in deviations)


def _unit_deviations(values: Sequence[float]) -> list[float]:
    """Deviations from the mean, scaled so that the largest is 1 (all 0 for a constant).

    The scale changes neither a correlation nor a count of sigmas, and keeps squares in range.
    """
    largest = max(abs(v) for v in values)
    if largest == 0 or not math.isfinite(largest):
        return [0.0 for _ in values]
    scaled = [v / largest for v in values]
    mean = math.fsum(scaled) / len(scaled)
    deviations = [s - mean for s in scaled]
    widest = max(abs(d) for d in deviations)
    return [d / widest for d in deviations] if widest else deviations


def _steps_fault(candidate: Losses, reference: Losses) -> str | None:
    for name, losses, other in (
        ("candidate", candidate, reference),
        ("reference", reference, candidate),
    ):
        missing = sorted(set(other) - set(losses))
        if missing:
            return (
                f"the {name} has {len(losses)} steps, the other {len(other)}; "
                f"step {missing[0]} is missing from the {name}"
            )
    if len(candidate) < 2:
        return f"at least two steps are needed, found {len(candidate)}"
    gap = next((s for s in range(min(candidate), max(candidate)) if s not in candidate), None)
    return None if gap is None else f"step {gap} is missing from both"


def _finite_fault(name: str, curve: Curve) -> str | None:
    norms = curve.grad_norms
    judged = norms if any(v is not None for v in norms.values()) else {}
    for what, values in (("loss", curve.losses), ("gradient norm", judged)):
        for step in sorted(values):
            value = values[step]
            if value is None or not math.isfinite(value):
                return f"the {name}'s {what} at step {step} is not a finite number"
    return None
