"""Nothing of the user's is lost: outputs, inputs and folders that are no cache are left alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from openrecipes.rows import cache as cache_module
from tests.rows.given import TOKENIZER, talk, write_lines

TALKS = [talk(f"question {n}", f"answer {n} " * 8) for n in range(20)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return write_lines(tmp_path / "in" / "talks.jsonl", TALKS)


@pytest.fixture
def make(build: Any, source: Path) -> Any:
    """``rows build`` of the small input."""

    def call(*arguments: object, input_: object = source) -> tuple[int, str, str]:
        return build("--row-tokens", 32, *arguments, input_=input_)

    return call


@pytest.fixture
def interrupted(make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache of a build that was stopped before anything was written."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("openrecipes.rows.assembly.Assembly.run", stop)
        assert make()[0] == 4
    return tmp_path / "rows.parquet.cache"


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"in"}


def test_a_folder_that_is_no_cache_is_left_alone(tmp_path: Path, make: Any) -> None:
    for content in ({"thesis.txt": "x"}, {"lock": "mine"}, {"settings.json": "{}"}):
        folder = tmp_path / "rows.parquet.cache"
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
        for more in ((), ("--force",), ("--resume",)):
            code, _, err = make(*more)
            assert code == 2
            assert next(iter(content)) in err
            assert {p.name: p.read_text() for p in folder.iterdir()} == content
        shutil.rmtree(folder)
    (tmp_path / "rows.parquet.cache").symlink_to(tmp_path / "nowhere")
    assert make("--force")[0] == 2


def test_a_cache_with_something_of_the_users_in_it_is_left_alone(
    interrupted: Path, make: Any
) -> None:
    (interrupted / "notes.txt").write_text("mine")
    before = names(interrupted)
    assert make("--force")[0] == 2
    assert names(interrupted) == before


def test_resume_replaces_no_file_that_it_did_not_write(
    tmp_path: Path, make: Any, interrupted: Path
) -> None:
    output = tmp_path / "rows.parquet"
    output.write_text("precious")
    code, _, err = make("--resume")
    assert code == 2
    assert "--force" in err
    assert output.read_text() == "precious"
    shutil.rmtree(interrupted)
    assert make("--resume")[0] == 2
    assert output.read_text() == "precious"


def test_the_block_beside_the_rows_is_not_replaced_unasked(tmp_path: Path, make: Any) -> None:
    block = tmp_path / "rows.parquet.build.json"
    block.write_text("mine")
    code, _, err = make()
    assert code == 2
    assert block.name in err
    assert block.read_text() == "mine"
    assert make("--force")[0] == 0


def test_a_build_killed_while_it_publishes_is_resumed(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some files are in their places already: the resumed build replaces its own."""
    moved = Path.replace

    def stop_at_the_last(self: Path, target: Path) -> Path:
        if Path(target).name == "rows.parquet":
            raise KeyboardInterrupt
        return moved(self, target)

    report = tmp_path / "r.json"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", stop_at_the_last)
        assert make("--report", report)[0] == 4
    assert report.exists() and not (tmp_path / "rows.parquet").exists()
    code, _, err = make("--report", report, "--resume")
    assert code == 0, err
    assert names(tmp_path) == {"rows.parquet", "rows.parquet.build.json", "r.json"}


def test_a_file_that_cannot_be_made_leaves_all_others_out(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("openrecipes.rows.assembly.report_page", full)
        code, _, err = make("--report", tmp_path / "r.json", "--report", tmp_path / "r.html")
    assert code == 2 and "--resume" in err
    assert names(tmp_path) == {"rows.parquet.cache"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--report", "rows.parquet.build.json"],
        ["--report", "r.json", "--report", "./r.json"],
        ["--eval-share", "0.3", "--eval-output", "rows.parquet"],
        ["--eval-share", "0.3", "--eval-output", "rows.parquet.build.json"],
        ["--report", "rows.parquet.cache/r.json"],
        ["--report", "rows.parquet/r.json"],
        ["--report", "x" * 300 + ".json"],
        ["--report", "x" * 250 + ".json"],
        ["--report", "a\0b.json"],
        ["--output", ""],
        ["--output", "/dev/null"],
        ["--output", "x" * 300],
        ["--eval-output", "e.parquet"],
    ],
)
def test_places_that_clash_or_cannot_be_are_refused(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = Path("/dev/null").stat().st_mode
    code, out, err = make("--force", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert names(tmp_path) == set()
    assert Path("/dev/null").stat().st_mode == before


def test_nothing_that_is_read_is_written_over(
    tmp_path: Path, make: Any, source: Path, cli: Any
) -> None:
    tokenizer = tmp_path / "tok"
    shutil.copytree(TOKENIZER, tokenizer)
    link = tmp_path / "link.json"
    link.symlink_to(source)
    given = ["--force", "--tokenizer", tokenizer, "--num-workers", 1]
    read = [source, tokenizer / "tokenizer.json", tokenizer / "chat_template.jinja"]
    before = [path.read_bytes() for path in read]
    for path in read:
        assert make(*given, "--output", path)[0] == 2
        command = ["rows", "encode", "--input", source, "--output", path]
        assert cli(*command, *given)[0] == 2
    assert make(*given, "--report", link)[0] == 2
    assert [path.read_bytes() for path in read] == before
    assert link.is_symlink()


def test_no_output_inside_an_input_folder(make: Any, source: Path, cli: Any) -> None:
    inside = source.parent / "sub" / "rows.parquet"
    code, _, err = make("--output", inside, input_=source.parent)
    assert code == 2
    assert "outside of the input" in err
    assert list(source.parent.iterdir()) == [source]


def test_inspect_writes_no_page_over_what_it_reads(tmp_path: Path, make: Any, cli: Any) -> None:
    assert make()[0] == 0
    rows = tmp_path / "rows.parquet"
    before = rows.read_bytes()
    for page in (rows, tmp_path, "/proc/x/r.html", "/dev/null", tmp_path / ("x" * 300)):
        code, out, err = cli("rows", "inspect", rows, "--html", page, "--force")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "--html" in err
    assert rows.read_bytes() == before


@pytest.mark.parametrize("place", ["/proc/x/r.jsonl", "/dev/full", "x" * 300])
def test_encode_looks_at_its_place_first(source: Path, cli: Any, place: str) -> None:
    code, out, err = cli(
        "rows", "encode", "--input", source, "--tokenizer", TOKENIZER, "--output", place
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--output" in err


def bytes_of(file: Path, change: Any) -> None:
    file.write_bytes(change(file.read_bytes()))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokens.bin", lambda c: c[:100]),
        ("tokens.bin", lambda c: bytes(len(c))),
        ("index.bin", lambda c: b""),
        ("chunks.bin", lambda c: b"\xff" * 64),
        ("settings.json", lambda c: b"[]"),
        ("settings.json", lambda c: b"{"),
    ],
)
def test_a_damaged_cache_is_told_and_started_again(
    interrupted: Path, make: Any, name: str, change: Any
) -> None:
    bytes_of(interrupted / name, change)
    code, _, err = make("--resume")
    assert code == 2
    assert "damaged" in err and "--force" in err
    assert make("--force")[0] == 0
    assert not interrupted.exists()


def test_a_whole_cache_is_resumed(interrupted: Path, make: Any, monkeypatch: Any) -> None:
    assert {"lock", "settings.json", *cache_module._FILES} == names(interrupted)
    monkeypatch.setattr("openrecipes.rows.pool.encode_chunk", None)  # nothing is encoded again
    assert make("--resume")[0] == 0
    assert not interrupted.exists()


def test_names_of_any_bytes_are_told(tmp_path: Path, make: Any, source: Path) -> None:
    odd = os.fsdecode(os.fsencode(source.parent) + b"/odd\xff.jsonl")
    shutil.copy(source, odd)
    report = tmp_path / "r.json"
    code, out, err = make(
        "--json",
        "--report",
        report,
        "--report",
        tmp_path / "r.html",
        "--name",
        "n\udcff",
        input_=odd,
    )
    assert code == 0, err
    assert json.loads(report.read_text(encoding="utf-8"))["files"][0]["path"].endswith(
        "odd\\udcff.jsonl"
    )
    assert json.loads(out)["dataset"]["build"]["name"] == "n\\udcff"
