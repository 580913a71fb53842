"""Files that are either whole or absent: atomic writes, hashes, guarded reads."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openrecipes.errors import InputError


def packaged_folder(name: str) -> Path | None:
    """A folder that comes with OpenRecipes: inside the wheel, else in the source tree."""
    package = Path(__file__).parent
    for folder in (package / "_data" / name, package.parents[1] / name):
        if folder.is_dir():
            return folder
    return None


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """A temporary path beside ``target`` that takes its place when the block succeeds.

    When the block raises, the temporary file is removed and ``target`` is untouched.

    Raises:
        OSError: the place cannot be written; it names ``target``.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(target: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: Path, document: Any) -> None:
    """Write ``document`` as indented JSON, atomically; NaN and infinity are refused."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(target, text + "\n")


#: The most bytes that are read of a text file where the caller sets no limit.
LARGEST_TEXT = 256 * 2**20


def read_text(path: Path, limit: int = LARGEST_TEXT) -> str:
    """Read a UTF-8 text file.

    Args:
        path: the file.
        limit: the most bytes that are read; a larger file is refused.

    Raises:
        InputError: missing, not a file, unreadable, too large, or not UTF-8.
    """
    try:
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise InputError("give a regular file", file=path, found="a device or a pipe")
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
        if len(content) > limit:
            raise InputError(
                "give a smaller file",
                file=path,
                found=f"more than {limit:,} bytes",
                expected=f"at most {limit:,} bytes",
            )
        return content.decode("utf-8")
    except FileNotFoundError:
        raise InputError("check the path", file=path, found="no such file") from None
    except IsADirectoryError:
        raise InputError("give a file", file=path, found="a directory") from None
    except OSError as error:
        raise InputError("check the file's permissions", file=path, found=error.strerror) from None
    except UnicodeDecodeError as error:
        raise InputError(
            "save the file as UTF-8",
            file=path,
            found=f"byte 0x{error.object[error.start]:02x} at offset {error.start}",
            expected="UTF-8 text",
        ) from None


def read_json(path: Path, limit: int = LARGEST_TEXT) -> Any:
    """Read a JSON file; raises InputError with the line of a fault."""
    try:
        return json.loads(read_text(path, limit))
    except json.JSONDecodeError as error:
        raise InputError(
            "mend the JSON", file=f"{path}:{error.lineno}", found=error.msg, expected="JSON"
        ) from None
    except ValueError:  # an integer of thousands of digits
        raise InputError("shorten the number", file=path, found="a number too long") from None
    except RecursionError:
        raise InputError("flatten the JSON", file=path, found="nesting too deep") from None


def refuse_unwritable(target: Path, field: str = "--output") -> None:
    """Raise InputError where ``target`` could not be written; nothing is left behind.

    Args:
        target: a file that may not be there yet, nor its directory.
        field: the option that names it.
    """
    folder = next(place for place in target.absolute().parents if os.path.lexists(place))
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise InputError(
            "choose a place that can be written",
            file=target,
            field=field,
            found=error.strerror,
        ) from None


def sha256_file(path: Path) -> str:
    """sha256 of a file's bytes, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def refuse_existing(target: Path, *, force: bool) -> None:
    """Raise InputError when ``target`` exists and ``force`` was not given."""
    if target.exists() and not force:
        raise InputError(
            "choose another --output, or pass --force to replace it",
            file=target,
            field="--output",
            found="exists already",
            expected="a new path",
        )
