"""Where two runs part: the first step and layer whose fingerprints differ.

A run that was asked for it (``train --parity-probe-steps 0,10``) holds, per probed step, the norm
of each layer's output and of the loss's gradient there, over all tokens and ranks, and a few
logits of fixed tokens. They do not depend on the layout, so two layouts can be compared. A probe
never decides a verdict; it tells where to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from openrecipes.errors import InputError
from openrecipes.files import read_text, sha256_file
from openrecipes.gate.noise import LIMIT, half_precision
from openrecipes.gate.sides import Side
from openrecipes.metrics.convergence import relative_difference

PROBE: Final = "probe.jsonl"
#: Relative differences that the order of sums explains: of norms in fp32 and in half precision.
TOLERANCE: Final = {False: 1e-6, True: 1e-3}
#: Single logits scatter more than norms over all tokens do.
_LOGITS: Final = {False: 1e-5, True: 1e-1}
_LIMIT_BYTES: Final = 256 * 2**20


class _Layer(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    layer: int
    kind: str
    activation_norm: float | None
    gradient_norm: float | None


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    step: int
    layers: list[_Layer]
    logits: list[list[float | None]]


@dataclass(frozen=True)
class Parting:
    """Where two runs first differ by more than the tolerance.

    Attributes:
        step: the probed step.
        layer: the layer, from 0; None for the logits.
        kind: its letter (M, E, *, -); None for the logits.
        figure: activation_norm, gradient_norm or logits.
        difference: relative; None where one side has no number.
    """

    step: int
    layer: int | None
    kind: str | None
    figure: str
    difference: float | None

    def __str__(self) -> str:
        where = "the logits" if self.layer is None else f"layer {self.layer} ({self.kind})"
        figure = {"activation_norm": "output", "gradient_norm": "gradient"}.get(
            self.figure, "values"
        )
        apart = "no number" if self.difference is None else f"{self.difference:.2g}"
        return f"step {self.step}: {where} is the first to part, in its {figure} (relative {apart})"


@dataclass(frozen=True)
class Probe:
    """The comparison of two runs' probes: common steps, tolerance per step, where they part."""

    tolerance: dict[int, float]
    parting: Parting | None
    hashes: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """The probe part of a verdict."""
        parting = self.parting
        return {
            "steps": list(self.tolerance),
            "tolerance": list(self.tolerance.values()),
            "parted": None if parting is None else vars(parting),
            "sha256": self.hashes,
        }


def compare(candidate: Side, reference: Side, replicates: Sequence[Side] = ()) -> Probe | None:
    """Compare the probes of two runs; None where one has none.

    The tolerance of a step is that of the precision, or ten times what the replicates differ by
    where they were probed too.

    Raises:
        InputError: a broken probe file.
    """
    ours, theirs = _read(candidate), _read(reference)
    if ours is None or theirs is None:
        return None
    again = [lines for lines in map(_read, replicates) if lines is not None]
    base = TOLERANCE[half_precision(reference)]
    logits = _LOGITS[half_precision(reference)] / base
    tolerance: dict[int, float] = {}
    for step in sorted(ours.keys() & theirs.keys()):
        noise = [_largest(lines[step], theirs[step]) for lines in again if step in lines]
        tolerance[step] = max([base, *(LIMIT * value for value in noise)])
    partings = (_part(ours[step], theirs[step], limit, logits) for step, limit in tolerance.items())
    return Probe(
        tolerance=tolerance,
        parting=next((parting for parting in partings if parting is not None), None),
        hashes={
            name: sha256_file(side.path / PROBE)
            for name, side in (("candidate", candidate), ("reference", reference))
        },
    )


def _differences(ours: _Line, theirs: _Line) -> list[Parting]:
    """All of a step's differences in the order of computation: forward, logits, backward."""
    pairs = list(zip(ours.layers, theirs.layers, strict=False))

    def of(figure: str, a: _Layer, b: _Layer) -> Parting:
        x, y = getattr(a, figure), getattr(b, figure)
        apart = None if x is None or y is None else relative_difference(x, y)
        return Parting(ours.step, a.layer, a.kind, figure, apart)

    return [
        *(of("activation_norm", a, b) for a, b in pairs),
        Parting(ours.step, None, None, "logits", _logits(ours, theirs)),
        *(of("gradient_norm", a, b) for a, b in reversed(pairs)),
    ]


def _logits(ours: _Line, theirs: _Line) -> float | None:
    a = [value for row in ours.logits for value in row]
    b = [value for row in theirs.logits for value in row]
    if len(a) != len(b):
        return None
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if len(pairs) < len(a):
        return None
    scale = max((abs(y) for _, y in pairs), default=0.0)
    return max((abs(x - y) for x, y in pairs), default=0.0) / scale if scale else 0.0


def _part(ours: _Line, theirs: _Line, tolerance: float, logits: float) -> Parting | None:
    """The first difference over the tolerance (of logits: so many times it); missing layers too."""
    for parting in _differences(ours, theirs):
        allowed = tolerance * logits if parting.figure == "logits" else tolerance
        if parting.difference is None or parting.difference > allowed:
            return parting
    if len(ours.layers) != len(theirs.layers):
        last = max(ours.layers, theirs.layers, key=len)[min(len(ours.layers), len(theirs.layers))]
        return Parting(ours.step, last.layer, last.kind, "activation_norm", None)
    return None


def _largest(ours: _Line, theirs: _Line) -> float:
    """The largest difference of a norm."""
    known = [p.difference or 0.0 for p in _differences(ours, theirs) if p.figure != "logits"]
    return max(known, default=0.0)


def _read(side: Side) -> dict[int, _Line] | None:
    """The probed steps of a run, ascending; a step that was run again counts as it was last."""
    file = side.path / PROBE
    if side.kind != "run" or not file.is_file():
        return None
    lines = {}
    for number, text in enumerate(read_text(file, _LIMIT_BYTES).splitlines(), start=1):
        if text.strip():
            line = _line(text, file, number)
            lines[line.step] = line
    return dict(sorted(lines.items()))


def _line(text: str, file: Path, number: int) -> _Line:
    try:
        return _Line.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise InputError(
            "mend or remove the line",
            file=f"{file}:{number}",
            field=".".join(map(str, first["loc"])) or None,
            found=first["input"],
            expected=first["msg"],
        ) from None
