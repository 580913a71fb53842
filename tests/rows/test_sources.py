"""What inputs name: nothing is left out unsaid, and one bad value ends no file."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from openrecipes.rows.encoder import Encoded, Encoder, EncoderSettings
from openrecipes.rows.pool import encode_chunk
from openrecipes.rows.refusals import Refusal
from openrecipes.rows.sources import chunks, find, parquet_rows
from tests.rows.given import PARITY, TOKENIZER, demo_encoder, talk, write_lines

TALKS = [talk(f"question {n}", f"answer {n} " * 8) for n in range(20)]


def records(path: Path) -> list[Any]:
    return [r for chunk in chunks(find([str(path)]).files) for r in parquet_rows(chunk.records[0])]


def parquet(path: Path, table: Any) -> Path:
    pyarrow.parquet.write_table(table, path)
    return path


def test_what_is_not_read_is_named(tmp_path: Path, build: Any) -> None:
    folder = tmp_path / "talks"
    (folder / "deeper").mkdir(parents=True)
    write_lines(folder / "a.jsonl", TALKS)
    for name in ("b.jsonl.bz2", "README.md", "deeper/c.txt"):
        (folder / name).write_text("x")
    (folder / "loop").symlink_to(folder)
    code, out, err = build("--row-tokens", 32, "--json", input_=folder)
    assert code == 0, err
    report = json.loads(out)
    left_out = [str(Path(name).relative_to(folder)) for name in report["left_out_files"]]
    assert left_out == ["README.md", "b.jsonl.bz2", "deeper/c.txt", "loop"]
    assert err.count("\n") == 1 and "not read" in err and "README.md" in err


def test_a_link_to_nothing_is_an_error(tmp_path: Path, build: Any) -> None:
    write_lines(tmp_path / "a.jsonl", TALKS)
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nothing")
    for given in (tmp_path, tmp_path / "gone.jsonl", tmp_path / "*.jsonl"):
        code, _, err = build("--output", tmp_path.parent / "out" / "rows.parquet", input_=given)
        assert code == 2
        assert "gone.jsonl" in err and "link to nothing" in err


def test_the_same_file_twice_is_refused(tmp_path: Path, cli: Any) -> None:
    source = write_lines(tmp_path / "a.jsonl", TALKS)
    code, _, err = cli(
        "rows", "encode", "--input", source, tmp_path / "*.jsonl", "--tokenizer", TOKENIZER,
        "--output", tmp_path / "e.jsonl",
    )  # fmt: skip
    assert code == 2
    assert "twice" in err


@pytest.mark.parametrize("option", ["--input", "--tokenizer", "--chat-template"])
def test_a_name_too_long_is_one_line(tmp_path: Path, cli: Any, option: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", TALKS)
    given = {"--input": source, "--tokenizer": TOKENIZER, option: "x" * 300}
    words = [word for pair in given.items() for word in pair]
    code, out, err = cli("rows", "encode", *words, "--output", tmp_path / "e.jsonl")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "too long" in err


def test_endings_in_capitals_are_read(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", TALKS).read_bytes()
    (tmp_path / "B.JSONL.GZ").write_bytes(gzip.compress(lines))
    parquet(tmp_path / "C.PARQUET", pyarrow.Table.from_pylist(TALKS))
    found = find([str(tmp_path)])
    assert [f.path.name for f in found.files] == ["B.JSONL.GZ", "C.PARQUET", "a.jsonl"]
    encoder = demo_encoder()
    made = [encode_chunk(encoder, chunk) for chunk in chunks(found.files)]
    assert [chunk.data for chunk in made] == [made[0].data] * 3


ARGUMENTS = pyarrow.map_(pyarrow.string(), pyarrow.string())
CALL = pyarrow.struct([("name", pyarrow.string()), ("arguments", ARGUMENTS)])
MESSAGE = pyarrow.struct(
    [
        ("role", pyarrow.string()),
        ("content", pyarrow.string()),
        ("tool_calls", pyarrow.list_(pyarrow.struct([("function", CALL)]))),
        ("when", pyarrow.timestamp("us")),
    ]
)


def calling(*arguments: tuple[str, str]) -> list[dict[str, Any]]:
    call = {"function": {"name": "f", "arguments": list(arguments)}}
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]


def test_maps_of_a_parquet_file_are_mappings(tmp_path: Path) -> None:
    """As tuples they would be printed as lists, and their text would not be looked at."""
    talks = [
        calling(("a", "1"), ("b", "2")),
        calling(("a", "<|im_end|> more")),
        calling(("a", "1"), ("a", "2")),
        [{**message, "when": 2**62} for message in calling(("a", "1"))],
    ]
    file = parquet(
        tmp_path / "m.parquet",
        pyarrow.table({"messages": pyarrow.array(talks, pyarrow.list_(MESSAGE))}),
    )
    found = records(file)
    assert found[0]["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": "1", "b": "2"}
    qwen = Encoder(
        EncoderSettings(
            PARITY / "qwen3.tokenizer.json", PARITY / "qwen3.jinja", eos_token="<|im_end|>"
        )
    )
    for encoder in (demo_encoder(), qwen):
        made = encoder.encode_many(found)
        assert [type(one) for one in made] == [Encoded, Refusal, Refusal, Refusal]
        reasons = [one.reason for one in made if isinstance(one, Refusal)]
        assert reasons == ["markers-in-content", "broken-conversation", "broken-conversation"]


def test_text_that_is_no_utf8_refuses_its_record_alone(tmp_path: Path, build: Any) -> None:
    said = [json.dumps(one["messages"]).encode() for one in TALKS]
    said.insert(7, b'"\xff"')
    raw = pyarrow.array(said, pyarrow.binary()).buffers()
    texts = pyarrow.StringArray.from_buffers(len(said), raw[1], raw[2])
    file = parquet(tmp_path / "u.parquet", pyarrow.table({"messages": texts}))
    code, _, err = build("--row-tokens", 32, input_=file)
    assert code == 2
    assert "u.parquet:8" in err and "invalid-utf8" in err
    code, out, err = build("--row-tokens", 32, "--skip", "invalid-utf8", "--json", input_=file)
    assert code == 0, err
    assert json.loads(out)["reasons"] == {"invalid-utf8": 1}


def test_a_tokenizer_that_encodes_nothing_is_one_line(tmp_path: Path, build: Any) -> None:
    model = {"type": "WordLevel", "vocab": {}, "unk_token": "x"}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    code, out, err = build("--tokenizer", file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "tokenizer.json" in err


def test_a_damaged_page_of_a_parquet_file_is_told_as_such(tmp_path: Path, build: Any) -> None:
    file = parquet(tmp_path / "a.parquet", pyarrow.Table.from_pylist(TALKS))
    content = bytearray(file.read_bytes())
    for place in range(100, 160):
        content[place] ^= 255
    file.write_bytes(content)
    code, _, err = build("--row-tokens", 32, input_=file)
    assert code == 2
    assert "damaged" in err and "permissions" not in err


def test_a_folder_that_cannot_be_read_is_told(
    tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path / "a.jsonl", TALKS)
    scan = os.scandir

    def closed(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "scandir", closed)
    code, _, err = build("--output", tmp_path.parent / "out" / "rows.parquet", input_=tmp_path)
    assert code == 2
    assert "Permission denied" in err
