"""From the gate's verdict to the recipe's ``correctness`` block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openrecipes.errors import InputError
from openrecipes.files import read_json, sha256_file
from openrecipes.gate.check import VERDICT
from openrecipes.layouts.describe import described
from openrecipes.layouts.layout import Layout
from openrecipes.metrics.rounding import written
from openrecipes.runs.record import MANIFEST, STEPS, Manifest, RunRecord

_VERDICT_LIMIT = 64 * 2**20  # bytes


def read_verdict(
    record: RunRecord, reference: RunRecord | None
) -> tuple[dict[str, Any] | None, str | None]:
    """The verdict on ``record`` that holds for these very files, else why there is none.

    A verdict names the hashes of what it was reached on; one changed byte in either record and it
    no longer speaks of it.

    Raises:
        InputError: a verdict that is no verdict.
    """
    file = record.path / VERDICT
    if not file.is_file():
        return None, f"no {VERDICT} in {record.path}: run `openrecipes check`"
    verdict = read_json(file, _VERDICT_LIMIT)
    inputs = verdict.get("inputs") if isinstance(verdict, dict) else None
    if not isinstance(inputs, dict) or "verdict" not in verdict:
        raise InputError("check the run again", file=file, found="no verdict")
    if reference is None:
        return None, "no --reference was given, so the check cannot be tied to its two records"
    for name, side in (("candidate", record), ("reference", reference)):
        told = inputs.get(name)
        hashes = told.get("sha256") if isinstance(told, dict) else None
        if hashes != record_hashes(side):
            return None, f"the {name} is not the one that {file} was reached on: check again"
    return verdict, None


def record_hashes(record: RunRecord) -> dict[str, str]:
    """sha256 of a record's two files, as a verdict names them."""
    return {name: sha256_file(record.path / name) for name in (MANIFEST, STEPS)}


def correctness(
    verdict: Mapping[str, Any], candidate: Manifest, reference: Manifest | None
) -> dict[str, Any]:
    """The block: verdict, what it was compared with, configuration, curves, rules, reviews."""
    result, configuration = verdict["verdict"], verdict["configuration"]
    block: dict[str, Any] = {"result": result, "summary": _summary(verdict)}
    if reference is not None:
        block["reference"] = _reference(reference)
    tests = [dict(test) for test in verdict.get("components") or []]
    block["configuration"] = _configuration(configuration["verdict"], tests)
    block["component_tests"] = [t for t in tests if t.get("relative_error") is not None]
    curves = verdict.get("convergence")
    if curves is not None:
        block["convergence"] = _convergence(curves, candidate, reference)
    rules = verdict.get("rules") or {}
    procedure = (curves or {}).get("procedure")
    block["rules"] = f"openrecipes argument classes, version {rules.get('version')}" + (
        f"; {curves['steps']}-step check by {procedure}" if curves and procedure else ""
    )
    reviews = [_review(d) for d in configuration["differences"] if d.get("review")]
    if reviews:
        block["reviews"] = reviews
    return block


def _configuration(verdict: str, tests: Sequence[Mapping[str, Any]]) -> str:
    """Pass, fail or review; a difference that asks for component tests is judged by them."""
    if verdict != "component":
        return verdict
    if not tests:
        return "review"
    return "pass" if all(test["result"] == "pass" for test in tests) else "fail"


def _summary(verdict: Mapping[str, Any]) -> str:
    result = verdict["verdict"]
    reviewed = [
        f"{d['flag']} ({d['reference']} to {d['candidate']}) was classed as {d['class']} on review"
        for d in verdict["configuration"]["differences"]
        if d.get("review")
    ]
    words = {"pass": "passed", "fail": "failed", "review": "needs review"}
    reasons = [] if result == "pass" else [str(reason) for reason in verdict.get("reasons") or []]
    return "; ".join([words.get(result, str(result)), *reviewed, *reasons])


def _reference(reference: Manifest) -> str:
    text = f"{reference.engine} run {reference.id}"
    if reference.layout is None or not reference.rows.row_tokens:
        return text
    layout = described(Layout.model_validate(reference.layout), reference.rows.row_tokens)
    return f"{text}: {layout.summary}"


def _convergence(
    curves: Mapping[str, Any], candidate: Manifest, reference: Manifest | None
) -> dict[str, Any]:
    def rounded(figure: str) -> float | None:
        value = curves.get(figure)
        return None if value is None else written(figure, float(value))

    probes = {candidate.parity_probe, reference.parity_probe if reference else None}
    return {
        "steps": curves["steps"],
        "result": curves["result"],
        "correlation": rounded("correlation"),
        "final_loss_difference": rounded("final_loss_difference"),
        "pointwise_failures": curves.get("pointwise_failures"),
        "note": _note(curves),
        "parity_probe": True if True in probes else None if None in probes else False,
        "candidate_run": candidate.id,
        "reference_run": reference.id if reference else None,
    }


def _note(curves: Mapping[str, Any]) -> str:
    text = "candidate arm: the measured run; reference arm: a run of the reference on the same rows"
    floor = curves.get("noise_floor")
    return text if floor is None else f"{text}; a noise floor was measured with replicates"


def _review(difference: Mapping[str, Any]) -> dict[str, Any]:
    review = difference["review"]
    told = {
        "flag": difference["flag"],
        "candidate": _text(difference["candidate"]),
        "reference": _text(difference["reference"]),
        "class": difference["class"],
        "reason": str(review.get("reason") or difference["reason"]),
        "by": review.get("by"),
        "date": review.get("date"),
    }
    return {name: value for name, value in told.items() if value is not None}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
