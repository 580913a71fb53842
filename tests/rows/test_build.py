from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openrecipes.rows.build import build as build_rows
from openrecipes.rows.cache import TokenCache
from openrecipes.rows.encoder import EncoderSettings
from openrecipes.rows.parquet import RowsFile
from openrecipes.rows.report import read_build
from openrecipes.rows.settings import BuildSettings
from tests.rows.given import CONVERSATIONS, TOKENIZER, demo_encoder, talk, write_lines

#: The bytes of build version 1 for the demo's conversations: they never change.
DEMO_ROWS_SHA256 = "c4f97cd99b966c6bf0f5e4261882b0da51772880e617c541f9bda79de0af0c1f"


def built(path: Path, **more: Any) -> dict[str, Any]:
    given_: dict[str, Any] = {
        "inputs": (str(CONVERSATIONS),),
        "output": path / "rows.parquet",
        "encoder": EncoderSettings(TOKENIZER),
        "row_tokens": 512,
        "workers": 1,
        **more,
    }
    return build_rows(BuildSettings(**given_))


def small(path: Path, count: int = 40) -> Path:
    """The demo's first conversations as JSONL."""
    with gzip.open(CONVERSATIONS, "rb") as lines:
        return write_lines(path / "small.jsonl", [next(lines).strip() for _ in range(count)])


def accounted(report: dict[str, Any]) -> None:
    """Nothing is dropped silently."""
    counts = report["conversations"]
    assert counts["input"] == sum(v for k, v in counts.items() if k != "input")
    tokens = report["tokens"]
    assert tokens["stream"] == (tokens["in_rows"] + tokens["in_skipped_rows"] + tokens["in_tail"])
    assert report["rows"] * report["row_tokens"] == tokens["in_rows"] + tokens["padding"]
    assert sum(report["reasons"].values()) == counts["refused"] + counts["skipped"]
    assert len(report["excluded"]) == counts["refused"] + counts["skipped"]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_bytes_of_a_version_never_change(tmp_path: Path, workers: int) -> None:
    report = built(tmp_path, workers=workers)
    assert report["rows_sha256"] == DEMO_ROWS_SHA256
    rows = RowsFile(tmp_path / "rows.parquet")
    assert rows.rows_sha256() == DEMO_ROWS_SHA256
    assert rows.parquet_sha256() == report["parquet_sha256"]
    accounted(report)


def test_the_same_bytes_for_any_process_count(tmp_path: Path) -> None:
    files = []
    source = small(tmp_path, 200)
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        built(
            tmp_path / str(workers),
            inputs=(str(source),),
            workers=workers,
            packing="best-fit",
            overlong="skip",
        )
        files.append((tmp_path / str(workers) / "rows.parquet").read_bytes())
    assert files[0] == files[1]


def test_rows_are_the_permuted_stream(tmp_path: Path) -> None:
    source = small(tmp_path)
    report = built(tmp_path, inputs=(str(source),), row_tokens=64, seed=7)
    encoder = demo_encoder()
    records = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    order = np.random.Generator(np.random.PCG64(7)).permutation(len(records))
    stream: list[tuple[int, int]] = []
    for number in order:
        if stream:
            stream.append((11, 0))
        encoded = encoder.encode(records[number])
        stream += list(zip(encoded.ids.tolist(), encoded.mask.tolist(), strict=True))
    expected = []
    for start in range(0, len(stream) - 63, 64):
        ids, mask = (list(part) for part in zip(*stream[start : start + 64], strict=True))
        mask[0] = 0
        if any(mask):
            expected.append((ids, mask))
    rows = RowsFile(tmp_path / "rows.parquet")
    assert [(r.input_ids.tolist(), r.loss_mask.tolist()) for r in rows] == expected
    assert report["tokens"]["stream"] == len(stream)
    accounted(report)


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    source = small(tmp_path)
    content = source.read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    half = len(content) // 2
    frames = [
        zstandard.ZstdCompressor().compress(part) for part in (content[:half], content[half:])
    ]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    records = [json.loads(line) for line in content.splitlines()]
    for record in records:  # as data sets on the hub store what has no fixed columns
        record["tools"] = json.dumps(record.get("tools"))
        for message in record["messages"]:
            message["tool_calls"] = json.dumps(message.get("tool_calls"))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "a.parquet")
    hashes = set()
    for name in ("small.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        report = built(tmp_path, inputs=(str(tmp_path / name),), row_tokens=64, force=True)
        hashes.add(report["rows_sha256"])
    assert len(hashes) == 1


def test_directories_and_globs_are_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    folder.mkdir()
    for name in ("b", "a"):
        write_lines(folder / f"{name}.jsonl", [talk(f"question {name}", f"answer {name} " * 9)])
    both = [folder / "a.jsonl", folder / "b.jsonl"]
    hashes = {
        built(tmp_path, inputs=inputs, row_tokens=16, force=True)["rows_sha256"]
        for inputs in (
            (str(folder),),
            (str(folder / "*.jsonl"),),
            tuple(map(str, both)),
        )
    }
    assert len(hashes) == 1


@given(st.data())
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_conversations_are_accounted_for(tmp_path: Path, data: Any) -> None:
    word = st.sampled_from(["hello", "wörld ", "<think>", "\n", "42", "<|im_end|>", "ok "])
    text = st.lists(word, max_size=6).map("".join)
    record = st.one_of(
        st.lists(text, min_size=1, max_size=5).map(lambda said: talk(*said)),
        st.sampled_from([b"{broken", b'{"messages": []}', b"\xff\xfe{}"]),
    )
    records = [talk("a", "b " * 20), *data.draw(st.lists(record, max_size=12))]
    packing = data.draw(st.sampled_from(["concat", "best-fit"]))
    source = write_lines(tmp_path / "any.jsonl", records)
    report = built(
        tmp_path,
        inputs=(str(source),),
        row_tokens=data.draw(st.integers(2, 20)),
        packing=packing,
        overlong="split",
        skip=frozenset(["all"]),
        force=True,
        dry_run=data.draw(st.booleans()),
    )
    accounted(report)
    assert report["conversations"]["input"] == len(records)


def test_a_mixture_keeps_its_shares(tmp_path: Path) -> None:
    source = small(tmp_path, 120)
    lines = source.read_bytes().splitlines()
    write_lines(tmp_path / "a.jsonl", lines[:60])
    write_lines(tmp_path / "b.jsonl", lines[60:])
    inputs = (str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    from openrecipes.rows.selection import Mixture

    report = built(tmp_path, inputs=inputs, row_tokens=64, mixture=Mixture(weights=(3, 1)))
    shares = [one["share"] for one in report["inputs"]]
    assert shares[0] == pytest.approx(0.75, abs=0.03)
    accounted(report)
    report = built(
        tmp_path, inputs=inputs, row_tokens=64, mixture=Mixture(rows=(20, 40)), force=True
    )
    tokens = [one["tokens_in_rows"] for one in report["inputs"]]
    assert tokens[1] / tokens[0] == pytest.approx(2, rel=0.25)
    accounted(report)


def test_held_out_conversations_are_in_no_training_row(tmp_path: Path) -> None:
    source = small(tmp_path)
    report = built(tmp_path, inputs=(str(source),), row_tokens=64, eval_conversations=7)
    accounted(report)
    assert report["conversations"]["held_out"] == 7
    train = RowsFile(tmp_path / "rows.parquet")
    held = RowsFile(tmp_path / "rows.eval.parquet")
    numbers = [{int(n) for row in rows for n in row.document_numbers} for rows in (train, held)]
    assert not numbers[0] & numbers[1]
    assert len(numbers[1]) == 7
    block = read_build(tmp_path / "rows.eval.parquet")
    assert block is not None
    assert block["rows_sha256"] == held.rows_sha256()


def test_the_block_beside_the_rows_is_a_recipes_dataset(tmp_path: Path, build: Any) -> None:
    code, _, err = build(
        "--row-tokens", 512, "--rows", 10, "--name", "demo-v1", "--dataset-name", "Demo",
        "--dataset-source", "demo/data", "--dataset-revision", "abc", "--license", "Apache-2.0",
    )  # fmt: skip
    assert code == 0, err
    block = read_build(tmp_path / "rows.parquet")
    assert block is not None
    assert (block["name"], block["source"], block["revision"]) == ("Demo", "demo/data", "abc")
    made = block["build"]
    assert (made["name"], made["rows"], made["row_tokens"]) == ("demo-v1", 10, 512)
    assert made["builder"].startswith("openrecipes")
    assert 0 < made["supervised_token_ratio"] < 1
    from openrecipes.recipe.workload import Dataset

    Dataset.model_validate(block)


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path, build: Any) -> None:
    source = write_lines(tmp_path / "x.jsonl", [talk("a", "b " * 40), talk("alone"), b"{"])
    code, out, _ = build("--row-tokens", 16, "--dry-run", "--json", input_=source)
    assert code == 1  # something would be refused
    assert json.loads(out)["reasons"] == {"broken-json": 1, "no-assistant": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.jsonl"]


def test_reports_are_written_for_programs_and_for_people(tmp_path: Path, build: Any) -> None:
    code, out, err = build(
        "--row-tokens", 512, "--json", "--report", tmp_path / "r.json",
        "--report", tmp_path / "r.html",
    )  # fmt: skip
    assert code == 0, err
    document = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    accounted(document)
    told = json.loads(out)
    assert told["format"] == 1
    assert {k: told[k] for k in document} == document
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert document["rows_sha256"] in page
    assert "qwen3_5" in page


def test_a_killed_build_goes_on_where_it_was(tmp_path: Path, cli: Any) -> None:
    """kill -9 in the middle; --resume encodes only the rest and gives the same bytes."""
    source = tmp_path / "many.jsonl"
    source.write_bytes(gzip.decompress(CONVERSATIONS.read_bytes()) * 2)
    output = tmp_path / "rows.parquet"
    command: list[object] = [
        "rows", "build", "--input", source, "--tokenizer", TOKENIZER, "--row-tokens", 512,
        "--num-workers", 2, "--output", output, "--json",
    ]  # fmt: skip
    chunks = tmp_path / "rows.parquet.cache" / "chunks.bin"
    process = subprocess.Popen(
        [sys.executable, "-m", "openrecipes", *map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (chunks.exists() and chunks.stat().st_size >= 24 * 3):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not output.exists()
    before = TokenCache(chunks.parent)
    done = before.conversations
    before.close()
    assert 0 < done < 1650
    # What was half-written behind the last whole chunk is dropped, not used.
    with (chunks.parent / "tokens.bin").open("ab") as stream:
        stream.write(b"half a chunk")

    code, _, err = cli(*command)
    assert code == 2
    assert "--resume" in err
    code, out, err = cli(*command, "--resume")
    assert code == 0, err
    resumed = json.loads(out)
    assert not chunks.parent.exists()
    fresh = built(tmp_path, inputs=(str(source),), force=True)
    assert resumed["rows_sha256"] == fresh["rows_sha256"]
    assert resumed["parquet_sha256"] == fresh["parquet_sha256"]


def test_resuming_encodes_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = small(tmp_path, 200)

    class Stop(BaseException):
        pass

    def stop(phase: str, done: int, total: int, conversations: int) -> None:
        if conversations >= 128:
            raise Stop

    settings_ = BuildSettings(
        (str(source),), tmp_path / "rows.parquet", EncoderSettings(TOKENIZER), row_tokens=64,
        workers=1,
    )  # fmt: skip
    with pytest.raises(Stop):
        build_rows(settings_, stop)
    encoded = []
    from openrecipes.rows import pool

    whole = pool.encode_chunk

    def count(encoder: Any, chunk: Any, **more: Any) -> Any:
        encoded.append(len(chunk.lines))
        return whole(encoder, chunk, **more)

    monkeypatch.setattr(pool, "encode_chunk", count)
    report = built(tmp_path, inputs=(str(source),), row_tokens=64, resume=True)
    assert sum(encoded) == 200 - 128
    assert report["conversations"]["input"] == 200


def test_a_resumed_build_must_be_the_same_build(tmp_path: Path, build: Any) -> None:
    source = small(tmp_path, 200)

    class Stop(BaseException):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    settings_ = BuildSettings(
        (str(source),), tmp_path / "rows.parquet", EncoderSettings(TOKENIZER), workers=1
    )
    with pytest.raises(Stop):
        build_rows(settings_, stop)
    code, _, err = build("--resume", "--loss-mask-type", "all", input_=source)
    assert code == 2
    assert "loss_mask_type" in err
    source.write_bytes(source.read_bytes() + b"\n")
    code, _, err = build("--resume", input_=source)
    assert code == 2
    assert ": input" in err
    code, _, err = build("--row-tokens", 64, "--force", input_=source)
    assert code == 0, err


def test_an_interrupted_build_says_how_to_go_on(
    tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    source = small(tmp_path, 100)
    with monkeypatch.context() as patched:
        patched.setattr("openrecipes.rows.assembly.Assembly.run", interrupt)
        code, _, err = build("--row-tokens", 64, input_=source)
    assert code == 4
    assert "--resume" in err
    assert not (tmp_path / "rows.parquet").exists()
    assert build("--row-tokens", 64, "--resume", input_=source)[0] == 0
