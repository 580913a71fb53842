"""Verify: make a published recipe again from its evidence, and compare every field."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from openrecipes.errors import InputError
from openrecipes.files import sha256_file
from openrecipes.gate import configuration, curves
from openrecipes.gate.sides import load as load_side
from openrecipes.publish import evidence
from openrecipes.publish.build import build
from openrecipes.publish.correctness import record_hashes
from openrecipes.recipe.document import load

#: Fields that no evidence can tell: a person's prose, and what becomes of a recipe later.
UNTOLD = frozenset(("notes", "superseded_by", "trials", "evidence.url", "evidence.path"))
#: The verdict's figures that are derived again from the two curves.
_FIGURES = ("result", "steps", "correlation", "final_loss_difference", "pointwise_failures")


@dataclass(frozen=True)
class Difference:
    """A field of the recipe, or a file of the evidence, that is not what the evidence gives."""

    field: str
    found: Any
    expected: Any
    message: str

    def as_json(self) -> dict[str, Any]:
        """The difference as ``verify --json`` prints it."""
        return {
            "field": self.field,
            "found": self.found,
            "expected": self.expected,
            "message": self.message,
        }


@dataclass(frozen=True)
class Verification:
    """What was compared and what differs."""

    checked: int
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        """Nothing differs."""
        return not self.differences


def verify(recipe_path: str | Path, folder: str | Path | None = None) -> Verification:
    """Derive a recipe's numbers again from its evidence.

    Args:
        recipe_path: the recipe.
        folder: its evidence; by default the folder beside it that it names.

    Raises:
        InputError: no recipe, no evidence, or an evidence that cannot be read.
    """
    document = load(recipe_path)
    block = document.recipe.evidence
    folder = _folder(Path(recipe_path), block.path if block else None, folder)
    if not folder.is_dir():
        raise InputError(
            "give the evidence's folder", file=folder, field="--evidence", found="no such directory"
        )
    found = [
        Difference(d["file"], d["found"], d["expected"], "the evidence's file has changed")
        for d in evidence.check_sums(folder)
    ]
    sums = sha256_file(folder / evidence.SUMS)
    if block is None:
        message = "the recipe names no evidence, so nothing ties it to these files"
        found.append(Difference("evidence.sha256", None, sums, message))
    if found:
        return Verification(1, tuple(found))
    sources, options, verdict = evidence.open_evidence(folder)
    reference = sources.reference.manifest if sources.reference else None
    told = _flat(document.recipe.block())
    again = _flat(
        build(
            sources.runs,
            options,
            verdict,
            reference,
            {"path": folder.name, "sha256": sums},
        ).block()
    )
    for field in sorted(told.keys() | again.keys()):
        if _untold(field):
            continue
        if _plain(told.get(field)) != _plain(again.get(field)) or (field in told) != (
            field in again
        ):
            message = "the evidence gives another value"
            found.append(Difference(field, told.get(field), again.get(field), message))
    found += _verdict_again(folder, sources, verdict)
    return Verification(len(told.keys() | again.keys()), tuple(found))


def _folder(recipe: Path, named: str | None, given: str | Path | None) -> Path:
    if given is not None:
        return Path(given)
    if named is None or Path(named).name != named or named in (".", ".."):
        raise InputError(
            "give --evidence DIR",
            file=recipe,
            field="evidence.path",
            found=named,
            expected="the name of a folder beside the recipe",
        )
    return recipe.parent / named


def _verdict_again(
    folder: Path, sources: evidence.Sources, verdict: dict[str, Any] | None
) -> list[Difference]:
    """The gate's verdict reached again on the two records."""
    if verdict is None or sources.reference is None:
        return []
    found = []
    sides = {evidence.CANDIDATE: sources.runs[0], evidence.REFERENCE: sources.reference}
    for name, record in sides.items():
        told_hashes = (verdict["inputs"].get(name) or {}).get("sha256")
        hashes = record_hashes(record)
        if told_hashes != hashes:
            message = "the verdict was reached on other files"
            found.append(Difference(f"{name} in the verdict", told_hashes, hashes, message))
    reviews = [d["review"] for d in verdict["configuration"]["differences"] if d.get("review")]
    candidate, reference = (load_side(folder / name) for name in sides)
    differences = configuration.compare(candidate, reference, reviews)
    replicates = verdict["inputs"].get("replicates") or []
    again = curves.judge(candidate, reference, None, len(replicates)).as_json()
    pairs: list[tuple[str, Any, Any]] = [
        ("configuration", verdict["configuration"]["verdict"], differences.verdict)
    ]
    told_curves = verdict.get("convergence") or {}
    pairs += [(f"convergence.{f}", told_curves.get(f), again.get(f)) for f in _FIGURES]
    for field, told, new in pairs:
        # A noise floor needs the replicates, which may add doubts that are not reached again.
        if told != new and not (field == "convergence.result" and told_curves.get("noise_floor")):
            message = "the gate gives another value on the evidence"
            found.append(Difference(f"correctness.{field}", told, new, message))
    return found


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Leaves by dotted path; lists by index; an empty map or list is a leaf."""
    if isinstance(value, dict) and value:
        items = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and value:
        items = [(f"{path}.{index}", item) for index, item in enumerate(value)]
    else:
        return {path: value}
    return {leaf: item for name, part in items for leaf, item in _flat(part, name).items()}


def _untold(field: str) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in UNTOLD)


def _plain(value: Any) -> Any:
    if isinstance(value, date | datetime):
        return value.isoformat()
    return str(value) if isinstance(value, str) else value
