"""Tokenized conversations on disk, beside the output: a build that is killed goes on from here.

What is written belongs to whole chunks. A chunk counts once its line stands in ``chunks.bin``,
which is written last; whatever lies behind the last counted chunk is cut off on resuming.
A cache folder holds files of known names and a lock with a line of its own: another folder in its
place is never touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from openrecipes import files
from openrecipes.errors import InputError
from openrecipes.rows.masks import Mask
from openrecipes.rows.pool import EncodedChunk, WorkerDied
from openrecipes.rows.refusals import REASONS, Refused
from openrecipes.rows.tokenization import Ids

#: Bytes that a token takes: an int32 id and a mask byte.
TOKEN_BYTES = 5

#: One conversation: tokens, targets, learned ends of turn, input number, reason (0 = none).
INDEX = np.dtype(
    [("length", "<u4"), ("supervised", "<u4"), ("ends", "<u4"), ("input", "<u2"), ("reason", "<u2")]
)
#: Totals after a chunk: conversations, bytes of tokens.bin, bytes of refused.jsonl; and the CRC-32
#: of what the chunk put into tokens.bin, refused.jsonl and index.bin.
_CHUNK = np.dtype([("conversations", "<u8"), ("tokens", "<u8"), ("refused", "<u8"), ("crc", "<u8")])
_REASON = {reason: number for number, reason in enumerate(REASONS, 1)}
_FILES = ("tokens.bin", "index.bin", "refused.jsonl", "chunks.bin")
_SETTINGS, _PUBLISHING, _LOCK = "settings.json", "publishing.json", "lock"
_OWN_LINE = b"a cache of openrecipes rows build\n"


class TokenCache:
    """The cache of one build; ``open_cache`` makes it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._counted = _counted(directory)
        self._streams: dict[str, IO[bytes]] = {
            name: (directory / name).open("ab") for name in _FILES
        }
        self._reader = os.open(directory / "tokens.bin", os.O_RDONLY)
        self._cut()
        self._offsets: npt.NDArray[np.int64] | None = None

    def _cut(self) -> None:
        """Drop what belongs to no counted chunk."""
        chunks = self._counted
        last = chunks[-1] if len(chunks) else np.zeros((), _CHUNK)
        self._streams["chunks.bin"].truncate(len(chunks) * _CHUNK.itemsize)
        self.conversations = int(last["conversations"])
        self._tokens, self._refused = int(last["tokens"]), int(last["refused"])
        self._streams["tokens.bin"].truncate(self._tokens)
        self._streams["refused.jsonl"].truncate(self._refused)
        self._streams["index.bin"].truncate(self.conversations * INDEX.itemsize)

    def append(self, chunk: EncodedChunk, place: str) -> list[Refused]:
        """Keep a chunk.

        Args:
            chunk: the next chunk.
            place: the file that it comes from.

        Returns:
            Its refused conversations.
        """
        index = np.zeros(len(chunk.lengths), INDEX)
        index["length"], index["supervised"] = chunk.lengths, chunk.supervised
        index["ends"], index["input"] = chunk.ends, chunk.input
        refused = []
        for at, id_, reason, detail in chunk.refused:
            index["reason"][at] = _REASON[reason]
            line = f"{place}:{chunk.lines[at]}"
            refused.append(Refused(chunk.first + at, id_, line, reason, detail))
        told = "".join(json.dumps(asdict(r)) + "\n" for r in refused).encode()
        self._tokens += len(chunk.data)
        self._refused += len(told)
        self.conversations += len(index)
        self._write("tokens.bin", chunk.data)
        self._write("refused.jsonl", told)
        self._write("index.bin", index.tobytes())
        crc = _crc(chunk.data, told, index.tobytes())
        counted = np.array((self.conversations, self._tokens, self._refused, crc), _CHUNK)
        self._write("chunks.bin", counted.tobytes())
        return refused

    def _write(self, name: str, content: bytes) -> None:
        if content:
            stream = self._streams[name]
            stream.write(content)
            stream.flush()

    def index(self) -> npt.NDArray[Any]:
        """(conversations,) of ``INDEX``, in input order."""
        return np.fromfile(self.directory / "index.bin", INDEX)

    def refused(self) -> list[Refused]:
        """All refused conversations, in input order."""
        with (self.directory / "refused.jsonl").open("rb") as lines:
            return [Refused(**json.loads(line)) for line in lines]

    def fetch(self, number: int) -> tuple[Ids, Mask]:
        """Ids and mask of a conversation.

        Reads instead of mapping the file: mapped pages would count as resident memory.
        """
        if self._offsets is None:
            lengths = self.index()["length"].astype(np.int64)
            self._offsets = np.concatenate([[0], np.cumsum(lengths * TOKEN_BYTES)])
        start, stop = int(self._offsets[number]), int(self._offsets[number + 1])
        content = os.pread(self._reader, stop - start, start)
        tokens = (stop - start) // TOKEN_BYTES
        return (
            np.frombuffer(content, "<i4", tokens),
            np.frombuffer(content, np.uint8, tokens, offset=4 * tokens),
        )

    def announce(self, targets: list[Path]) -> None:
        """Note that these files are about to be put in their places: see ``being_published``."""
        told = json.dumps([str(target.absolute()) for target in targets])
        files.write_text(self.directory / _PUBLISHING, told)

    def close(self) -> None:
        """Close the files; they stay."""
        for stream in self._streams.values():
            stream.close()
        os.close(self._reader)


def _crc(*parts: bytes) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def _counted(directory: Path) -> npt.NDArray[Any]:
    """The counted chunks, each read again and compared with its CRC.

    Raises:
        InputError: the cache is damaged.
    """
    line = directory / "chunks.bin"
    if not line.exists():
        return np.zeros(0, _CHUNK)
    chunks = np.fromfile(line, _CHUNK, line.stat().st_size // _CHUNK.itemsize)
    try:
        with ExitStack() as stack:
            names = ("tokens.bin", "refused.jsonl", "index.bin")
            parts = [stack.enter_context((directory / name).open("rb")) for name in names]
            before = np.zeros((), _CHUNK)
            for chunk in chunks:
                sizes = [
                    int(chunk[name]) - int(before[name])
                    for name in ("tokens", "refused", "conversations")
                ]
                sizes[2] *= INDEX.itemsize
                # A damaged size must not ask for more memory than the file takes.
                if any(
                    not 0 <= s <= os.fstat(p.fileno()).st_size
                    for s, p in zip(sizes, parts, strict=True)
                ):
                    raise ValueError("sizes that do not fit the files")
                read = [part.read(size) for part, size in zip(parts, sizes, strict=True)]
                if _crc(*read) != int(chunk["crc"]):
                    raise ValueError("content that was changed")
                before = chunk
    except (OSError, ValueError) as error:
        raise _damaged(directory, error) from None
    return chunks


def _damaged(directory: Path, error: object) -> InputError:
    return InputError(
        "the cache is damaged: pass --force without --resume to start again",
        file=directory,
        found=error,
        expected="the cache of an interrupted build",
    )


def being_published(directory: Path) -> frozenset[Path]:
    """Files that an interrupted build was putting in their places: it may replace them."""
    try:
        targets = json.loads((directory / _PUBLISHING).read_bytes())
    except (OSError, ValueError):
        return frozenset()
    return frozenset(Path(t) for t in targets if isinstance(t, str))


@contextmanager
def open_cache(
    directory: Path, fingerprint: dict[str, Any], *, resume: bool, force: bool, keep: bool = False
) -> Iterator[TokenCache]:
    """The cache in ``directory``: removed at the end and on bad input, kept on interruption.

    Args:
        directory: where it lies.
        fingerprint: what the tokens depend on; a cache with another one is not resumed.
        resume: go on with what is there.
        force: throw away what is there.
        keep: keep it after success, too.

    Raises:
        InputError: a cache is there and neither resumed nor thrown away, belongs to other input
            or settings, or is in use.
    """
    refuse_foreign(directory)
    told = directory / _SETTINGS
    with _locked(directory):
        if told.exists() and not resume:
            if not force:
                raise InputError(
                    "pass --resume to go on with it, or --force to start again",
                    file=directory,
                    found="an interrupted build",
                )
            _empty(directory)
        if not told.exists():
            _empty(directory)
            files.write_text(told, json.dumps(fingerprint, indent=2) + "\n")
        else:
            _same(told, fingerprint)
        cache = TokenCache(directory)
        try:
            yield cache
        except BaseException as error:
            cache.close()
            if isinstance(error, InputError) and not isinstance(error, WorkerDied):
                _remove(directory)
            raise
        cache.close()
        if not keep:
            _remove(directory)


def refuse_foreign(directory: Path) -> None:
    """Raises InputError where something lies in a cache's place that is no cache."""
    if not os.path.lexists(directory):
        return
    foreign = ["no folder"] if directory.is_symlink() or not directory.is_dir() else []
    if not foreign:
        names = sorted(file.name for file in directory.iterdir())
        foreign = [name for name in names if not _ours(name)]
        lock = directory / _LOCK
        line = lock.read_bytes() if lock.is_file() else b""
        if line != _OWN_LINE and (line or names not in ([], [_LOCK])):
            foreign = foreign or names
    if foreign:
        raise InputError(
            "move it away, or choose another --output: the build keeps its cache there",
            file=directory,
            found=f"something else ({', '.join(foreign[:4])})",
            expected="nothing, or the cache of an interrupted build",
        )


def _ours(name: str) -> bool:
    known = (*_FILES, _SETTINGS, _PUBLISHING, _LOCK, "train.parquet", "evaluation.parquet")
    beginnings = (f".{_SETTINGS}.", f".{_PUBLISHING}.")
    return name in known or (name.startswith(beginnings) and name.endswith(".tmp"))


def _empty(directory: Path) -> None:
    """Remove the cache's files, the one last that tells what they are."""
    for file in sorted(directory.iterdir(), key=lambda file: file.name == _SETTINGS):
        if file.name != _LOCK and _ours(file.name):
            file.unlink()


def _remove(directory: Path) -> None:
    _empty(directory)
    (directory / _LOCK).unlink()
    if not any(directory.iterdir()):
        directory.rmdir()


def _same(told: Path, fingerprint: dict[str, Any]) -> None:
    try:
        before = json.loads(told.read_bytes())
    except ValueError:
        before = None
    if not isinstance(before, dict):
        raise _damaged(told.parent, f"{_SETTINGS} that tells no settings")
    wanted = json.loads(json.dumps(fingerprint))
    changed = sorted(k for k in {*before, *wanted} if before.get(k) != wanted.get(k))
    if changed:
        raise InputError(
            "give the same input and settings, or pass --force without --resume to start again",
            file=told.parent,
            field=", ".join(changed),
            found="an interrupted build of other input or settings",
        )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("ab") as lock:
        try:
            # Not flock: forked processes would hold it on after their parent was killed.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                "wait for the other build, or choose another --output",
                file=directory,
                found="a build that is running",
            ) from None
        if lock.tell() == 0:
            lock.write(_OWN_LINE)
            lock.flush()
        yield
