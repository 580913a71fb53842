"""The run record, version 1: a directory with a manifest and a line per step.

``manifest.json`` says what was run, ``steps.jsonl`` what each step did; ``logs/`` and ``verdicts/``
lie beside them. Unknown values are null, never guessed; NaN and infinity are never written.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from openrecipes.errors import InputError
from openrecipes.files import read_json, write_json

#: Version of the record's format.
RUN_VERSION = 1
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


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


#: A real number; NaN and infinity become null, because JSON has neither.
Real = Annotated[float | None, BeforeValidator(_finite_or_none)]
Seconds = Annotated[Annotated[float, Field(ge=0)] | None, BeforeValidator(_finite_or_none)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class ModelPart(_Part):
    """The model that was trained; ``active_parameters`` is the N of MFU."""

    name: str | None = None
    source: str | None = None
    revision: str | None = None
    config_sha256: str | None = None
    parameters: Count | None = None
    active_parameters: Count | None = None


class RowsPart(_Part):
    """The rows that were trained on, with the hashes of their content and of their file."""

    path: str | None = None
    rows_sha256: str | None = None
    parquet_sha256: str | None = None
    row_tokens: Count | None = None
    dataset: dict[str, Any] | None = None


class Machine(_Part):
    """Where it ran: GPU type, how many in all and per node, and the hosts."""

    gpu: str | None = None
    count: Count | None = None
    per_node: Count | None = None
    hosts: list[str] | None = None


class Times(_Part):
    """UTC times; GPU-hours run from ``admitted`` (else ``started``) to ``finished``."""

    admitted: AwareDatetime | None = None
    started: AwareDatetime | None = None
    first_step: AwareDatetime | None = None
    finished: AwareDatetime | None = None


class EffectiveRecompute(_Part):
    """What recompute really did, per layer letter (M, E, *, -)."""

    granularity: str | None = None
    modules: list[str] | None = None
    layers: dict[str, Literal["none", "selective", "full"]] = Field(default_factory=dict)


class Effective(_Part):
    """What the flags came to: the recompute that happened, the flags without effect."""

    recompute: EffectiveRecompute | None = None
    ineffective_flags: list[Any] | None = None


class Checkpoint(_Part):
    """A checkpoint that was written: after which step, its size, how long it took."""

    step: int
    bytes: int | None = None
    seconds: Seconds = None


class Failure(_Part):
    """Why a run failed, as data."""

    kind: Literal["oom", "nan", "crash", "timeout", "lost_node"]
    phase: str | None = None
    rank: int | None = None
    node: str | int | None = None
    step: int | None = None
    message: str | None = None
    memory: dict[str, Any] | None = None


class Manifest(_Part):
    """``manifest.json``, key by key.

    ``flags`` are typed and resolved, defaults included; ``memory`` is the split in bytes (weights,
    gradients, master, optimizer, activations, and what of it is offloaded).
    """

    run_version: Literal[1] = 1
    id: str
    engine: str
    launcher: str
    state: Literal["running", "done", "failed", "stopped"] = "running"
    argv: list[str] = Field(default_factory=list)
    flags: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    model: ModelPart = Field(default_factory=ModelPart)
    rows: RowsPart = Field(default_factory=RowsPart)
    layout: dict[str, Any] | None = None
    world_size: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    stack: dict[str, Any] | None = None
    machine: Machine = Field(default_factory=Machine)
    times: Times = Field(default_factory=Times)
    effective: Effective = Field(default_factory=Effective)
    profiler: bool | None = None
    parity_probe: bool | None = None
    memory: dict[str, Any] | None = None
    checkpoints: list[Checkpoint] = Field(default_factory=list)
    failure: Failure | None = None


class ExpertLoad(_Part):
    """Tokens per expert in the worst layer: the fullest expert's and the mean."""

    max: Real = None
    mean: Real = None


class Step(_Part):
    """One line of ``steps.jsonl``.

    ``slots`` are all token positions of the step, ``tokens`` those that are not padding,
    ``supervised_tokens`` those that bear loss. ``step_time_s`` runs from before the step's rows are
    fetched to after the optimizer, on the slowest rank. Peaks are lists, one value per rank.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    attempt: Count
    step: Count
    loss: Real = None
    grad_norm: Real = None
    lr: Real = None
    slots: Count | None = None
    tokens: Count | None = None
    supervised_tokens: Count | None = None
    step_time_s: Seconds = None
    data_time_s: Seconds = None
    peak_memory_bytes: list[Count | None] | None = None
    peak_reserved_bytes: list[Count | None] | None = None
    peak_rss_bytes: list[Count | None] | None = None
    expert_load: ExpertLoad | None = None

    @model_validator(mode="after")
    def _counts_nest(self) -> Self:
        known = [n for n in (self.supervised_tokens, self.tokens, self.slots) if n is not None]
        if known != sorted(known):
            raise ValueError("supervised_tokens <= tokens <= slots must hold")
        return self


class RunRecord:
    """A run record opened for reading.

    Example:
        ``RunRecord.open(Path("out/run")).steps()[-1].loss``
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

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
        return list(_read_steps(self.path / STEPS, may_be_cut=self.manifest.state != "done"))

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


class RunWriter:
    """A run record opened for writing, by the launcher or by rank 0."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def create(cls, path: str | Path, manifest: Manifest, force: bool = False) -> RunWriter:
        """Begin a record in ``path``.

        Args:
            path: a directory that is new or empty.
            manifest: what is known at the start.
            force: replace an earlier record there (its own files only).

        Raises:
            InputError: the directory is not empty and ``force`` is not given.
        """
        path = Path(path)
        if path.is_file():
            raise InputError("give a directory", file=path, field="--output", found="a file")
        if path.is_dir() and any(path.iterdir()):
            if not force:
                raise InputError(
                    "choose another --output, or pass --force to replace the run",
                    file=path,
                    field="--output",
                    found="exists already",
                    expected="a new or empty directory",
                )
            _remove_record(path)
        (path / "logs").mkdir(parents=True, exist_ok=True)
        (path / STEPS).touch()
        writer = cls(path, manifest)
        writer._save()
        return writer

    @classmethod
    def open(cls, path: str | Path) -> RunWriter:
        """Go on with the record in ``path``; a cut last line of its steps is dropped."""
        record = RunRecord.open(path)
        _drop_cut_line(record.path / STEPS)
        return cls(record.path, record.manifest)

    def update(self, **fields: Any) -> None:
        """Set fields of the manifest and rewrite it atomically.

        A field that is an object takes a model or a dict; the whole object is replaced.
        """
        self.manifest = Manifest.model_validate({**self.manifest.model_dump(), **_plain(fields)})
        self._save()

    def append(self, step: Step) -> None:
        """Append one line to ``steps.jsonl`` and flush it to the disk."""
        text = json.dumps(step.model_dump(mode="json"), allow_nan=False)
        with (self.path / STEPS).open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def _save(self) -> None:
        write_json(self.path / MANIFEST, without_nan(self.manifest.model_dump(mode="json")))


def without_nan(value: Any) -> Any:
    """``value`` with every NaN and infinity in it replaced by None."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return _finite_or_none(value)


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
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        raise _input_error(error, file) from None


def _read_steps(file: Path, *, may_be_cut: bool) -> Iterator[Step]:
    if not file.is_file():
        raise InputError("run it again; this run recorded no step", file=file, found="no such file")
    lines = file.read_bytes().split(b"\n")
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
        return Step.model_validate(json.loads(line))
    except ValidationError as error:
        raise _input_error(error, place) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            "mend or remove the line", file=place, found=str(error) or "", expected="a step as JSON"
        ) from None


def _input_error(error: ValidationError, file: str | Path) -> InputError:
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or None
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
