"""Where conversations come from: files, directories, globs and hub data sets, in a fixed order."""

from __future__ import annotations

import glob
import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from openrecipes.errors import InputError, one_line
from openrecipes.rows.refusals import Refusal, unexpected

#: Endings of the files that are read, longest first.
ENDINGS = (".jsonl.gz", ".jsonl.zst", ".ndjson", ".jsonl", ".parquet", ".json")
#: Conversations handed to a process at once.
CHUNK = 64
#: Bytes of text handed to a process at once, at most (one line may be longer).
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class SourceFile:
    """One file of conversations.

    Attributes:
        path: the file.
        input: number of the ``--input`` that it belongs to, from 0.
    """

    path: Path
    input: int

    @property
    def columnar(self) -> bool:
        """Is it parquet?"""
        return self.path.name.lower().endswith(".parquet")


@dataclass(frozen=True)
class Chunk:
    """Some consecutive records of one file, not yet parsed.

    Attributes:
        file: number of the file, from 0.
        input: number of the ``--input``.
        first: position of the first record among all records of all files, from 0.
        lines: each record's line number (or row number in a parquet file), from 1.
        records: raw JSON lines, or one Arrow stream with all of them.
        columnar: is it an Arrow stream?
        read: bytes of all files read so far, for a progress bar.
    """

    file: int
    input: int
    first: int
    lines: tuple[int, ...]
    records: tuple[bytes, ...]
    columnar: bool
    read: int


@dataclass(frozen=True)
class Found:
    """What inputs name.

    Attributes:
        files: the files, in the order in which they are read.
        left_out: what lies in a folder, or fits a glob, and is not read.
    """

    files: list[SourceFile]
    left_out: list[str]


def find(inputs: Sequence[str]) -> Found:
    """The files that inputs name, in the order given; directories and globs sorted by name.

    Raises:
        InputError: nothing there, a file of a kind that cannot be read, a link to nothing, or the
            same file twice.
    """
    found = Found([], [])
    for number, given in enumerate(inputs):
        try:
            paths, left_out = _expand(given)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a name
            raise unreadable(Path(given), error) from None
        if not paths:
            raise InputError(
                "check the path",
                file=given,
                field="--input",
                found="no conversation file",
                expected=f"a file, directory or glob of {', '.join(ENDINGS)}",
            )
        found.files.extend(SourceFile(path, number) for path in paths)
        found.left_out.extend(map(str, left_out))
    if not found.files:
        raise InputError("give at least one --input", field="--input", found="none")
    seen = set()
    for source in found.files:
        real = source.path.resolve()
        if real in seen:
            raise InputError(
                "give each file once",
                file=source.path,
                field="--input",
                found="the same file twice",
            )
        seen.add(real)
    return found


def _expand(given: str) -> tuple[list[Path], list[Path]]:
    """The files to read, and what is left out."""
    path = Path(given)
    if path.is_dir():
        return _sorted_out(_under(path))
    if path.is_file():
        if not _readable(path):
            raise InputError(
                "convert it to JSONL or parquet",
                file=path,
                field="--input",
                found=f"the ending {''.join(path.suffixes) or 'of no kind'}",
                expected=", ".join(ENDINGS),
            )
        return [path], []
    if path.exists():
        raise InputError("give a file", file=path, field="--input", found="neither file nor folder")
    if path.is_symlink():
        return _sorted_out([path])
    matches = glob.glob(given, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
    return _sorted_out([Path(match) for match in matches])


def _under(folder: Path) -> list[Path]:
    """Every file below a folder, and every linked folder, which is not gone into."""

    def stop(error: OSError) -> None:
        raise error

    found = []
    for place, folders, names in os.walk(folder, onerror=stop):
        here = Path(place)
        found += [here / name for name in names]
        found += [here / name for name in folders if (here / name).is_symlink()]
    return found


def _sorted_out(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    read: list[Path] = []
    left_out: list[Path] = []
    for path in sorted(paths):
        if path.is_symlink() and not path.exists():
            raise InputError(
                "mend the link, or remove it", file=path, field="--input", found="a link to nothing"
            )
        (read if path.is_file() and _readable(path) else left_out).append(path)
    return read, left_out


def _readable(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS)


def chunks(found: Sequence[SourceFile], *, skip: int = 0) -> Iterator[Chunk]:
    """All records of all files in chunks; the cut into chunks depends on the files alone.

    Args:
        found: the files.
        skip: number of records at the front that are passed over (a resumed build); it lies
            between two chunks.

    Raises:
        InputError: a file that cannot be read, is cut short, or holds no record.
    """
    first = 0
    done = 0
    for number, source in enumerate(found):
        reader = _parquet_records if source.columnar else _json_lines
        before = first
        for lines, records, read in reader(source.path):
            if first >= skip:
                yield Chunk(
                    number, source.input, first, lines, records, source.columnar, done + read
                )
            first += len(lines)
        if first == before:
            raise InputError(
                "leave the file out", file=source.path, found="no record", expected="conversations"
            )
        done += source.path.stat().st_size


_Records = tuple[tuple[int, ...], tuple[bytes, ...], int]


def _json_lines(path: Path) -> Iterator[_Records]:
    lines: list[int] = []
    records: list[bytes] = []
    size = 0
    number = 0
    try:
        with path.open("rb") as raw:
            text = _decompressed(path, raw)
            for number, line in enumerate(text, 1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                    if line.lstrip().startswith(b"["):
                        raise InputError(
                            "write one conversation per line (JSONL)",
                            file=f"{path}:1",
                            found="a JSON array",
                            expected="a JSON object per line",
                        )
                line = line.strip()
                if not line:
                    continue
                lines.append(number)
                records.append(line)
                size += len(line)
                if len(records) == CHUNK or size >= CHUNK_BYTES:
                    yield tuple(lines), tuple(records), raw.tell()
                    lines, records, size = [], [], 0
            if records:
                yield tuple(lines), tuple(records), raw.tell()
    except (EOFError, zlib.error, gzip.BadGzipFile, _zstd_error()) as error:
        raise InputError(
            "fetch the file again: it is cut short or damaged",
            file=f"{path}:{number + 1}",
            found=one_line(error),
            expected="a whole compressed file",
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _decompressed(path: Path, raw: IO[bytes]) -> Iterable[bytes]:
    name = path.name.lower()
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw, mode="rb")
    if name.endswith(".zst"):
        return io.BufferedReader(_ZstdReader(raw))
    return raw


class _ZstdReader(io.RawIOBase):
    """zstd frames, one after another; a frame that is cut short is an error, not an end."""

    def __init__(self, raw: IO[bytes]) -> None:
        import zstandard

        self._raw = raw
        self._open = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._open()
        self._begun = False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = self._open(), False
            packed = packed or self._raw.read(1 << 17)
            if not packed:
                if self._begun:
                    raise EOFError("the last zstd frame is not whole")
                return 0
            self._begun = True
            self._ready = self._frame.decompress(packed)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def _zstd_error() -> type[Exception]:
    import zstandard

    error: type[Exception] = zstandard.ZstdError
    return error


def _parquet_records(path: Path) -> Iterator[_Records]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            wanted = [
                name
                for name in file.schema_arrow.names
                if name in ("id", "conversation_id", "uuid", "messages", "conversations", "tools")
            ]
            if not {"messages", "conversations"} & set(wanted):
                raise InputError(
                    "name the column of messages 'messages' or 'conversations'",
                    file=path,
                    field="columns",
                    found=", ".join(file.schema_arrow.names[:8]),
                    expected="messages or conversations",
                )
            size = path.stat().st_size
            for batch in file.iter_batches(batch_size=CHUNK, columns=wanted):
                sink = pyarrow.BufferOutputStream()
                with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
                    writer.write_batch(batch)
                lines = tuple(range(number + 1, number + 1 + batch.num_rows))
                number += batch.num_rows
                read = size * number // max(file.metadata.num_rows, 1)
                yield lines, (sink.getvalue().to_pybytes(),), read
    except (pyarrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise unreadable(path, cast(OSError, error)) from None
        # Arrow tells damaged pages as an OSError of no number.
        raise InputError(
            "fetch the file again: it is damaged or no parquet",
            file=path,
            found=one_line(error, 160),
            expected="a parquet file",
        ) from None


def unreadable(path: Path, error: OSError | ValueError) -> InputError:
    """What to tell of an input that the system does not let us read."""
    return InputError(
        "check the file and its permissions",
        file=path,
        field="--input",
        found=getattr(error, "strerror", None) or one_line(error),
    )


def parquet_rows(stream: bytes) -> list[Any]:
    """The records of one chunk of a parquet file; nulls inside messages and tools left out.

    Parquet gives every struct all keys, so a missing key comes back as a null; maps come back as
    mappings. A record with a value that Python cannot hold (text that is no UTF-8, a day beyond
    year 9999, a map with one key twice) comes back as a Refusal.
    """
    import pyarrow

    with pyarrow.ipc.open_stream(stream) as reader:
        table = reader.read_all()
    try:
        return _records(table)
    except Exception:  # which record is it?
        return [_record(table.slice(row, 1)) for row in range(table.num_rows)]


def _records(table: Any) -> list[Any]:
    return [_without_nulls(row) for row in table.to_pylist(maps_as_pydicts="strict")]


def _record(table: Any) -> Any:
    try:
        return _records(table)[0]
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        return Refusal("invalid-utf8", f"byte 0x{byte:02x} at offset {error.start} of a text")
    except Exception as error:
        return unexpected(error)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value
