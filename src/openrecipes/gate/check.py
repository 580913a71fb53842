"""The gate: compare two sides, write the verdict into the candidate's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from openrecipes import __version__
from openrecipes.errors import ExitCode, InputError
from openrecipes.files import write_json, write_text
from openrecipes.gate import configuration, curves, kernels, noise, picture, rules
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
    """The verdict over two loaded sides; writes nothing."""
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
    return Verdict(
        verdict=_overall(found, convergence, kernels.verdict(components)),
        candidate=candidate,
        reference=reference,
        replicates=tuple(replicates),
        configuration=found,
        convergence=convergence,
        components=tuple(components),
        reasons=tuple(_reasons(found, convergence, components)),
        look_first=tuple(_look_first(found, convergence, components)),
    )


def _overall(
    found: configuration.Configuration, convergence: curves.Curves | None, components: str
) -> str:
    results = {difference.verdict for difference in found.differences} - {"component"}
    results |= {components, "review" if convergence is None else convergence.result}
    return next((verdict for verdict in ("fail", "review") if verdict in results), "pass")


def _reasons(
    found: configuration.Configuration,
    convergence: curves.Curves | None,
    components: Sequence[Mapping[str, Any]],
) -> list[str]:
    reasons = [_told(d) for d in found.differences if d.verdict not in ("pass", "component")]
    reasons += [_told_test(test) for test in components if test["result"] != "pass"]
    if convergence is None:
        reasons.append("Two run records are needed for a convergence check: a recipe has no curve.")
    else:
        reasons += [f"{name}: {told}" for name, told in convergence.failures.items()]
        reasons += [f"{name}: {told}" for name, told in convergence.doubts.items()]
    return reasons


def _told_test(test: Mapping[str, Any]) -> str:
    begin = f"{test['flag']}: the component test of {test['component']}"
    if test["result"] == "not run":
        return f"{begin} was not run: {test['reason']}"
    error = test["relative_error"]
    shown = "no number" if error is None else f"{error:.2g}"
    return f"{begin} in {test['precision']} failed: {shown} against {test['bound']:.2g}"


def _told(difference: configuration.Difference) -> str:
    return (
        f"{difference.flag} ({difference.kind}): {difference.candidate} against "
        f"{difference.reference}. {difference.reason}"
    )


def _look_first(
    found: configuration.Configuration,
    convergence: curves.Curves | None,
    components: Sequence[Mapping[str, Any]],
) -> list[str]:
    look = []
    by_verdict = {v: [d for d in found.differences if d.verdict == v] for v in ("fail", "review")}
    look += [f"{d.flag}: {d.candidate} against {d.reference}" for d in by_verdict["fail"]]
    if convergence is not None:
        look += list(convergence.failures.values())
        if convergence.failures and convergence.first is not None:
            look.append(f"the losses around step {convergence.first}")
    for difference in by_verdict["review"]:
        if difference.kind == "unknown":
            look.append(f"{difference.flag}: class it with `openrecipes review`")
        else:
            look.append(f"{difference.flag}: {difference.reason}")
    look += [_told_test(test) for test in components if test["result"] == "fail"]
    look += list(dict.fromkeys(test["reason"] for test in components if "reason" in test))
    if convergence is None:
        look.append("run both sides and check their records")
    else:
        look += list(convergence.doubts.values())
        look += [] if look else convergence.notes
    return look


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
