"""Registries: folders of recipes, ``MODEL/GPU/NAME.yaml``, and an index of what is in them.

Reading a recipe takes about 10 ms, so an index of each folder is kept in the user's cache. An
entry counts as long as its file's size and time of change are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openrecipes.errors import InputError, one_line
from openrecipes.files import packaged_folder, write_text
from openrecipes.recipe.document import load
from openrecipes.recipe.lint.context import Lookup
from openrecipes.recipe.schema import Recipe

#: Folders to look in, separated like PATH.
VARIABLE = "OPENRECIPES_REGISTRY"
#: Raised whenever an entry gets another form.
_INDEX_VERSION = 1


@dataclass(frozen=True)
class Entry:
    """What a list shows of a recipe.

    Args:
        path: place in the registry, ``MODEL/GPU/NAME.yaml``.
        file: the file itself.
        fault: why it is no recipe; all else is then ``None``.
    """

    path: str
    file: str
    fault: str | None = None
    model: str | None = None
    gpu: str | None = None
    count: int | None = None
    status: str | None = None
    engine: str | None = None
    author: str | None = None
    label: str | None = None
    highlights: str | None = None
    row_tokens: int | None = None
    global_batch: int | None = None
    precision: str | None = None
    tokens_per_s_per_gpu: float | None = None
    usd_per_million_tokens: float | None = None
    mfu: float | None = None
    step_time_cv_percent: float | None = None
    measured: str | None = None
    superseded_by: str | None = None
    rows_name: str | None = None
    rows_sha256: str | None = None
    parquet_sha256: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The entry as ``list --json`` prints it."""
        return asdict(self)


def packaged_registry() -> Path | None:
    """The registry that comes with OpenRecipes."""
    return packaged_folder("recipes")


def registries(given: Sequence[Path] = ()) -> list[Path]:
    """Folders to look in: those given, else ``OPENRECIPES_REGISTRY``, else ``./recipes`` and the
    packaged one.

    Raises:
        InputError: a folder that was named does not exist.
    """
    named = list(given) or [Path(p) for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p]
    for folder in named:
        if not folder.is_dir():
            raise InputError("name a folder of recipes", file=folder, found="no such folder")
    packaged = packaged_registry()
    folders = named or [f for f in (Path("recipes"), packaged) if f is not None and f.is_dir()]
    return list({folder.resolve(): folder for folder in folders}.values())


def entries(
    folders: Iterable[Path], progress: Callable[[int, int], None] | None = None
) -> list[Entry]:
    """What lies in the folders, by place; of two recipes at one place the first folder's counts.

    Args:
        folders: registries.
        progress: told after each file that had to be read: how many, of how many.
    """
    found: dict[str, Entry] = {}
    for folder in folders:
        for entry in _index(folder.resolve(), progress):
            found.setdefault(entry.path, entry)
    return [found[path] for path in sorted(found)]


def find(name: str, folders: Iterable[Path]) -> Path:
    """The file of a recipe: a path, a place in a registry, or a part of one that is unique.

    Raises:
        InputError: nothing, or more than one recipe, goes by that name.
    """
    if Path(name).is_file():
        return Path(name)
    known = entries(folders)
    bare = name.removeprefix("recipes/").removesuffix(".yaml")
    exact = [e for e in known if e.path.removesuffix(".yaml") == bare]
    hits = exact or [e for e in known if bare.lower() in e.path.lower()]
    if len(hits) == 1:
        return Path(hits[0].file)
    raise InputError(
        "openrecipes list shows what there is",
        field="recipe",
        found=name,
        expected="one of " + ", ".join(e.path for e in hits[:5]) if hits else "a recipe's name",
    )


def rows_lookup(files: Iterable[Path] = ()) -> Lookup:
    """Finds the hashes of rows by their name, in the given recipes and in the registries.

    Nothing is read before the first question.
    """
    known: dict[str, tuple[str | None, str | None]] = {}
    paths = list(files)

    def lookup(name: str) -> tuple[str | None, str | None] | None:
        if not known:
            known[""] = (None, None)
            folders = [p.resolve().parents[2] for p in paths if len(p.resolve().parents) > 3]
            near = [folder for folder in folders if folder.name == "recipes"]
            entries_ = entries([*dict.fromkeys(near), *registries()])
            for entry in [*(_entry(p, p.name) for p in paths), *entries_]:
                if entry.rows_name:
                    known.setdefault(entry.rows_name, (entry.rows_sha256, entry.parquet_sha256))
        return known.get(name)

    return lookup


def _index(folder: Path, progress: Callable[[int, int], None] | None) -> list[Entry]:
    files = sorted(_recipe_files(folder))
    cache_file = _cache_folder() / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:24]}.json"
    known = _read_cache(cache_file)
    fresh: dict[str, Any] = {}
    result = []
    stamps = {file: _stamp(file) for file in files}
    stale = {file for file in files if stamps[file] != known.get(str(file), [None])[0]}
    done = 0
    for file in files:
        if file in stale:
            entry = _entry(file, file.relative_to(folder).as_posix())
            done += 1
            if progress is not None:
                progress(done, len(stale))
        else:
            entry = Entry(**known[str(file)][1])
        fresh[str(file)] = [stamps[file], entry.as_json()]
        result.append(entry)
    if stale or fresh.keys() != known.keys():
        _write_cache(cache_file, fresh)
    return result


def _recipe_files(folder: Path) -> Iterable[Path]:
    """Recipes three levels deep or less, in folders that are not hidden and not evidence."""
    for pattern in ("*.yaml", "*/*.yaml", "*/*/*.yaml"):
        for file in folder.glob(pattern):
            parts = file.relative_to(folder).parts
            if not any(part.startswith(".") or part.endswith(".evidence") for part in parts):
                yield file


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def _entry(file: Path, place: str) -> Entry:
    try:
        return _of_recipe(load(file).recipe, file, place)
    except InputError as error:
        return Entry(place, str(file), fault=one_line(str(error)))


def _of_recipe(recipe: Recipe, file: Path, place: str) -> Entry:
    result, dataset = recipe.result, recipe.workload.dataset
    build = dataset.build if dataset else None
    return Entry(
        path=place,
        file=str(file),
        model=recipe.model,
        gpu=recipe.gpu.type,
        count=recipe.gpu.count,
        status=recipe.status,
        engine=recipe.engine,
        author=recipe.author.name if recipe.author else None,
        label=recipe.layout.label,
        highlights=recipe.layout.highlights,
        row_tokens=recipe.workload.row_tokens,
        global_batch=recipe.workload.global_batch,
        precision=recipe.workload.precision,
        tokens_per_s_per_gpu=result.tokens_per_s_per_gpu if result else None,
        usd_per_million_tokens=result.usd_per_million_tokens if result else None,
        mfu=result.mfu if result else None,
        step_time_cv_percent=result.step_time_cv_percent if result else None,
        measured=str(result.measured) if result and result.measured else None,
        superseded_by=recipe.superseded_by,
        rows_name=build.name if build else None,
        rows_sha256=dataset.rows_sha256 if dataset else None,
        parquet_sha256=build.parquet_sha256 if build else None,
    )


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "openrecipes" / "index"


def _read_cache(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
        entries_ = document["entries"] if document["index_version"] == _INDEX_VERSION else {}
        for _, entry in entries_.values():
            Entry(**entry)  # raises TypeError where it has another form
        return dict(entries_)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # absent or spoiled: it is only a cache


def _write_cache(file: Path, entries_: dict[str, Any]) -> None:
    document = {"index_version": _INDEX_VERSION, "entries": entries_}
    try:
        write_text(file, json.dumps(document))
    except OSError:
        return  # a read-only home makes lists slower, nothing else
