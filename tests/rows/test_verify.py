"""Verifying: tampered facts fail, what was not checked is said, damaged rows end in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from openrecipes.rows.build import build as build_rows
from openrecipes.rows.encoder import EncoderSettings
from openrecipes.rows.settings import BuildSettings
from tests.rows.given import PARITY, TOKENIZER, talk, write_lines
from tests.rows.test_read import verified

TALKS = [talk(f"question {n}", f"answer {n} " * 8) for n in range(20)]


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    source = write_lines(folder / "talks.jsonl", TALKS)
    settings = BuildSettings(
        (str(source),),
        folder / "rows.parquet",
        EncoderSettings(TOKENIZER),
        row_tokens=32,
        supervise_eos=True,
        builder="openrecipes rows build --row-tokens 32 --supervise-eos",
    )
    build_rows(settings)
    return folder


@pytest.fixture
def rows(built_once: Path, tmp_path: Path) -> Path:
    for file in built_once.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / "rows.parquet"


@pytest.fixture
def source(rows: Path) -> Path:
    return rows.with_name("talks.jsonl")


def block_of(rows: Path) -> Path:
    return rows.with_name(rows.name + ".build.json")


def told(file: Path, **change: Any) -> None:
    """Change what the block's build tells."""
    block = json.loads(block_of(file).read_text())
    block["build"].update(change)
    block_of(file).write_text(json.dumps(block))


def rewritten(rows: Path, change: Any) -> Path:
    """The same file with its first row changed, and no block beside it."""
    table = pyarrow.parquet.read_table(rows)
    records = table.to_pylist()
    change(records[0])
    target = rows.with_name("changed.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records, schema=table.schema), target)
    return target


def test_the_block_tells_how_the_sample_is_built_again(
    rows: Path, source: Path, tmp_path: Path, build: Any, cli: Any
) -> None:
    """Neither the mask type nor --supervise-eos has to be given again."""
    given = ["--input", source, "--tokenizer", TOKENIZER, "--sample", 99]
    code, checks = verified(cli, rows, *given)
    assert code == 0
    assert checks["sampled rows can be built again"]["ok"]
    assert checks["tokenizer.json as in its build block"]["ok"]
    assert checks["chat_template.jinja as in its build block"]["ok"]
    other = tmp_path / "all.parquet"
    assert (
        build("--row-tokens", 32, "--loss-mask-type", "all", "--output", other, input_=source)[0]
        == 0
    )
    assert verified(cli, other, *given)[0] == 0


def test_another_tokenizer_is_noticed(rows: Path, cli: Any) -> None:
    code, checks = verified(cli, rows, "--tokenizer", PARITY / "qwen3.tokenizer.json")
    assert code == 1
    assert not checks["tokenizer.json as in its build block"]["ok"]


def test_what_was_not_checked_is_said(rows: Path, source: Path, cli: Any) -> None:
    def missing(*more: object) -> list[str]:
        code, out, _ = cli("rows", "verify", rows, *more, "--json")
        assert code == 0
        return [what.partition(":")[0] for what in json.loads(out)["not_checked"]]

    source_, vocabulary = "tokens and masks against the conversations", "ids below the vocabulary"
    assert missing() == [vocabulary, source_]
    assert missing("--tokenizer", TOKENIZER, "--input", source) == []
    block_of(rows).unlink()
    assert missing("--vocab-size", 9999) == ["hashes and counts of the build", source_]
    assert "not checked: hashes" in cli("rows", "verify", rows)[1]


@pytest.mark.parametrize(
    "change",
    [
        {"supervised_token_ratio": 1e-9},
        {"supervised_token_ratio": 1},
        {"supervised_token_ratio": 0.9},
        {"supervised_token_ratio": "0.5"},
        {"supervised_token_ratio": [1]},
        {"supervised_token_ratio": True},
        {"supervised_token_ratio": float("nan")},
        {"rows": "x"},
        {"rows": True},
        {"parquet_bytes": {}},
    ],
)
def test_a_tampered_fact_fails(rows: Path, cli: Any, change: dict[str, Any]) -> None:
    told(rows, **change)
    code, checks = verified(cli, rows)
    assert code == 1
    assert [name for name, check in checks.items() if not check["ok"]] == [
        f"{next(iter(change))} as in its build block"
    ]


@pytest.mark.parametrize("digits", [2, 3, 6])
def test_a_rounded_ratio_agrees(rows: Path, cli: Any, digits: int) -> None:
    ratio = json.loads(block_of(rows).read_text())["build"]["supervised_token_ratio"]
    told(rows, supervised_token_ratio=round(ratio, digits))
    assert verified(cli, rows)[0] == 0
    told(rows, supervised_token_ratio=round(ratio, digits) + 2 * 10**-digits)
    assert verified(cli, rows)[0] == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"build": null}', '{"build": [1]}'])
def test_a_broken_block_is_one_line(rows: Path, cli: Any, text: str) -> None:
    block_of(rows).write_text(text)
    code, out, err = cli("rows", "verify", rows)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert block_of(rows).name in err


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row["document_starts"].pop(),
        lambda row: row["document_starts"].__setitem__(0, -7),
        lambda row: row["document_numbers"].__setitem__(0, -1),
        lambda row: row["document_lengths"].__setitem__(0, -3),
        lambda row: row["document_lengths"].append(0),
    ],
)
def test_tampered_documents_fail(rows: Path, source: Path, cli: Any, change: Any) -> None:
    changed = rewritten(rows, change)
    shutil.copy(block_of(rows), block_of(changed))
    code, checks = verified(
        cli, changed, "--input", source, "--tokenizer", TOKENIZER, "--sample", 99
    )
    assert code == 1
    assert not checks["sampled rows can be built again"]["ok"]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row["metadata"]["loss_mask"].pop(),
        lambda row: row["metadata"].__setitem__("loss_mask", []),
        lambda row: row["metadata"]["loss_mask"].__setitem__(5, 2),
        lambda row: row["metadata"]["input_ids"].__setitem__(3, -5),
        lambda row: row["metadata"]["input_ids"].__setitem__(3, 2**31 - 1),
        lambda row: row["document_lengths"].__setitem__(0, -3),
        lambda row: row["document_lengths"].__setitem__(0, 10_000),
        lambda row: row["document_lengths"].append(0),
        lambda row: row["document_starts"].pop(),
    ],
)
def test_inspect_tells_a_damaged_row(rows: Path, cli: Any, change: Any) -> None:
    code, out, err = cli("rows", "inspect", rewritten(rows, change), "--tokenizer", TOKENIZER)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "row 0" in err


def test_columns_of_other_types_are_one_line(tmp_path: Path, cli: Any) -> None:
    metadata = [{"input_ids": "5 6", "loss_mask": "0 1"}]
    file = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"metadata": metadata}), file)
    for command in ("verify", "inspect"):
        code, out, err = cli("rows", command, file)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_recipes_own_claims_are_compared_with_the_block(
    rows: Path, tmp_path: Path, cli: Any
) -> None:
    recipe = tmp_path / "recipe.yaml"

    def claim(**change: Any) -> list[str]:
        dataset = json.loads(block_of(rows).read_text())
        dataset["build"].update(change)
        document = {
            "schema_version": 1,
            "model": "Nemotron-3-Nano-30B-A3B",
            "status": "planned",
            "gpu": {"type": "CPU", "count": 2, "per_node": 2},
            "workload": {
                "row_tokens": 32,
                "global_batch": 8,
                "precision": "bf16",
                "dataset": dataset,
            },
            "layout": {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 2},
        }
        recipe.write_text(json.dumps(document))
        _, checks = verified(cli, rows, "--recipe", recipe)
        return [name for name, check in checks.items() if not check["ok"]]

    assert claim() == []
    for change in ({"loss_mask": "qwen"}, {"seed": 7}, {"tokenizer": "other"}):
        assert claim(**change) == [f"{next(iter(change))} as in {recipe}"]


def test_encode_keeps_each_id_as_it_is(tmp_path: Path, cli: Any) -> None:
    ids = [0, "0", "a" * 400, "tab\there", 1.5, "ü", "\ud800", ""]
    source = write_lines(tmp_path / "ids.jsonl", [{**TALKS[0], "id": one} for one in ids])
    output = tmp_path / "e.jsonl"
    command = ["rows", "encode", "--input", source, "--tokenizer", TOKENIZER, "--output", output]
    assert cli(*command)[0] == 0
    assert [json.loads(line)["id"] for line in output.read_text().splitlines()] == ids
