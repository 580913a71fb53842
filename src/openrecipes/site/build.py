"""Builds the site: recipes and runs in, static files out; only what changed is rendered again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openrecipes.errors import InputError
from openrecipes.files import atomic_path, read_json, read_text, write_text
from openrecipes.hardware import catalogue
from openrecipes.recipe import document, yaml
from openrecipes.recipe.schema import Recipe
from openrecipes.site import docs, evidence, listing, page, render, sources
from openrecipes.site.programs import recipe_json, schemas
from openrecipes.site.sources import Source
from openrecipes.site.summary import Summary, summary

_FORMAT = 1


class BadRecipes(InputError):
    """Recipes, or records that they need, that no page can be made of.

    Attributes:
        faults: one for each; the error itself tells the last.
    """

    def __init__(self, faults: Iterable[InputError]) -> None:
        self.faults = tuple(faults)
        last = self.faults[-1]
        super().__init__(
            last.action,
            file=last.file,
            field=last.field,
            found=last.found,
            expected=last.expected,
        )


@dataclass
class Report:
    """What a build did: pages of recipes rendered and kept, files removed, where to look."""

    index: Path
    recipes: int = 0
    rendered: int = 0
    removed: int = 0
    runs: int = 0


@dataclass
class _Entry:
    """What the site keeps of a recipe between builds: enough for the index, no YAML needed."""

    stamp: Any
    summary: Summary
    runs: tuple[str, ...]
    reference: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            "stamp": self.stamp,
            "summary": self.summary.model_dump(mode="json", by_alias=True),
            "runs": list(self.runs),
            "reference": self.reference,
        }

    @classmethod
    def from_json(cls, item: dict[str, Any]) -> _Entry:
        return cls(
            item["stamp"],
            Summary.model_validate(item["summary"]),
            tuple(item["runs"]),
            item["reference"],
        )


@dataclass
class _Site:
    """One build: what is there, and the files it writes."""

    output: Path
    by_name: dict[str, Source]
    runs: dict[str, Path]
    written: set[str] = field(default_factory=set)
    loaded: dict[str, Recipe] = field(default_factory=dict)

    def write(self, address: str, content: str | bytes) -> None:
        """Write one file, unless it holds the same already."""
        self.written.add(address)
        target = self.output / address
        data = content if isinstance(content, bytes) else content.encode()
        try:
            if target.stat().st_size == len(data) and target.read_bytes() == data:
                return
        except OSError:
            pass
        with atomic_path(target) as temporary:
            temporary.write_bytes(data)


def build(recipes: Path, output: Path, runs: Path | None = None) -> Report:
    """Build the site in ``output``, in place.

    Args:
        recipes: folder of recipe files, searched with its subfolders.
        output: folder of the site; new, empty, or built by this before.
        runs: folder of run records; evidence folders beside the recipes are searched too.

    Raises:
        BadRecipes: recipes or records that cannot be used, each with its fault.
        InputError: no recipe, or a folder that is no site. Nothing is written in either case.
    """
    found = sources.find(recipes)
    if runs is not None and not runs.is_dir():
        raise InputError(
            "give a folder of run records", file=runs, field="--runs", found="no such directory"
        )
    old = _state(output)
    site = _Site(output, {s.name: s for s in found}, evidence.find(_roots(recipes, runs, found)))
    known = old.get("entries", {}) if old.get("fingerprint") == render.fingerprint() else {}
    entries: dict[str, _Entry] = {}
    fresh: list[tuple[Source, _Entry, dict[str, str]]] = []
    faults: list[InputError] = []
    for source in found:
        try:
            entry = _kept(source, known, site)
            if entry is None:
                entry, files = _render(source, site)
                fresh.append((source, entry, files))
            entries[source.name] = entry
        except InputError as fault:
            faults.append(fault)
    if faults:
        raise BadRecipes({str(fault): fault for fault in faults}.values())
    for _, _, files in fresh:
        for address, text in files.items():
            site.write(address, text)
    for source in found:
        site.written.update(source.address + ending for ending in (".html", ".json", ".yaml"))
    for address, content in _shared([entry.summary for entry in entries.values()]):
        site.write(address, content)
    removed = _remove(output, set(old.get("files", ())) - site.written)
    _save(site, entries)
    return Report(output / "index.html", len(found), len(fresh), removed, len(site.runs))


def _shared(summaries: list[Summary]) -> Iterable[tuple[str, str | bytes]]:
    """The files that are not one recipe's: index, models, comparison, schemas, static files."""
    for name in render.STATIC:
        yield f"static/{name}", render.static(name)
    yield from listing.pages(summaries)
    yield from schemas()
    yield from docs.pages()


def _roots(recipes: Path, runs: Path | None, found: list[Source]) -> list[Path]:
    folders = {source.path.with_suffix(sources.EVIDENCE) for source in found}
    beside = sorted(folder for folder in folders if folder.is_dir())
    # Published evidence first: names of machines and people are taken out of it.
    return [*beside, *([runs] if runs else [])]


def _kept(source: Source, known: dict[str, Any], site: _Site) -> _Entry | None:
    """The entry of the last build where nothing it came from has changed."""
    item = known.get(source.name)
    if item is None:
        return None
    entry = _Entry.from_json(item)
    if entry.stamp != _stamp(source, entry.runs, entry.reference, site):
        return None
    whole = all(
        (site.output / (source.address + ending)).is_file()
        for ending in (".html", ".json", ".yaml")
    )
    return entry if whole else None


def _stamp(source: Source, runs: tuple[str, ...], reference: str | None, site: _Site) -> list[Any]:
    """Equal when the recipe, its reference and its runs are unchanged (sizes and times)."""
    other = sources.named(reference, site.by_name) if reference else None
    return [
        source.address,
        source.size,
        source.mtime,
        [other.address, other.size, other.mtime] if other else None,
        [evidence.stamp(site.runs[run]) if run in site.runs else None for run in runs],
    ]


def _load(source: Source, site: _Site) -> Recipe:
    if source.name not in site.loaded:
        site.loaded[source.name] = document.load(source.path).recipe
    return site.loaded[source.name]


def _render(source: Source, site: _Site) -> tuple[_Entry, dict[str, str]]:
    """A recipe's entry and its files: page, JSON and YAML."""
    recipe = _load(source, site)
    text = read_text(source.path, yaml.MAX_BYTES)
    candidate, reference_run, reference_path = _names(recipe)
    other = sources.named(reference_path, site.by_name) if reference_path else None
    if other is source:
        other = None
    gpu = catalogue.gpu(recipe.gpu.type)
    built = page.build(
        recipe,
        text,
        source.name,
        source.address,
        candidate=_run(candidate, site),
        reference_run=_run(reference_run, site),
        reference=page.Reference(_load(other, site), other.address) if other else None,
        successor=_successor(recipe, site),
        peak_flops=gpu.peak(recipe.workload.precision) if gpu else None,
    )
    html = render.page("recipe.html", source.address, "index", ("site.js",), page=built)
    brief = summary(recipe, source.address, source.name)
    runs = tuple(run for run in (candidate, reference_run) if run)
    entry = _Entry(_stamp(source, runs, reference_path, site), brief, runs, reference_path)
    return entry, {
        f"{source.address}.html": html,
        f"{source.address}.json": recipe_json(recipe, brief),
        f"{source.address}.yaml": text,
    }


def _names(recipe: Recipe) -> tuple[str | None, str | None, str | None]:
    """Ids of the candidate's and the reference's run, and the reference recipe's path."""
    correctness = recipe.correctness
    convergence = correctness.convergence if correctness else None
    candidate = convergence.candidate_run if convergence else None
    if candidate is None and recipe.result and recipe.result.runs_detail:
        candidate = recipe.result.runs_detail[0].run
    named = correctness.reference_recipe if correctness else None
    return (
        candidate,
        convergence.reference_run if convergence else None,
        named.path if named else None,
    )


def _successor(recipe: Recipe, site: _Site) -> str | None:
    """Address of the page of the recipe that replaces a withdrawn one."""
    named = recipe.superseded_by
    source = sources.named(named, site.by_name) if named else None
    return f"{source.address}.html" if source else None


def _run(identity: str | None, site: _Site) -> evidence.Run | None:
    path = site.runs.get(identity) if identity else None
    return evidence.read(path) if path else None


def _state(output: Path) -> dict[str, Any]:
    """What the last build left; refuses a folder that holds something else."""
    file = output / sources.STATE
    if not file.is_file():
        if (output.is_dir() and any(output.iterdir())) or output.is_file():
            raise InputError(
                "choose another --output; this one was not made by `openrecipes site build`",
                file=output,
                field="--output",
                found="other files" if output.is_dir() else "a file",
                expected="a new, empty or earlier built folder",
            )
        return {}
    try:
        state = read_json(file)
    except InputError:
        return {}
    whole = isinstance(state, dict) and state.get("format") == _FORMAT
    return state if whole else {}


def _save(site: _Site, entries: dict[str, _Entry]) -> None:
    state = {
        "format": _FORMAT,
        "fingerprint": render.fingerprint(),
        "files": sorted(site.written),
        "entries": {name: entry.as_json() for name, entry in entries.items()},
    }
    write_text(site.output / sources.STATE, json.dumps(state, separators=(",", ":")) + "\n")


def _remove(output: Path, stale: set[str]) -> int:
    """Remove files that an earlier build wrote and this one does not; never any other."""
    root = output.resolve()
    count = 0
    for address in stale:
        path = root / address
        if path.resolve().is_relative_to(root) and path.is_file():
            path.unlink()
            count += 1
            parent = path.parent
            while parent != root and not any(parent.iterdir()):
                parent.rmdir()
                parent = parent.parent
    return count
