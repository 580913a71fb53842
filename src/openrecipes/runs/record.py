"""The run record, version 1: a directory with a manifest and a line per step.

``manifest.json`` says what was run, ``steps.jsonl`` what each step did; ``logs/`` and ``verdicts/``
lie beside them. Unknown values are null, never guessed; NaN and infinity are never written.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from openrecipes.errors import InputError, one_line
from openrecipes.files import read_json, write_json
from openrecipes.runs.checks import Wrong, not_finite, wrong_flag, wrong_layout
from openrecipes.runs.lock import LOCK, RecordLock
from openrecipes.runs.manifest import (
    RUN_VERSION,
    Checkpoint,
    Effective,
    EffectiveRecompute,
    ExpertLoad,
    Failure,
    Machine,
    Manifest,
    ModelPart,
    RowsPart,
    Step,
    Times,
    finite_or_none,
)

__all__ = [
    "MANIFEST",
    "RUN_ID_VARIABLE",
    "RUN_VERSION",
    "STEPS",
    "Checkpoint",
    "Effective",
    "EffectiveRecompute",
    "ExpertLoad",
    "Failure",
    "Machine",
    "Manifest",
    "ModelPart",
    "RecordTaken",
    "RowsPart",
    "RunRecord",
    "RunWriter",
    "Step",
    "Times",
    "new_run_id",
    "utc_now",
    "without_nan",
]

#: The two files that every record has.
MANIFEST, STEPS = "manifest.json", "steps.jsonl"
#: Environment variable by which a launcher tells ``train`` that the directory is prepared.
RUN_ID_VARIABLE = "OPENRECIPES_RUN_ID"

_PARTS = (MANIFEST, STEPS, "probe.jsonl", "logs", "verdicts")
_MANIFEST_LIMIT = 16 * 2**20  # bytes; a manifest is a few kilobytes


def utc_now() -> datetime:
    """This moment in UTC, as the record's times are kept."""
    return datetime.now(UTC)


def new_run_id() -> str:
    """A run id that sorts by time and does not collide: ``20261015T120000Z-1a2b3c``."""
    return f"{utc_now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


class RunRecord:
    """A run record opened for reading.

    Example:
        ``RunRecord.open(Path("out/run")).steps()[-1].loss``
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._lines: tuple[object, tuple[Step, ...]] | None = None

    @classmethod
    def open(cls, path: str | Path) -> RunRecord:
        """Open the record in the directory ``path``; raises InputError where it is none."""
        path = Path(path)
        if not path.is_dir():
            found = "a file" if path.exists() else "no such directory"
            raise InputError("give a run's directory", file=path, found=found)
        if not (path / MANIFEST).is_file():
            raise InputError(
                "give the directory that `openrecipes run` or `train` wrote",
                file=path,
                found=f"no {MANIFEST}",
                expected="a run record",
            )
        document = read_json(path / MANIFEST, _MANIFEST_LIMIT)
        return cls(path, _manifest(document, path / MANIFEST))

    def lines(self) -> list[Step]:
        """Every recorded step in file order, all attempts.

        Raises:
            InputError: no steps file, or a broken line (named as ``file:line``). A cut last line is
                tolerated unless the run is done: the process may have died while writing it.
        """
        file = self.path / STEPS
        state = _state_of(file)
        if self._lines is None or self._lines[0] != state:
            may_be_cut = self.manifest.state != "done"
            self._lines = (state, tuple(_read_steps(file, may_be_cut=may_be_cut)))
        return list(self._lines[1])

    def steps(self) -> list[Step]:
        """The steps that count, ascending: of each step its highest attempt."""
        best: dict[int, Step] = {}
        for line in self.lines():
            if line.step not in best or line.attempt > best[line.step].attempt:
                best[line.step] = line
        return [best[step] for step in sorted(best)]

    def attempt_starts(self) -> frozenset[int]:
        """Numbers of counting steps that are their attempt's first: never measured.

        The first step after a start or a resume pays for compilation and cold caches.
        """
        first: dict[int, int] = {}
        for line in self.lines():
            first[line.attempt] = min(line.step, first.get(line.attempt, line.step))
        return frozenset(s.step for s in self.steps() if first[s.attempt] == s.step)


class RecordTaken(InputError):
    """The directory holds another run's record by now; this run has nowhere to write."""

    def __init__(self, path: Path, found: str, expected: str) -> None:
        super().__init__(
            "give each run an --output of its own",
            file=path / MANIFEST,
            field="id",
            found=f"{found}, another run",
            expected=expected,
        )


class RunWriter:
    """A run record opened for writing, by the launcher or by rank 0.

    Attributes:
        path: the record's directory.
        manifest: the manifest as last written or read here.
        lock: held by the writer that created the record; None in one that opened it.
    """

    def __init__(self, path: Path, manifest: Manifest, lock: RecordLock | None = None) -> None:
        self.path = path
        self.manifest = manifest
        self.lock = lock

    @classmethod
    def create(cls, path: str | Path, manifest: Manifest, force: bool = False) -> RunWriter:
        """Begin a record in ``path`` and hold it until :meth:`close`.

        Args:
            path: a directory that is new or empty.
            manifest: what is known at the start.
            force: replace an earlier record there (its own files only).

        Raises:
            InputError: the directory is not empty and ``force`` is not given, or a run that still
                goes on holds it.
        """
        path = Path(path)
        if path.is_file():
            raise InputError("give a directory", file=path, field="--output", found="a file")
        if not force and path.is_dir() and any(part.name != LOCK for part in path.iterdir()):
            raise InputError(
                "choose another --output, or pass --force to replace the run",
                file=path,
                field="--output",
                found="exists already",
                expected="a new or empty directory",
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = RecordLock(path)
            _remove_record(path)
            (path / "logs").mkdir()
            (path / STEPS).touch()
        except OSError as error:
            raise InputError(
                "choose a place that can be written",
                file=path,
                field="--output",
                found=error.strerror,
            ) from None
        writer = cls(path, manifest, lock)
        writer._save()
        return writer

    @classmethod
    def open(cls, path: str | Path, run_id: str | None = None) -> RunWriter:
        """Go on with the record in ``path``; a cut last line of its steps is dropped.

        Args:
            path: the record's directory.
            run_id: the run that it must belong to; None takes any.

        Raises:
            RecordTaken: it belongs to another run.
            InputError: there is no record.
        """
        record = RunRecord.open(path)
        if run_id is not None and record.manifest.id != run_id:
            raise RecordTaken(record.path, record.manifest.id, run_id)
        _drop_cut_line(record.path / STEPS)
        return cls(record.path, record.manifest)

    def close(self) -> None:
        """Let another run have the directory."""
        if self.lock:
            self.lock.release()

    def update(self, **fields: Any) -> None:
        """Set fields of the manifest and rewrite it atomically.

        A field that is an object takes a model or a dict; the whole object is replaced. Fields that
        another process has set meanwhile are kept: launcher and rank 0 write in turns.

        Raises:
            RecordTaken: another run has taken the directory.
        """
        there = self._own()
        self.manifest = Manifest.model_validate({**there.model_dump(), **_plain(fields)})
        self._save()

    def append(self, step: Step) -> None:
        """Append one line to ``steps.jsonl`` and flush it to the disk.

        Raises:
            RecordTaken: another run has taken the directory.
        """
        self._own()
        text = json.dumps(step.model_dump(mode="json"), allow_nan=False)
        with (self.path / STEPS).open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def _own(self) -> Manifest:
        """The manifest on disk, which must be this run's."""
        there = RunRecord.open(self.path).manifest
        if there.id != self.manifest.id:
            raise RecordTaken(self.path, there.id, self.manifest.id)
        return there

    def _save(self) -> None:
        write_json(self.path / MANIFEST, without_nan(self.manifest.model_dump(mode="json")))


def without_nan(value: Any) -> Any:
    """``value`` with every NaN and infinity in it replaced by None."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return finite_or_none(value)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: v.model_dump() if isinstance(v, BaseModel) else v for k, v in fields.items()}


def _manifest(document: Any, file: Path) -> Manifest:
    if not isinstance(document, dict):
        raise InputError("give a run record", file=file, found=type(document).__name__)
    if document.get("run_version") != RUN_VERSION:
        raise InputError(
            "bring the record forward with `openrecipes migrate`",
            file=file,
            field="run_version",
            found=document.get("run_version"),
            expected=str(RUN_VERSION),
        )
    _refuse(not_finite(document), file)
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        raise _input_error(error, file) from None
    _refuse(wrong_flag(manifest.flags) or wrong_layout(manifest.layout), file)
    return manifest


def _refuse(wrong: Wrong | None, file: str | Path) -> None:
    if wrong is not None:
        raise InputError(
            "mend the record",
            file=file,
            field=one_line(wrong.field),
            found=wrong.found,
            expected=wrong.expected,
        )


def _state_of(file: Path) -> object:
    """What changes when the file does; None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _read_steps(file: Path, *, may_be_cut: bool) -> Iterator[Step]:
    if not file.is_file():
        raise InputError("run it again; this run recorded no step", file=file, found="no such file")
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError("make it readable", file=file, found=error.strerror) from None
    while lines and not lines[-1].strip():
        lines.pop()
    seen: set[tuple[int, int]] = set()
    for number, line in enumerate(lines, start=1):
        place = f"{file}:{number}"
        try:
            step = _step(line, place)
        except InputError:
            if may_be_cut and number == len(lines):
                return
            raise
        if (step.attempt, step.step) in seen:
            raise InputError(
                "remove one of the two lines",
                file=place,
                field="step",
                found=f"step {step.step} of attempt {step.attempt} a second time",
            )
        seen.add((step.attempt, step.step))
        yield step


def _step(line: bytes, place: str) -> Step:
    try:
        document = json.loads(line)
        _refuse(not_finite(document), place)
        return Step.model_validate(document)
    except ValidationError as error:
        raise _input_error(error, place) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            "mend or remove the line", file=place, found=str(error) or "", expected="a step as JSON"
        ) from None


def _input_error(error: ValidationError, file: str | Path) -> InputError:
    first = error.errors(include_url=False, include_context=False)[0]
    field = one_line(".".join(str(part) for part in first["loc"])) or None
    found = None if first["type"] == "missing" else first["input"]
    return InputError("mend the record", file=file, field=field, found=found, expected=first["msg"])


def _remove_record(path: Path) -> None:
    for name in _PARTS:
        part = path / name
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


def _drop_cut_line(file: Path) -> None:
    """Cut the tail after the last newline, or complete it where it is a whole step."""
    if not file.is_file():
        file.touch()
        return
    data = file.read_bytes()
    kept, newline, tail = data.rpartition(b"\n")
    if not tail:
        return
    try:
        _step(tail, str(file))
    except InputError:
        os.truncate(file, len(kept) + len(newline))
    else:
        with file.open("ab") as stream:
            stream.write(b"\n")
