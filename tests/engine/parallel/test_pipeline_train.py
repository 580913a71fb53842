"""`openrecipes train` with pipeline stages writes what one process writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from openrecipes.engine.job import Job, prepare
from openrecipes.engine.parallel.world import World
from openrecipes.engine.recording import new_manifest
from openrecipes.engine.train import Rank
from openrecipes.errors import ExitCode, InputError
from openrecipes.flags.parse import parse_argv
from openrecipes.layouts.layout import Layout
from openrecipes.rows.parquet import Row, RowsWriter
from openrecipes.runs.record import RunRecord, RunWriter
from tests.engine.parallel.trial import MOE
from tests.engine.step.gang import Gang

PIPELINE = (
    *("--pipeline-model-parallel-size", "2", "--num-layers-per-virtual-pipeline-stage", "1"),
    *("--recompute-granularity", "full", "--recompute-method", "uniform"),
    *("--recompute-num-layers", "1"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """config.json, rows.parquet and a one-process run in ``one``."""
    folder = tmp_path_factory.mktemp("stages")
    (folder / "config.json").write_text(json.dumps(MOE))
    random = np.random.default_rng(0)
    with RowsWriter(folder / "rows.parquet", 40) as writer:
        for _ in range(12):
            mask = (random.random(40) < 0.6).astype(np.uint8)
            mask[[0, 36, 37, 38, 39]] = 0
            ids = random.integers(0, 96, 40).astype(np.int32)
            writer.write(Row(ids, mask, np.array([20, 16], np.int32)))
    work(given(folder), folder / "one")
    return folder


def given(folder: Path, *words: str, **origin: Path) -> dict[str, Any]:
    start = origin.get("checkpoint")
    where = ("--hf-checkpoint", start) if start else ("--model-config", folder / "config.json")
    argv = [
        *map(str, where),
        *("--prompt-data", str(folder / "rows.parquet"), "--isolate-documents"),
        *("--valid-data", str(folder / "rows.parquet"), "--eval-interval", "1"),
        *("--global-batch-size", "6", "--micro-batch-size", "2", "--train-iters", "2"),
        *("--lr", "1e-4", "--lr-decay-style", "constant", "--parity-probe-steps", "0,1"),
    ]
    return parse_argv([*argv, *words])


def work(flags: dict[str, Any], output: Path) -> ExitCode:
    """Be one rank of a run, in a process group that is there already."""
    size = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if size > 1 else 0
    job: Job = prepare({**flags, "output": str(output), "export-hf": f"{output}-model"}, size)
    writer = None
    if rank == 0:
        writer = RunWriter.create(output, new_manifest(job, launcher="local", argv=[]))
    return Rank(job, World(rank, size, torch.device("cpu")), writer).run()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_record_probe_validation_and_export_are_those_of_one_process(
    two: Gang, folder: Path
) -> None:
    assert two.run(work, given(folder, *PIPELINE), folder / "two") == [ExitCode.DONE] * 2
    one, both = RunRecord.open(folder / "one"), RunRecord.open(folder / "two")
    for found, expected in zip(both.steps(), one.steps(), strict=True):
        assert found.loss == expected.loss and found.expert_load == expected.expert_load
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-12)
        assert found.supervised_tokens == expected.supervised_tokens
        assert found.peak_rss_bytes is not None and len(found.peak_rss_bytes) == 2
    for file in ("probe.jsonl", "logs/validation.jsonl"):
        assert lines(folder / "two" / file) == lines(folder / "one" / file)
    whole, expected_weights = (
        load_file(folder / f"{name}-model" / "model.safetensors") for name in ("two", "one")
    )
    assert whole.keys() == expected_weights.keys()
    assert [n for n, kept in expected_weights.items() if not whole[n].equal(kept)] == []
    layout, memory = both.manifest.layout, both.manifest.memory
    assert layout is not None and (layout["pp"], layout["vpp"]) == (2, 3)
    alone = one.manifest.memory
    assert memory is not None and alone is not None
    assert alone["optimizer"] / 2 <= memory["optimizer"] < alone["optimizer"]


def test_stages_read_a_checkpoint(two: Gang, folder: Path) -> None:
    start = folder / "one-model"
    work(given(folder, checkpoint=start), folder / "again")
    words = ("--pipeline-model-parallel-size", "2", "--decoder-first-pipeline-num-layers", "2")
    two.run(work, given(folder, *words, checkpoint=start), folder / "stages")
    expected = [step.loss for step in RunRecord.open(folder / "again").steps()]
    record = RunRecord.open(folder / "stages")
    assert [step.loss for step in record.steps()] == expected
    assert record.manifest.layout is not None and record.manifest.layout["layer_split"] == [2, 4]


@pytest.mark.parametrize(
    ("words", "ranks", "told"),
    [
        (("--pipeline-model-parallel-size", "4"), 4, "layers-divide-pp"),
        (("--num-virtual-stages-per-pipeline-rank", "2"), 1, "vpp-needs-pp"),
        ((*PIPELINE[:2], "--num-virtual-stages-per-pipeline-rank", "2"), 2, "layers-divide-pp"),
        ((*PIPELINE[:3], "2"), 2, "num-layers-per-virtual-pipeline-stage"),
        ((*PIPELINE[:2], "--decoder-first-pipeline-num-layers", "6"), 2, "layer-split-fits"),
    ],
)
def test_stages_that_do_not_fit_are_refused(
    folder: Path, words: tuple[str, ...], ranks: int, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        prepare({**given(folder, *words), "output": "none"}, ranks)


@pytest.mark.parametrize("split", [(1, 2, 1, 2), (1, 2, 2, 1)])
def test_a_split_of_virtual_stages_survives_the_way_through_flags(split: tuple[int, ...]) -> None:
    layout = Layout(tp=1, pp=2, vpp=2, ep=1, etp=1, dp=1, layer_split=split)
    assert Layout.from_flags(layout.flags(), 2, layers=6).layer_split == split
