"""A small model, small rows and a small recipe; commands as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openrecipes.rows.parquet import Row, RowsWriter

ROW_TOKENS = 48
CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "ME*E",
    "vocab_size": 96,
    "hidden_size": 32,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 8,
    "conv_kernel": 4,
    "chunk_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 32,
    "routed_scaling_factor": 2.5,
}
RECIPE = """\
schema_version: 1
model: Small
gpu: {type: CPU, count: 2, per_node: 2}
status: planned
stack: {engine: native}
workload: {row_tokens: 48, rows: random, global_batch: 8, precision: fp32}
layout: {tp: 1, pp: 1, vpp: 1, cp: 1, ep: 2, etp: 1, dp: 2, max_tokens_per_gpu: 96,
  rows_per_microbatch: 2, dispatcher: alltoall}
arguments: {lr: '1e-3', lr-decay-style: constant, seed: '7'}
"""


def write_rows(
    path: Path,
    count: int,
    vocabulary: int = 96,
    padding: int = 0,
    without_target: range = range(0),
) -> Path:
    """Random rows of two documents each."""
    random = np.random.default_rng(0)
    with RowsWriter(path, ROW_TOKENS) as writer:
        for number in range(count):
            mask = (random.random(ROW_TOKENS) < 0.6).astype(np.uint8)
            mask[0] = 0
            filled = ROW_TOKENS - padding
            mask[filled:] = 0
            mask *= number not in without_target
            ids = random.integers(0, vocabulary, ROW_TOKENS).astype(np.int32)
            writer.write(Row(ids, mask, np.array([20, filled - 20], np.int32)))
    return path


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """rows.parquet (64 rows), config.json and recipe.yaml."""
    folder = tmp_path_factory.mktemp("small")
    write_rows(folder / "rows.parquet", 64, padding=4)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture
def inputs(shared: Path) -> list[str]:
    """The options of `run` that name the model and the rows."""
    return [
        *("--model-config", str(shared / "config.json")),
        *("--rows", str(shared / "rows.parquet")),
    ]


def command(*argv: str | Path) -> list[str]:
    return [sys.executable, "-m", "openrecipes", *map(str, argv)]


def openrecipes(*argv: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
    return subprocess.run(
        command(*argv), capture_output=True, text=True, timeout=120, check=False, env=env
    )


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command in the background; whatever still runs at the end is killed."""
    processes: list[subprocess.Popen[str]] = []

    def start(*argv: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(*argv),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
