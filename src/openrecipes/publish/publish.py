"""Publish: run records in, a recipe that lints out; or nothing at all."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openrecipes.errors import InputError
from openrecipes.files import refuse_existing, write_text
from openrecipes.publish import evidence
from openrecipes.publish.build import build, figures
from openrecipes.publish.correctness import read_verdict
from openrecipes.publish.options import Options, Price
from openrecipes.recipe.document import dump
from openrecipes.recipe.schema import Recipe
from openrecipes.runs.record import RunRecord


@dataclass(frozen=True)
class Published:
    """What came of publishing.

    Attributes:
        recipe: the recipe; written to ``path`` unless ``refused``.
        path: the recipe's file.
        evidence: the evidence's folder; None where none was asked for.
        findings: what lint says of the recipe, as JSON objects.
        notes: what the person should know, such as why it is not verified.
    """

    recipe: Recipe
    path: Path
    evidence: Path | None
    findings: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    @property
    def refused(self) -> bool:
        """Lint found an error: the numbers do not add up, and nothing was written."""
        return any(finding["severity"] == "error" for finding in self.findings)


def publish(
    runs: Sequence[str | Path],
    output: str | Path,
    *,
    reference: str | Path | None = None,
    options: Options | None = None,
    bundle: bool = False,
    force: bool = False,
) -> Published:
    """Make a recipe from runs and write it, unless its numbers do not add up.

    Args:
        runs: run records; the figures are pooled, the first is the recipe's candidate.
        output: the recipe's file.
        reference: record of the reference run.
        options: what no record tells.
        bundle: write the evidence beside the recipe, as ``NAME.evidence``.
        force: replace an existing recipe and evidence.

    Raises:
        InputError: an existing output, a run that cannot be published, a missing fact.
    """
    output = Path(output)
    if output.is_dir():
        raise InputError("give a file", file=output, field="--output", found="a directory")
    folder = output.with_suffix(".evidence")
    refuse_existing(output, force=force)
    if bundle:
        refuse_existing(folder, force=force)
        _refuse_foreign(folder)
    records = [RunRecord.open(run) for run in runs]
    against = None if reference is None else RunRecord.open(reference)
    for record in [*records, *([against] if against else [])]:
        record.steps()  # all is readable before anything is made of it
    sources = evidence.gather(records, against)
    published = [sources.published(record) for record in records]
    verdict, reason = read_verdict(records[0], against)
    options = _settled(options or Options(), figures(published, options or Options()), output)
    notes = [] if reason is None else [f"measured, not verified: {reason}"]
    _make_folder(output.parent)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
        block = None
        if bundle:
            digest = evidence.write(Path(scratch) / "evidence", sources, options, verdict)
            block = {"path": folder.name, "sha256": digest}
        recipe = build(
            published,
            options,
            None if verdict is None else sources.published_verdict(verdict),
            None if against is None else sources.published(against).manifest,
            block,
        )
        text = dump(recipe, options.path)
        findings = tuple(lint_text(text, output))
        done = Published(recipe, output, folder if bundle else None, findings, tuple(notes))
        if recipe.status == "measured" and verdict is not None:
            notes.append(f"measured, not verified: the check's verdict is {verdict['verdict']}")
            done = replace(done, notes=tuple(notes))
        if done.refused:
            return done
        if bundle:
            evidence.replace(folder, Path(scratch) / "evidence")
        write_text(output, text)
    return done


def lint_text(text: str, path: Path) -> list[dict[str, Any]]:
    """What lint says of a recipe's text that would lie at ``path``; JSON objects."""
    from openrecipes.recipe import yaml
    from openrecipes.recipe.lint import header, lint_data

    data = yaml.plain(yaml.parse(text, str(path)))
    found = lint_data(data, path=path.absolute(), header=header(text), rows=lambda name: None)
    return [finding.as_json() for finding in found]


def _settled(options: Options, result: dict[str, Any], output: Path) -> Options:
    """The options with the price that the figures used, and the recipe's place in a registry."""
    price = result["price"]
    parts = output.resolve().parts
    place = None
    if "recipes" in parts[:-1]:
        place = "/".join(parts[len(parts) - 1 - parts[::-1].index("recipes") :])
    return options.model_copy(
        update={"price": None if price is None else Price(**price), "path": place}
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            "choose a place that can be written",
            file=folder,
            field="--output",
            found=error.strerror,
        ) from None


def _refuse_foreign(folder: Path) -> None:
    """Only an earlier evidence is ever replaced."""
    if folder.exists() and not (folder / evidence.SUMS).is_file():
        raise InputError(
            "move it away, or choose another --output",
            file=folder,
            found=f"no {evidence.SUMS}",
            expected="an earlier evidence, or nothing",
        )
