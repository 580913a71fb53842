"""The recipe files of a folder: where each one's page lies, and which documents name each other."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from openrecipes.errors import InputError

_SUFFIXES = (".yaml", ".yml")
#: What the last build knew, kept in the site's root; a folder with it is a site, not recipes.
STATE = ".openrecipes-site.json"
#: Folders of evidence beside recipes; what lies in them is no recipe.
EVIDENCE = ".evidence"


@dataclass(frozen=True)
class Source:
    """A recipe file and the address of its page.

    Attributes:
        path: the file.
        name: its path below the recipes' folder, with slashes.
        address: the page without its ending, below the site's root.
        size: bytes.
        mtime: time of the last change in nanoseconds.
    """

    path: Path
    name: str
    address: str
    size: int
    mtime: int


def find(folder: Path) -> list[Source]:
    """Every recipe below ``folder``, by name; raises InputError where there is none."""
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such directory"
        raise InputError("give a folder of recipes", file=folder, field="--recipes", found=found)
    sources: list[Source] = []
    taken: set[str] = set()
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        address = _unique("recipes/" + address_of(name), taken)
        status = path.stat()
        sources.append(Source(path, name, address, status.st_size, status.st_mtime_ns))
    if not sources:
        raise InputError(
            "give a folder that holds recipes",
            file=folder,
            field="--recipes",
            found="no recipe",
            expected="a .yaml file",
        )
    return sources


def _files(folder: Path) -> Iterator[Path]:
    for directory, folders, files in os.walk(folder):
        if STATE in files:
            folders.clear()
            continue
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and not f.endswith(EVIDENCE)
        )
        for file in sorted(files):
            path = Path(directory, file)
            if path.suffix in _SUFFIXES and not file.startswith(".") and path.is_file():
                yield path


def address_of(name: str) -> str:
    """The page's address for a recipe's path: its parts in letters that any server takes."""
    parts = PurePosixPath(name).with_suffix("").parts
    return "/".join(slug(part) for part in parts)


def slug(text: str) -> str:
    """``text`` in lower-case letters, digits, dots and dashes; never empty, never dots alone."""
    flat = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9._-]+", "-", flat).strip("-.")[:100] or "recipe"


def _unique(address: str, taken: set[str]) -> str:
    candidate, count = address, 1
    while candidate in taken:
        count += 1
        candidate = f"{address}-{count}"
    taken.add(candidate)
    return candidate


def named(path: str, sources: Mapping[str, Source]) -> Source | None:
    """The source that a recipe names by ``path``: the one whose name is the path's longest end.

    Args:
        path: as written in a recipe, from whatever folder its author stood in.
        sources: by name.
    """
    parts = PurePosixPath(path).parts
    for start in range(len(parts)):
        source = sources.get("/".join(parts[start:]))
        if source is not None:
            return source
    return None
