"""The gate: compare two sides, write the verdict into the candidate's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from openrecipes import __version__
from openrecipes.errors import ExitCode, InputError
from openrecipes.files import write_json, write_text
from openrecipes.gate import configuration, curves, kernels, noise, picture, probe, reasons, rules
from openrecipes.gate.plain import plain
from openrecipes.gate.sides import Side, load

#: Where the verdict and its picture lie in the candidate's record.
VERDICT, PICTURE = Path("verdicts", "check.json"), Path("verdicts", "check.svg")
#: Version of the verdict's format.
FORMAT: Final = 1
_EXITS = {"pass": ExitCode.DONE, "fail": ExitCode.NEGATIVE, "review": ExitCode.REVIEW}


@dataclass(frozen=True)
class Verdict:
    """Everything a check found.

    Attributes:
        verdict: pass, fail or review.
        reasons: why it is no pass; empty for a pass.
        look_first: what a reviewer should look at, the gravest first.
    """

    verdict: str
    candidate: Side
    reference: Side
    replicates: tuple[Side, ...]
    configuration: configuration.Configuration
    convergence: curves.Curves | None
    components: tuple[Mapping[str, Any], ...]
    probe: probe.Probe | None
    reasons: tuple[str, ...]
    look_first: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 for a pass, 1 for a fail, 3 for a review."""
        return _EXITS[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """The verdict as a document, fit for JSON."""
        convergence = self.convergence
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "look_first": list(self.look_first),
            "configuration": plain(self.configuration.as_json()),
            "convergence": None if convergence is None else plain(convergence.as_json()),
            "components": [plain(dict(t)) for t in self.components if t["result"] != "not run"],
            "components_not_run": [
                {key: plain(test[key]) for key in ("component", "flag", "reason")}
                for test in self.components
                if test["result"] == "not run"
            ],
            "probe": None if self.probe is None else plain(self.probe.as_json()),
            "inputs": {
                "candidate": self.candidate.described(),
                "reference": self.reference.described(),
                "replicates": [side.described() for side in self.replicates],
            },
            "rules": {"version": rules.version(), "sha256": rules.sha256()},
            "openrecipes": __version__,
        }


def check(
    candidate: str | Path,
    reference: str | Path,
    replicates: Sequence[str | Path] = (),
    reviews: Sequence[Mapping[str, Any]] = (),
) -> Verdict:
    """Check that ``candidate`` is the same training as ``reference``.

    A candidate that is a run record gets ``verdicts/check.json`` and, where both sides are runs,
    ``verdicts/check.svg``; a recipe is never edited.

    Args:
        candidate: a run record's directory or a recipe's file.
        reference: likewise.
        replicates: runs of the reference with another order of rows, for the noise floor.
        reviews: reviews of unknown names, beside those that recipes hold.

    Raises:
        InputError: a side or a replicate that cannot be used.
    """
    verdict = compare(
        load(candidate), load(reference), [load(replicate) for replicate in replicates], reviews
    )
    if verdict.candidate.kind == "run":
        _write(verdict)
    return verdict


def compare(
    candidate: Side,
    reference: Side,
    replicates: Sequence[Side] = (),
    reviews: Sequence[Mapping[str, Any]] = (),
) -> Verdict:
    """The verdict over two loaded sides; writes nothing.

    Raises:
        InputError: both sides are one run, or replicates without two runs.
    """
    if candidate.kind == reference.kind == "run" and candidate.hashes == reference.hashes:
        raise InputError(
            "give two runs; a run proves nothing about itself",
            file=candidate.path,
            field="REFERENCE",
            found=f"{reference.path}, the same record",
            expected="another run",
        )
    found = configuration.compare(candidate, reference, reviews)
    convergence = None
    if candidate.kind == reference.kind == "run":
        floor = noise.measure(candidate, reference, replicates)
        convergence = curves.judge(candidate, reference, floor, len(replicates))
    elif replicates:
        raise InputError(
            "give two run records, or leave --replicate out",
            field="--replicate",
            found="a recipe among the two sides",
        )
    components = kernels.test(found.differences, candidate)
    probed = probe.compare(candidate, reference, replicates)
    return Verdict(
        verdict=_overall(found, convergence, kernels.verdict(components)),
        candidate=candidate,
        reference=reference,
        replicates=tuple(replicates),
        configuration=found,
        convergence=convergence,
        components=tuple(components),
        probe=probed,
        reasons=tuple(reasons.reasons(found, convergence, components)),
        look_first=tuple(reasons.look_first(found, convergence, components, probed)),
    )


def _overall(
    found: configuration.Configuration, convergence: curves.Curves | None, components: str
) -> str:
    results = {difference.verdict for difference in found.differences} - {"component"}
    results |= {components, "review" if convergence is None else convergence.result}
    return next((verdict for verdict in ("fail", "review") if verdict in results), "pass")


def _write(verdict: Verdict) -> None:
    record = verdict.candidate.path
    try:
        if verdict.convergence is not None:
            write_text(
                record / PICTURE,
                picture.draw(verdict.candidate, verdict.reference, verdict.convergence),
            )
        write_json(record / VERDICT, verdict.as_json())
    except OSError as error:
        raise InputError(
            "make the record writable", file=record / VERDICT, found=error.strerror
        ) from None
