"""Every place that a command writes, looked at before any work; all of them filled together."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from openrecipes.errors import InputError


def temporary_beside(target: Path) -> Path:
    """A new name in the folder of ``target``, for what will take its place."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")


class Places:
    """The files that a command will write.

    Args:
        outputs: each file with the option that names it.
        cache: a folder that is the program's own while it works.
        force: may files that are there be replaced?
        own: files that this build itself has put there already, which it may replace.
    """

    def __init__(
        self,
        outputs: Sequence[tuple[Path, str]],
        *,
        cache: Path | None = None,
        force: bool = False,
        own: frozenset[Path] = frozenset(),
    ) -> None:
        self._outputs = outputs
        self._cache = cache
        self._force = force
        self._own = own

    def check(self) -> None:
        """Raises InputError for a place that cannot be written, or that must not be."""
        seen: dict[Path, str] = {}
        for path, field in self._outputs:
            self._check_one(path, field)
            real = _real(path)
            if (other := seen.get(real)) is not None:
                raise InputError(
                    "give each file its own name",
                    file=path,
                    field=field,
                    found=f"the name of another file that is written ({other})",
                )
            seen[real] = field
        taken = {*seen} if self._cache is None else {*seen, _real(self._cache)}
        for path, field in self._outputs:
            real = _real(path)
            inside = [place for place in taken if place in real.parents]
            if inside or real in taken - {*seen}:
                raise InputError(
                    "choose another place",
                    file=path,
                    field=field,
                    found=f"the place of {(inside or [real])[0]}, which the build writes",
                )

    def _check_one(self, path: Path, field: str) -> None:
        try:
            there = os.path.lexists(path)
            if path.is_dir():
                raise InputError("give a file", file=path, field=field, found="a directory")
            if there and path.exists() and not path.is_file():
                raise InputError("give a file", file=path, field=field, found="a device or a pipe")
            if there and not self._force and path.absolute() not in self._own:
                raise InputError(
                    f"choose another {field.partition(' ')[0]}, or pass --force to replace it",
                    file=path,
                    field=field,
                    found="exists already",
                    expected="a new path",
                )
            _try_writing(path)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a name
            raise InputError(
                "choose a place that can be written",
                file=path,
                field=field,
                found=error.strerror if isinstance(error, OSError) else error,
            ) from None

    def check_apart(self, read: Mapping[Path, str], folders: Sequence[Path] = ()) -> None:
        """Raises InputError where something that is read would be written.

        Args:
            read: each file that is read, with what it is.
            folders: folders whose files are read.
        """
        for path, field in self._outputs:
            for other, what in read.items():
                if _same(path, other):
                    raise InputError(
                        "choose another name: this file is read",
                        file=path,
                        field=field,
                        found=what,
                        expected="a new path",
                    )
            for folder in folders:
                if _real(folder) in _real(path).parents:
                    raise InputError(
                        "choose a place outside of the input: the next build would read it",
                        file=path,
                        field=field,
                        found=f"a place in the input {folder}",
                    )


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return _real(path) == _real(other)


def _try_writing(path: Path) -> None:
    """Make and remove a file as it will be made, in the folder or what there is above it."""
    folder = next(place for place in path.absolute().parents if os.path.lexists(place))
    trial = temporary_beside(folder / path.name)
    os.close(os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    trial.unlink()


class Publication:
    """Files that appear together: each is made beside its place, then all are moved."""

    def __init__(self) -> None:
        self._made: list[tuple[Path, Path]] = []

    @property
    def targets(self) -> list[Path]:
        """Where they will be."""
        return [target for _, target in self._made]

    def text(self, target: Path, text: str) -> None:
        """Have a file of text ready."""
        self._new(target).write_text(text, encoding="utf-8")

    def file(self, target: Path, ready: Path) -> None:
        """Have a finished file ready; it is moved, or copied from another disk."""
        temporary = self._new(target)
        if ready.stat().st_dev == target.parent.stat().st_dev:
            ready.replace(temporary)
        else:
            shutil.copyfile(ready, temporary)

    def _new(self, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(target)
        self._made.append((temporary, target))
        return temporary

    def move(self) -> None:
        """Put all in their places."""
        for temporary, target in self._made:
            temporary.replace(target)


@contextlib.contextmanager
def published(announce: Callable[[list[Path]], None]) -> Iterator[Publication]:
    """A Publication whose files appear when the block ends well; else none does.

    Args:
        announce: is told the places just before they are filled.
    """
    publication = Publication()
    try:
        yield publication
        announce(publication.targets)
        publication.move()
    finally:
        for temporary, _ in publication._made:
            temporary.unlink(missing_ok=True)
