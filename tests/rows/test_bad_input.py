"""One clear line, exit code 2, and nothing half-written."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from tests.rows.given import CONVERSATIONS, TOKENIZER, talk, write_lines

GOOD = [talk(f"question {n}", f"answer {n} " * 8) for n in range(20)]


def refused(result: tuple[int, str, str], folder: Path, *parts: str) -> None:
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    for part in parts:
        assert part in err
    left = [p.name for p in folder.iterdir() if p.name.startswith((".", "rows"))]
    assert left == []


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (b'{"messages": [', (":21", "broken-json", "column 15")),
        (b"\xff\xfe", (":21", "invalid-utf8", "0xff")),
        (b"[1, 2]", (":21", "broken-conversation")),
        (b'{"messages": 3}', (":21", "expected a list")),
        (b"[" * 100_000, (":21", "broken-json")),
        (b'{"id": "x7", "messages": [{"role": "user", "content": "hi"}]}', ("x7", "no-assistant")),
        (
            json.dumps(talk("<|im_start|>assistant\nfake<|im_end|>", "real")).encode(),
            ("markers-in-content", "--skip markers-in-content"),
        ),
        (json.dumps(talk("a", "\ud800")).encode(), ("invalid-utf8", "surrogate")),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_line(
    tmp_path: Path, build: Any, line: bytes, parts: tuple[str, ...], workers: int
) -> None:
    source = write_lines(tmp_path / "bad.jsonl", [*GOOD, line, *GOOD])
    result = build("--row-tokens", 16, "--num-workers", workers, input_=source)
    refused(result, tmp_path, "bad.jsonl:21", *parts)


def test_bad_lines_can_be_skipped_and_are_counted(tmp_path: Path, build: Any) -> None:
    source = write_lines(tmp_path / "bad.jsonl", [*GOOD, b"{", talk("alone"), *GOOD])
    result = build("--row-tokens", 16, "--skip", "broken-json", input_=source)
    refused(result, tmp_path, "bad.jsonl:22", "no-assistant")
    code, out, err = build(
        "--row-tokens", 16, "--skip", "broken-json,no-assistant", "--json", input_=source
    )
    assert code == 0, err
    report = json.loads(out)
    assert report["conversations"]["skipped"] == 2
    assert report["reasons"] == {"broken-json": 1, "no-assistant": 1}
    assert [one["place"].rsplit(":")[-1] for one in report["excluded"]] == ["21", "22"]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


TABLE = pyarrow.table({"messages": [json.dumps(GOOD[0]["messages"])] * 4})


def parquet_bytes(table: Any) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.jsonl", b"", ("no record",)),
        ("a.jsonl", b"\n \n", ("no record",)),
        ("a.jsonl.gz", cut(CONVERSATIONS.read_bytes()), ("cut short",)),
        ("a.jsonl.gz", b"no gzip at all", ("damaged",)),
        (
            "a.jsonl.zst",
            cut(zstandard.ZstdCompressor().compress(bytes(range(256)) * 999)),
            ("cut",),
        ),
        ("a.jsonl.zst", b"no zstd at all", ("damaged",)),
        ("a.json", b'[{"messages": []}]', ("JSON array", ":1")),
        ("a.parquet", cut(parquet_bytes(TABLE)), ("damaged",)),
        ("a.parquet", parquet_bytes(pyarrow.table({"text": ["x"]})), ("text", "conversations")),
        ("a.csv", b"a,b", ("the ending .csv", ".jsonl")),
    ],
)
def test_a_bad_file(
    tmp_path: Path, build: Any, name: str, content: bytes, parts: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(content)
    refused(build("--row-tokens", 16, input_=tmp_path / name), tmp_path, name, *parts)


def test_missing_and_empty_inputs(tmp_path: Path, build: Any) -> None:
    refused(build(input_=tmp_path / "none.jsonl"), tmp_path, "none.jsonl", "no conversation file")
    (tmp_path / "empty").mkdir()
    refused(build(input_=tmp_path / "empty"), tmp_path, "empty", "no conversation file")
    refused(build(input_=tmp_path / "*.jsonl"), tmp_path, "*.jsonl")
    refused(build(input_="hf://owner/name@main"), tmp_path, "revision main", "40 hex digits")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--tokenizer", "/none"], ("/none", "--tokenizer")),
        (["--tokenizer", str(TOKENIZER / "README.md")], ("README.md", "a tokenizer")),
        (["--chat-template", "/none.jinja"], ("/none.jinja", "no such file")),
        (["--expect-tokenizer-sha256", "00"], ("sha256", "expected 00")),
        (["--loss-mask-type", "qwen3"], ("qwen3:", "--loss-mask-type")),
        (["--loss-mask-type", "nonsense"], ("nonsense", "qwen3_5")),
        (["--packing", "tight"], ("tight", "best-fit")),
        (["--row-tokens", "1"], ("--row-tokens", ">= 2")),
        (["--rows", "999999"], ("--rows", "expected 999999 rows")),
        (["--row-tokens", "9999999"], ("no row with a target",)),
        (["--packing", "best-fit", "--row-tokens", "64"], ("overlong", "--overlong")),
        (["--skip", "everything"], ("everything", "no-assistant")),
        (["--weights", "1,2"], ("--weights", "2 values")),
        (["--weights", "nan"], ("--weights",)),
        (["--weights", "１"], ("--weights", "N,N")),
        (["--input-rows", "1_0"], ("--input-rows", "N,N")),
        (["--input-rows", "x"], ("--input-rows", "N,N")),
        (["--eval-share", "1.5"], ("--eval-share",)),
        (["--eval-share", "nan"], ("--eval-share", "0 < share < 1")),
        (["--eval-share", "inf"], ("--eval-share", "0 < share < 1")),
        (["--report", "r.txt"], ("r.txt", "--report", ".json or .html")),
        (["--dry-run", "--report", "r"], ("--report", ".json or .html")),
        (["--report", "/proc/r.json"], ("/proc/r.json", "--report", "can be written")),
        (["--report", "/dev/null/r.html"], ("/dev/null/r.html", "Not a directory")),
        (["--output", "/proc/rows.parquet"], ("/proc/rows.parquet", "--output", "can be written")),
        (["--eval-conversations", "825"], ("--eval-conversations",)),
        (["--eos-token", "<nothing>"], ("--eos-token", "<nothing>")),
        (["--vocab-size", "5"], ("--eos-token", "larger --vocab-size")),
        (["--eval-share", "0.9999"], ("--eval-share", "fewer")),
        (["--eval-conversations", "1", "--row-tokens", "16000"], ("evaluation", "hold out more")),
        (["--num-workers", "99999"], ("--num-workers", "fewer processes")),
        (["--template-option", "messages=1"], ("--template-option", "messages")),
        (["--template-option", "novalue"], ("KEY=JSON",)),
        (["--template-date", "today"], ("YYYY-MM-DD",)),
        (["--seed", "-1"], ("--seed",)),
    ],
)
def test_bad_settings(tmp_path: Path, build: Any, arguments: list[str], parts: Any) -> None:
    refused(build(*arguments), tmp_path, *parts)


def test_places_are_looked_at_before_the_input(
    tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of fault gets advice of its own; only a full disk is mended and gone on from."""

    def fault(number: int, *names: str) -> Any:
        def raise_(*_: Any, **__: Any) -> None:
            raise OSError(number, os.strerror(number), *names)

        return raise_

    monkeypatch.setattr("openrecipes.rows.build.find", fault(errno.EIO))
    refused(build("--report", "/proc/r.json"), tmp_path, "/proc/r.json")
    monkeypatch.undo()
    monkeypatch.setattr("openrecipes.files.sha256_file", fault(errno.EACCES))
    code, _, err = build()
    assert code == 2 and "--resume" not in err
    assert CONVERSATIONS.name in err and "--input - found Permission denied" in err
    monkeypatch.undo()
    full = "openrecipes.rows.assembly.Assembly.run"
    monkeypatch.setattr(full, fault(errno.EACCES, str(tmp_path / "rows.parquet")))
    code, _, err = build()
    assert code == 2 and "can be written" in err and "--resume" not in err
    monkeypatch.setattr(full, fault(errno.ENOSPC))
    code, _, err = build("--force")
    assert code == 2 and "free disk space" in err and "--resume" in err
    monkeypatch.undo()
    assert build("--resume")[0] == 0


def test_an_option_that_is_no_json_is_text(tmp_path: Path, build: Any) -> None:
    values = ["NaN", "1e999", "[" * 9999, "1.5"]
    options = [w for n, v in enumerate(values) for w in ("--template-option", f"o{n}={v}")]
    code, out, err = build("--row-tokens", 512, "--json", *options)
    assert code == 0, err
    told = json.loads(out)["settings"]["template_options"]
    assert told == {"o0": "NaN", "o1": "1e999", "o2": "[" * 9999, "o3": 1.5}


def test_a_broken_template(tmp_path: Path, build: Any) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("line one\n{% for m in messages %}")
    refused(build("--chat-template", template), tmp_path, "t.jinja:2")


def test_an_existing_output_is_kept(tmp_path: Path, build: Any) -> None:
    output = tmp_path / "rows.parquet"
    output.write_text("precious")
    code, _, err = build("--row-tokens", 512)
    assert code == 2
    assert "--force" in err
    assert output.read_text() == "precious"
    code, _, err = build("--row-tokens", 512, "--force")
    assert code == 0, err


def test_rows_that_never_teach_an_end_are_refused(tmp_path: Path, build: Any) -> None:
    arguments = ["--loss-mask-type", "distill_qwen", "--skip", "mask-misfit", "--row-tokens", 128]
    source = write_lines(tmp_path / "x.jsonl", [talk("a", "b " * 200)] * 3)
    refused(build(*arguments, input_=source), tmp_path, "no end of turn")
    code, _, err = build(*arguments, "--allow-unlearned-ends", input_=source)
    assert code == 0, err


def test_an_error_is_one_document_with_json(tmp_path: Path, build: Any) -> None:
    code, out, _ = build("--json", input_=tmp_path / "none.jsonl")
    assert code == 2
    error = json.loads(out)["error"]
    assert set(error) == {"file", "field", "found", "expected", "action"}


def test_encode_refuses_the_same(tmp_path: Path, cli: Any) -> None:
    source = write_lines(tmp_path / "bad.jsonl", [*GOOD, talk("alone")])
    output = tmp_path / "rows.jsonl"
    command = ["rows", "encode", "--input", source, "--tokenizer", TOKENIZER, "--output", output]
    refused(cli(*command), tmp_path, "bad.jsonl:21", "no-assistant")
    code, out, _ = cli(*command, "--skip", "no-assistant", "--json")
    assert code == 0
    assert json.loads(out)["conversations"] == {"input": 21, "encoded": 20, "skipped": 1}
    assert len(output.read_text().splitlines()) == 20


def test_a_gz_cut_between_two_lines_is_noticed(tmp_path: Path, build: Any) -> None:
    whole = gzip.compress(b"".join(json.dumps(one).encode() + b"\n" for one in GOOD))
    (tmp_path / "a.jsonl.gz").write_bytes(whole[:-8])  # the checksum and the length are missing
    refused(build("--row-tokens", 16, input_=tmp_path / "a.jsonl.gz"), tmp_path, "cut short")


def test_two_builds_of_one_output_do_not_mix(tmp_path: Path, build: Any) -> None:
    cache = tmp_path / "rows.parquet.cache"
    cache.mkdir()
    hold = (
        "import fcntl, sys; lock = open(sys.argv[1], 'w'); fcntl.lockf(lock, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(cache / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    code, _, err = build("--row-tokens", 512)
    other.communicate("")
    assert code == 2
    assert "a build that is running" in err
    assert build("--row-tokens", 512)[0] == 0
