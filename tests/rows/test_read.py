"""Looking at rows and verifying them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from openrecipes.rows.build import build as build_rows
from openrecipes.rows.encoder import EncoderSettings
from openrecipes.rows.parquet import Row, RowsFile, RowsWriter
from openrecipes.rows.settings import BuildSettings
from tests.rows.given import CONVERSATIONS, PARITY, TOKENIZER, talk, write_lines


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("built") / "rows.parquet"
    settings = BuildSettings(
        (str(CONVERSATIONS),), output, EncoderSettings(TOKENIZER), row_tokens=256, rows=400
    )
    build_rows(settings)
    return output


@pytest.fixture
def rows(built_once: Path, tmp_path: Path) -> Path:
    for file in built_once.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / built_once.name


def rewritten(path: Path, change: Any) -> Path:
    """The same rows with one changed."""
    target = path.with_name("changed.parquet")
    file = RowsFile(path)
    with RowsWriter(target, file.row_tokens) as writer:
        for number, row in enumerate(file):
            writer.write(change(row) if number == 3 else row)
    return target


def verified(cli: Any, *arguments: object) -> tuple[int, dict[str, dict[str, Any]]]:
    code, out, _ = cli("rows", "verify", *arguments, "--json")
    return code, {check["name"]: check for check in json.loads(out)["checks"]}


def test_what_was_built_verifies_with_its_source(rows: Path, cli: Any) -> None:
    code, checks = verified(cli, rows, "--input", CONVERSATIONS, "--tokenizer", TOKENIZER)
    assert code == 0
    assert all(check["ok"] for check in checks.values())
    assert checks["sampled rows can be built again"]["expected"] == "0 of 8 rows differ"
    assert checks["rows_sha256 as in its build block"]["ok"]


def unmask(row: Row) -> Row:
    return replace(row, loss_mask=np.zeros_like(row.loss_mask))


def start_with_target(row: Row) -> Row:
    mask = row.loss_mask.copy()
    mask[0] = 1
    return replace(row, loss_mask=mask)


def too_large(row: Row) -> Row:
    ids = row.input_ids.copy()
    ids[5] = 9000
    return replace(row, input_ids=ids)


def shorter(row: Row) -> Row:
    return replace(row, input_ids=row.input_ids[:-1], loss_mask=row.loss_mask[:-1])


def long_documents(row: Row) -> Row:
    return replace(row, document_lengths=row.document_lengths + np.int32(1))


def two(row: Row) -> Row:
    return replace(row, loss_mask=row.loss_mask * np.uint8(2))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (unmask, "row has a target"),
        (start_with_target, "first token is no target"),
        (too_large, "ids are in the vocabulary"),
        (shorter, "row lengths are equal"),
        (long_documents, "documents fit into their row"),
        (two, "mask is 0 or 1"),
    ],
)
def test_a_broken_invariant_is_named_with_its_row(
    rows: Path, cli: Any, change: Any, name: str
) -> None:
    code, checks = verified(cli, rewritten(rows, change), "--tokenizer", TOKENIZER)
    assert code == 1
    assert not checks[name]["ok"]
    assert checks[name]["rows"] == [3]


def test_one_changed_token_is_found_by_hash_and_by_rebuilding(rows: Path, cli: Any) -> None:
    def change(row: Row) -> Row:
        ids = row.input_ids.copy()
        ids[100] += 1
        return replace(row, input_ids=ids)

    changed = rewritten(rows, change)
    block = rows.with_name(rows.name + ".build.json")
    changed.with_name(changed.name + ".build.json").write_text(block.read_text())
    code, checks = verified(
        cli, changed, "--input", CONVERSATIONS, "--tokenizer", TOKENIZER, "--sample", 99999
    )
    assert code == 1
    assert not checks["rows_sha256 as in its build block"]["ok"]
    assert checks["sampled rows can be built again"]["rows"] == [3]


def test_another_mask_type_does_not_rebuild(rows: Path, cli: Any) -> None:
    code, checks = verified(
        cli, rows, "--input", CONVERSATIONS, "--tokenizer", TOKENIZER, "--loss-mask-type", "qwen"
    )
    assert code == 1
    assert not checks["sampled rows can be built again"]["ok"]


def test_rows_of_others_are_read_and_verified(tmp_path: Path, cli: Any) -> None:
    """int64 lists and no document columns, as other builders write them."""
    metadata = [{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}] * 2
    pyarrow.parquet.write_table(
        pyarrow.table({"metadata": metadata, "messages": [[]] * 2}), tmp_path / "other.parquet"
    )
    file = RowsFile(tmp_path / "other.parquet")
    assert file.row_tokens == 3
    row = file.read(1, 2)[0]
    assert row.input_ids.dtype == np.int32
    assert row.document_lengths.tolist() == [3]
    assert verified(cli, tmp_path / "other.parquet")[0] == 0


@pytest.mark.parametrize(
    ("content", "part"), [(b"", "parquet"), (b"PAR1 nothing", "parquet"), (None, "no such file")]
)
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_file_that_holds_no_rows(
    tmp_path: Path, cli: Any, content: bytes | None, part: str, command: str
) -> None:
    if content is not None:
        (tmp_path / "x.parquet").write_bytes(content)
    code, out, err = cli("rows", command, tmp_path / "x.parquet")
    assert (code, out) == (2, "")
    assert part in err
    assert err.count("\n") == 1


def test_a_null_in_a_row_is_an_error(tmp_path: Path, cli: Any) -> None:
    metadata = [{"input_ids": [5, None], "loss_mask": [0, 1]}]
    pyarrow.parquet.write_table(pyarrow.table({"metadata": metadata}), tmp_path / "x.parquet")
    code, _, err = cli("rows", "verify", tmp_path / "x.parquet")
    assert code == 2
    assert "null" in err


def test_inspect_marks_what_is_learned(tmp_path: Path, build: Any, cli: Any) -> None:
    source = write_lines(tmp_path / "x.jsonl", [talk("Question?", "Answer.")] * 4)
    assert build("--row-tokens", 30, input_=source)[0] == 0
    rows = tmp_path / "rows.parquet"
    code, out, _ = cli("rows", "inspect", rows, "--tokenizer", TOKENIZER)
    assert code == 0
    assert "⟦<think></think>Answer.<|im_end|>\n⟧" in out
    assert out.count("document ") == len(RowsFile(rows).read(0, 1)[0].document_lengths)
    page = tmp_path / "row.html"
    assert cli("rows", "inspect", rows, "--tokenizer", TOKENIZER, "--html", page)[0] == 0
    assert "&lt;think&gt;&lt;/think&gt;Answer.&lt;|im_end|&gt;" in page.read_text()
    code, out, _ = cli("rows", "inspect", rows, "--json")
    stretches = json.loads(out)["rows"][0]["documents"][0]["stretches"]
    assert {s["learned"] for s in stretches} == {True, False}
    code, _, err = cli("rows", "inspect", rows, "--row", 999)
    assert code == 2
    assert "expected 0 to" in err


def test_inspect_makes_control_characters_visible(tmp_path: Path, build: Any, cli: Any) -> None:
    source = write_lines(tmp_path / "x.jsonl", [talk("\x1b[2Jgone", "Answer. " * 20)] * 2)
    assert build("--row-tokens", 30, input_=source)[0] == 0
    out = cli("rows", "inspect", tmp_path / "rows.parquet", "--tokenizer", TOKENIZER)[1]
    assert "\x1b[2J" not in out


def test_verify_compares_with_a_recipe(rows: Path, tmp_path: Path, cli: Any) -> None:
    block = json.loads(rows.with_name(rows.name + ".build.json").read_text())
    recipe = tmp_path / "recipe.yaml"

    def write(**change: Any) -> None:
        dataset = {**block, **change}
        recipe.write_text(
            json.dumps(
                {
                    "schema_version": 1,
                    "model": "Nemotron-3-Nano-30B-A3B",
                    "status": "planned",
                    "gpu": {"type": "CPU", "count": 2, "per_node": 2},
                    "workload": {
                        "row_tokens": 256,
                        "global_batch": 8,
                        "precision": "bf16",
                        "dataset": dataset,
                    },
                    "layout": {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 2},
                }
            )
        )

    write()
    code, checks = verified(cli, rows, "--recipe", recipe)
    assert code == 0
    assert f"rows_sha256 as in {recipe}" in checks
    write(rows_sha256="0" * 64)
    assert verified(cli, rows, "--recipe", recipe)[0] == 1


def test_encode_writes_what_the_builder_uses(tmp_path: Path, cli: Any) -> None:
    source = write_lines(tmp_path / "x.jsonl", [talk("a", "b", id="one"), talk("c", "d")])
    output = tmp_path / "e.jsonl"
    code, _, err = cli(
        "rows", "encode", "--input", source, "--tokenizer", PARITY / "qwen3.tokenizer.json",
        "--chat-template", PARITY / "qwen3.jinja", "--loss-mask-type", "qwen", "--output", output,
    )  # fmt: skip
    assert code == 0, err
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["id"] for line in lines] == ["one", 1]
    assert all(len(line["input_ids"]) == len(line["loss_mask"]) for line in lines)
