"""The noise floor: how far the reference is from itself, and the candidate from it.

A replicate is the reference run again with the rows permuted within each global batch, and so
with another order of reductions: mathematically the same sums. What it differs by is noise of the
precision. The candidate's difference is given as a multiple of it, with an interval over steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openrecipes.errors import InputError
from openrecipes.gate.configuration import compare
from openrecipes.gate.sides import Side
from openrecipes.metrics.convergence import relative_difference

#: A candidate further from the reference than this many floors is not noise.
LIMIT: Final = 10.0
#: In half precision noise has long tails (a token that goes to another expert shifts a step by a
#: hundred times the usual): with fewer replicates than these, only this many floors are a fail.
FEW: Final = 3
LIMIT_OF_FEW: Final = 100.0
#: Floors below these are luck of one replicate: relative, for fp32 sums. With the limit they make
#: the tolerances that separate reordering from every planted fault (1e-6 on losses, 1e-5 on
#: gradient norms at a constant learning rate of 1e-4).
RESOLUTION: Final = {"loss": 1e-7, "grad_norm": 1e-6}
#: What a learning rate x1.1 moved in ten steps of a small model, relative, per unit of learning
#: rate (measured at 1e-5, 1e-4 and 1e-3).
LR_EFFECT: Final = {"loss": 1.6, "grad_norm": 26.0}
#: Flags that cut a global batch into micro-batches.
_CUTTING_FLAGS: Final = frozenset(
    {"micro-batch-size", "use-dynamic-batch-size", "max-tokens-per-gpu"}
)
#: Differences by which a replicate is still the reference: the order of rows and of sums.
_ORDER_FLAGS: Final = _CUTTING_FLAGS | {
    "row-order-seed",
    "balance-data",
}
_RESAMPLES: Final = 2000
_LARGEST: Final = 1e100  # a relative difference whose square is still a number
_NAMES: Final = {"loss": "loss", "grad_norm": "gradient norm"}


@dataclass(frozen=True)
class Multiple:
    """One figure's floor and the candidate's distance in floors.

    Attributes:
        floor: root mean square over steps and replicates of the relative difference.
        difference: root mean square over steps of the candidate's relative difference.
        multiple: difference / max(floor, resolution).
        low: lower end of the multiple's 95% interval (paired block bootstrap over steps).
        high: upper end.
        band: the floor per step (largest of the replicates), for pictures.
    """

    floor: float
    difference: float
    multiple: float
    low: float
    high: float
    band: tuple[float, ...]


@dataclass(frozen=True)
class Floor:
    """The noise floor of a reference and a candidate's multiple of it.

    Attributes:
        replicates: how many.
        steps: the numbers of the steps.
        figures: ``loss`` and, where recorded, ``grad_norm``.
        lr: the mean learning rate; None where unknown.
        partial: the floor is too low: in half precision each product is rounded inside its
            micro-batch, and no replicate has other micro-batches than the reference.
        few: half precision, and too few replicates to know its tails.
    """

    replicates: int
    steps: tuple[int, ...]
    figures: dict[str, Multiple]
    lr: float | None
    partial: bool = False
    few: bool = False

    @property
    def resolves_learning_rate(self) -> bool | None:
        """Whether a learning rate x1.1 would show over the limit; None where it is unknown."""
        if self.lr is None:
            return None
        return any(
            LR_EFFECT[name] * self.lr > LIMIT * max(figure.floor, RESOLUTION[name])
            for name, figure in self.figures.items()
        )

    def failures(self) -> dict[str, str]:
        """Figures whose whole interval is over the limit, unless the floor itself is in doubt."""
        return self._over(self._fails)

    def doubts(self) -> dict[str, str]:
        """Figures over the limit that are no failures: the interval, or the floor, is in doubt."""
        return self._over(lambda figure: figure.multiple > LIMIT and not self._fails(figure))

    def _fails(self, figure: Multiple) -> bool:
        return not self.partial and figure.low > (LIMIT_OF_FEW if self.few else LIMIT)

    def _over(self, chosen: Callable[[Multiple], bool]) -> dict[str, str]:
        return {
            f"noise_floor_{name}": f"the {_NAMES[name]} differs by {figure.multiple:.3g} times the "
            f"noise floor (95%: {figure.low:.3g} to {figure.high:.3g}); the limit is {LIMIT:g}"
            for name, figure in self.figures.items()
            if chosen(figure)
        }

    def notes(self) -> list[str]:
        """What the floor can and cannot show."""
        notes = []
        if self.partial:
            notes.append(
                "The floor is too low: in half precision rounding happens inside micro-batches, "
                "and no replicate has other ones than the reference. Give one with another "
                "--micro-batch-size or --max-tokens-per-gpu as well."
            )
        elif all(figure.floor == 0 for figure in self.figures.values()):
            notes.append(
                "The replicates equal the reference to the last digit: the floor is the "
                "resolution of fp32 sums. Give a replicate with another --row-order-seed."
            )
        if self.few and not self.partial:
            notes.append(
                f"In half precision noise has long tails: with fewer than {FEW} replicates a "
                f"difference of {LIMIT:g} to {LIMIT_OF_FEW:g} floors is a review, not a fail."
            )
        if self.resolves_learning_rate is False:
            notes.append(
                "The noise floor hides what a learning rate x1.1 would change: this comparison "
                "confirms, it does not prove. The proof is the same pair in fp32 on a shrunk "
                "model (a rehearsal)."
            )
        return notes

    def as_json(self) -> dict[str, Any]:
        """The noise floor as a verdict holds it."""
        return {
            "replicates": self.replicates,
            "limit": LIMIT,
            "partial": self.partial,
            "resolves_learning_rate_x1.1": self.resolves_learning_rate,
            **{
                name: {
                    "floor": figure.floor,
                    "difference": figure.difference,
                    "multiple": figure.multiple,
                    "interval_95": [figure.low, figure.high],
                }
                for name, figure in self.figures.items()
            },
        }


def measure(candidate: Side, reference: Side, replicates: Sequence[Side]) -> Floor | None:
    """The noise floor of ``reference`` from its replicates; None without one.

    None also where candidate and reference cannot be compared step by step (other steps, losses
    that are not finite): the published procedure fails those already.

    Raises:
        InputError: a replicate that is none.
    """
    if not replicates:
        return None
    for number, replicate in enumerate(replicates):
        _refuse_false(replicate, candidate, reference, replicates[:number])
    steps = tuple(step.step for step in reference.steps or ())
    figures = {}
    for name in _NAMES:
        ours = _apart(name, candidate, reference)
        noise = [_apart(name, replicate, reference) for replicate in replicates]
        known = [apart for apart in noise if apart is not None]
        if ours is not None and len(known) == len(noise):
            figures[name] = _multiple(name, np.array(ours), np.array(known))
    if "loss" not in figures:
        return None
    half = half_precision(reference)
    cut = any(_cut_otherwise(replicate, reference) for replicate in replicates)
    rates = [step.lr for step in reference.steps or () if step.lr is not None]
    return Floor(
        replicates=len(replicates),
        steps=steps,
        figures=figures,
        lr=math.fsum(rates) / len(rates) if rates else None,
        partial=half and not cut,
        few=half and len(replicates) < FEW,
    )


def half_precision(side: Side) -> bool:
    """Whether a run computes in bf16 or fp16; outside engines do unless told otherwise."""
    return side.engine != "native" or bool(side.flags.get("bf16") or side.flags.get("fp16"))


def _cut_otherwise(replicate: Side, reference: Side) -> bool:
    return any(replicate.flags.get(flag) != reference.flags.get(flag) for flag in _CUTTING_FLAGS)


def _apart(figure: str, side: Side, reference: Side) -> list[float] | None:
    """Relative difference per step; None where the steps differ or a value is not finite."""
    ours = {step.step: getattr(step, figure) for step in side.steps or ()}
    theirs = {step.step: getattr(step, figure) for step in reference.steps or ()}
    if ours.keys() != theirs.keys():
        return None
    apart = []
    for step, b in theirs.items():
        a = ours[step]
        value = None if a is None or b is None else relative_difference(a, b)
        if value is None:
            return None
        apart.append(min(value, _LARGEST))
    return apart


def _multiple(figure: str, ours: NDArray[np.float64], noise: NDArray[np.float64]) -> Multiple:
    """Root-mean-square ratio with an interval from resampled blocks of steps.

    Steps are resampled together in candidate and replicates, in blocks of about n^(1/3), because
    neighbouring steps drift together.
    """
    n = ours.size
    block = max(1, round(n ** (1 / 3)))
    generator = np.random.default_rng(0)
    starts = generator.integers(0, n, size=(_RESAMPLES, math.ceil(n / block)))
    picks = ((starts[:, :, None] + np.arange(block)) % n).reshape(_RESAMPLES, -1)[:, :n]
    ours_each, noise_each = _rms(ours[picks], axis=1), _rms(noise[:, picks], axis=(0, 2))
    ratios = ours_each / np.maximum(noise_each, RESOLUTION[figure])
    low, high = np.quantile(ratios, [0.025, 0.975])
    floor, difference = float(_rms(noise)), float(_rms(ours))
    return Multiple(
        floor=floor,
        difference=difference,
        multiple=difference / max(floor, RESOLUTION[figure]),
        low=float(low),
        high=float(high),
        band=tuple(float(value) for value in noise.max(axis=0)),
    )


def _rms(values: NDArray[np.float64], axis: int | tuple[int, ...] | None = None) -> Any:
    return np.sqrt(np.mean(np.square(values), axis=axis))


def _refuse_false(
    replicate: Side, candidate: Side, reference: Side, others: Sequence[Side]
) -> None:
    """Raise InputError unless ``replicate`` is the reference again in another order of rows."""

    def refuse(found: str, expected: str) -> InputError:
        return InputError(
            "give a run of the reference recipe with another --row-order-seed",
            file=replicate.path,
            field="--replicate",
            found=found,
            expected=expected,
        )

    if replicate.kind != "run":
        raise refuse("a recipe", "a run record")
    for name, other in (
        ("the candidate", candidate),
        ("the reference", reference),
        *(("another replicate", other) for other in others),
    ):
        if replicate.name == other.name or replicate.hashes == other.hashes:
            raise refuse(f"{name} itself", "another run")
    for difference in compare(replicate, reference).differences:
        unknown = difference.candidate is None and difference.reference is None
        if difference.kind in ("io", "placement") or unknown:
            continue
        if difference.flag not in _ORDER_FLAGS and not difference.flag.startswith("env."):
            raise refuse(f"another {difference.flag}", "the reference's configuration")
        if difference.verdict != "pass":
            raise refuse(f"another {difference.flag}", "the reference's configuration")
    for figure in ("tokens", "supervised_tokens"):
        ours = {step.step: getattr(step, figure) for step in replicate.steps or ()}
        theirs = {step.step: getattr(step, figure) for step in reference.steps or ()}
        if ours != theirs:
            raise refuse(
                f"other {figure} per step: other rows, whose noise hides every fault",
                "the reference's rows in each step",
            )
    reference_is_finite = _apart("loss", reference, reference) is not None
    if reference_is_finite and _apart("loss", replicate, reference) is None:
        raise refuse(
            "losses that are no finite numbers", "a loss for each of the reference's steps"
        )
