"""Files are whole or absent, and a file that cannot be read says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openrecipes.errors import InputError
from openrecipes.files import (
    atomic_path,
    read_json,
    read_text,
    refuse_existing,
    refuse_unwritable,
    write_json,
)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json(target, {"old": 1})
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(target) == {"old": 1}
    assert list(tmp_path.iterdir()) == [target]


def test_a_place_that_cannot_be_written_is_named_as_given(tmp_path: Path) -> None:
    target = Path("/proc/a.json")
    with pytest.raises(OSError) as fault:
        write_json(target, {})
    assert fault.value.filename == str(target)
    with pytest.raises(InputError, match=r"^/proc/a\.json: --html - found No such file"):
        refuse_unwritable(target, "--html")
    refuse_unwritable(tmp_path / "new" / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{\n  broken", ":2"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 100_000, "nesting too deep"),
        (b"1" * 5_000, "a number too long"),
    ],
    ids=["syntax", "encoding", "nesting", "digits"],
)
def test_what_is_no_json_says_where(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_json(path)
    assert told in str(error.value)
    assert str(path) in str(error.value)


def test_what_cannot_be_read_whole_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path / "none", tmp_path, Path(__file__), Path("/dev/zero")):
        with pytest.raises(InputError):
            read_text(path, limit=10)


def test_an_existing_output_is_kept_unless_forced(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--force"):
        refuse_existing(tmp_path, force=False)
    refuse_existing(tmp_path, force=True)
    refuse_existing(tmp_path / "new", force=False)
