"""What run records and verdicts tell a page: plain series and figures, read once.

A record that is cut short or failed still tells its steps; a record that cannot be read is a
wrong input and says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrecipes.errors import InputError
from openrecipes.files import read_json
from openrecipes.runs.record import MANIFEST, STEPS, RunRecord, Step

Series = list[tuple[int, float | None]]

#: The verdict that ``check`` leaves in the candidate's record.
VERDICT = Path("verdicts") / "check.json"
_VERDICT_LIMIT = 16 * 2**20
#: Run records lie a few folders deep; anything deeper is not searched.
_DEEPEST = 6


@dataclass(frozen=True)
class Run:
    """A run record as a page needs it."""

    record: RunRecord
    steps: tuple[Step, ...]
    verdict: dict[str, Any] | None

    @property
    def losses(self) -> Series:
        """(step, loss), ascending."""
        return [(s.step, s.loss) for s in self.steps]

    @property
    def step_times(self) -> Series:
        """(step, seconds), ascending."""
        return [(s.step, s.step_time_s) for s in self.steps]


def read(path: Path) -> Run:
    """Read the record in ``path`` with its steps and its verdict."""
    record = RunRecord.open(path)
    steps = tuple(record.steps()) if (path / STEPS).is_file() else ()
    return Run(record, steps, _verdict(path))


def _verdict(path: Path) -> dict[str, Any] | None:
    file = path / VERDICT
    if not file.is_file():
        return None
    document = read_json(file, _VERDICT_LIMIT)
    if not isinstance(document, dict):
        raise InputError("run `openrecipes check` again", file=file, found=type(document).__name__)
    return document


def find(roots: Iterable[Path]) -> dict[str, Path]:
    """Run records below ``roots``: run id to directory; the first of equal ids counts.

    Manifests that cannot be read are left out: a folder of runs may hold one that is just being
    written, and pages name the runs that they need.
    """
    found: dict[str, Path] = {}
    for root in roots:
        for path in records(root):
            identity = _identity(path / MANIFEST)
            if identity is not None:
                found.setdefault(identity, path)
    return found


def records(root: Path) -> list[Path]:
    """Directories below ``root`` (itself included) that hold a manifest, in a fixed order."""
    found: list[Path] = []
    base = len(root.parts)
    for directory, folders, files in os.walk(root):
        here = Path(directory)
        if MANIFEST in files:
            found.append(here)
            folders.clear()
        elif len(here.parts) - base >= _DEEPEST:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    return found


def _identity(manifest: Path) -> str | None:
    try:
        document = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    identity = document.get("id") if isinstance(document, dict) else None
    return identity if isinstance(identity, str) else None


def stamp(path: Path) -> list[list[int | str]]:
    """Sizes and times of the files that a page takes from a record; equal when unchanged."""
    found: list[list[int | str]] = []
    for name in (MANIFEST, STEPS, str(VERDICT)):
        try:
            status = (path / name).stat()
        except OSError:
            continue
        found.append([name, status.st_size, status.st_mtime_ns])
    return found
