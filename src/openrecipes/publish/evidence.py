"""The evidence beside a recipe: its run records, scrubbed, with ``SHA256SUMS``.

    NAME.evidence/
      candidate/    run-2/ ...    reference/     manifest.json, steps.jsonl, verdicts/, logs/
      publish.json                               what the person who published said
      SHA256SUMS                                 sha256sum -c checks it

Steps are copied byte by byte. In the manifest, the logs and the verdict, names of machines and
people are replaced; a verdict names the hashes of the copies, so that it speaks of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrecipes.errors import InputError
from openrecipes.files import read_json, read_text, sha256_file, write_json, write_text
from openrecipes.flags.table import table
from openrecipes.gate.check import VERDICT
from openrecipes.publish.correctness import record_hashes
from openrecipes.publish.options import Options
from openrecipes.publish.scrub import Scrubber, each_text, portable, strings
from openrecipes.runs.record import MANIFEST, STEPS, Manifest, RunRecord

SUMS, OPTIONS = "SHA256SUMS", "publish.json"
CANDIDATE, REFERENCE = "candidate", "reference"

_LOG_LIMIT = 64 * 2**20  # bytes of one log file
_SUMS_LIMIT = 2**20
_TEXT_SUFFIXES = frozenset((".log", ".txt", ".json", ".jsonl", ".out", ".err", ".svg", ""))


@dataclass(frozen=True)
class Sources:
    """The records that a recipe is made from, and who must not be named in it."""

    runs: tuple[RunRecord, ...]
    reference: RunRecord | None
    scrubber: Scrubber

    @property
    def named(self) -> Iterator[tuple[str, RunRecord]]:
        """Each record with its folder's name in the evidence."""
        for index, run in enumerate(self.runs):
            yield (CANDIDATE if index == 0 else f"run-{index + 1}"), run
        if self.reference is not None:
            yield REFERENCE, self.reference

    def published(self, record: RunRecord) -> RunRecord:
        """The record with its manifest as it may be published."""
        document = self.scrubber.value(record.manifest.model_dump(mode="json"))
        document["argv"] = [portable(word) for word in document["argv"]]
        document["flags"] |= _portable_paths(document["flags"])
        for block, name in (("rows", "path"), ("model", "source")):
            if document[block][name] is not None:
                document[block][name] = portable(document[block][name])
        hosts = document["machine"]["hosts"]
        if hosts is not None:
            document["machine"]["hosts"] = [f"host-{i}" for i in range(1, len(hosts) + 1)]
        return RunRecord(record.path, Manifest.model_validate(document))

    def published_verdict(self, verdict: Mapping[str, Any]) -> dict[str, Any]:
        """The verdict as it may be published, but for the records that it names."""
        return dict(each_text(self.scrubber.value(dict(verdict)), portable))


def gather(runs: Sequence[RunRecord], reference: RunRecord | None) -> Sources:
    """Learn from the records what has to be scrubbed from them."""
    records = [*runs, *([reference] if reference else [])]
    texts: list[str] = []
    hosts: list[str] = []
    needed: list[str] = []
    for record in records:
        manifest = record.manifest
        texts += strings(manifest.model_dump(mode="json"))
        texts += (read_text(log, _LOG_LIMIT) for log in _logs(record.path) if _is_text(log))
        hosts += manifest.machine.hosts or []
        needed += strings([manifest.model.model_dump(), manifest.rows.dataset or {}])
        needed += [manifest.engine, manifest.launcher, manifest.machine.gpu or "", *manifest.flags]
    return Sources(
        tuple(runs), reference, Scrubber.learn(texts, hosts=hosts, needed=_names(needed))
    )


def write(
    folder: Path, sources: Sources, options: Options, verdict: Mapping[str, Any] | None
) -> str:
    """Write the evidence into a new ``folder``; returns the sha256 of its SHA256SUMS."""
    folder.mkdir(parents=True)
    for name, record in sources.named:
        copy = folder / name
        copy.mkdir()
        write_json(copy / MANIFEST, sources.published(record).manifest.model_dump(mode="json"))
        shutil.copyfile(record.path / STEPS, copy / STEPS)
        _copy_logs(record.path, copy, sources.scrubber)
    if verdict is not None:
        _write_verdict(folder, sources, verdict)
    write_json(folder / OPTIONS, options.model_dump(mode="json", exclude_none=True))
    lines = [f"{sha256_file(file)}  {file.relative_to(folder).as_posix()}" for file in _all(folder)]
    write_text(folder / SUMS, "\n".join(lines) + "\n")
    return sha256_file(folder / SUMS)


def replace(target: Path, made: Path) -> None:
    """Put the evidence ``made`` in the place of ``target``, an earlier evidence or nothing."""
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        target.rename(old / "old")
        made.rename(target)
        shutil.rmtree(old)
    else:
        made.rename(target)


def check_sums(folder: Path) -> list[dict[str, Any]]:
    """What differs between the files of an evidence and its SHA256SUMS.

    Raises:
        InputError: no evidence, or sums that cannot be read.
    """
    told = _read_sums(folder)
    there = {file.relative_to(folder).as_posix(): file for file in _all(folder)}
    found = []
    for name in sorted(told.keys() | there.keys()):
        if name not in there:
            found.append({"file": name, "found": "missing", "expected": told[name]})
        elif name not in told:
            found.append({"file": name, "found": "a file", "expected": f"not in {SUMS}"})
        elif (actual := sha256_file(there[name])) != told[name]:
            found.append({"file": name, "found": actual, "expected": told[name]})
    return found


def open_evidence(folder: Path) -> tuple[Sources, Options, dict[str, Any] | None]:
    """The records, options and verdict of an evidence, as they lie there.

    Raises:
        InputError: a part is missing or broken.
    """
    if not (folder / CANDIDATE).is_dir():
        raise InputError(
            "give the folder that `openrecipes publish --bundle` wrote",
            file=folder,
            field="--evidence",
            found=f"no {CANDIDATE}/",
        )
    runs = [RunRecord.open(folder / CANDIDATE)]
    number = 2
    while (folder / f"run-{number}").is_dir():
        runs.append(RunRecord.open(folder / f"run-{number}"))
        number += 1
    reference = RunRecord.open(folder / REFERENCE) if (folder / REFERENCE).is_dir() else None
    options = Options.read(read_json(folder / OPTIONS, _SUMS_LIMIT), str(folder / OPTIONS))
    file = folder / CANDIDATE / VERDICT
    verdict = read_json(file, _LOG_LIMIT) if file.is_file() else None
    return Sources(tuple(runs), reference, Scrubber()), options, verdict


def _portable_paths(flags: Mapping[str, Any]) -> dict[str, str]:
    """The flags that hold paths; where files lie is no part of a training."""
    known = table()
    paths = {n: v for n, v in flags.items() if n in known and known[n].type == "path" and v}
    return {name: portable(path) for name, path in paths.items()}


def _write_verdict(folder: Path, sources: Sources, verdict: Mapping[str, Any]) -> None:
    """Copy the verdict; its inputs become the copies, by relative path and hash."""
    document = sources.published_verdict(verdict)
    inputs = dict(document["inputs"])
    for name in (CANDIDATE, REFERENCE):
        copied = RunRecord.open(folder / name)
        inputs[name] = {**inputs[name], "path": name, "sha256": record_hashes(copied)}
    document["inputs"] = inputs
    write_json(folder / CANDIDATE / VERDICT, document)


def _copy_logs(source: Path, target: Path, scrubber: Scrubber) -> None:
    for log in _logs(source):
        if _is_text(log):
            copy = target / log.relative_to(source)
            write_text(copy, scrubber.text(read_text(log, _LOG_LIMIT)))


def _logs(record: Path) -> list[Path]:
    """Logs, pictures, the probe's figures; links are left alone, they may lead anywhere."""
    pictures = sorted((record / "verdicts").glob("*.svg"))
    found = [record / "probe.jsonl", *pictures, *sorted((record / "logs").rglob("*"))]
    return [path for path in found if path.is_file() and not path.is_symlink()]


def _is_text(path: Path) -> bool:
    if path.suffix not in _TEXT_SUFFIXES or path.stat().st_size > _LOG_LIMIT:
        return False
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _all(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    return sorted(files)


def _read_sums(folder: Path) -> dict[str, str]:
    told = {}
    for number, line in enumerate(read_text(folder / SUMS, _SUMS_LIMIT).splitlines(), start=1):
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64 or not name:
            raise InputError(
                "fetch the evidence again",
                file=f"{folder / SUMS}:{number}",
                found=line,
                expected="a sha256 and a file name",
            )
        told[name] = digest
    return told


def _names(texts: Sequence[str]) -> list[str]:
    """Texts that name something; paths name places, and those are scrubbed."""
    return [text for text in texts if text and not text.startswith(("/", "~"))]
