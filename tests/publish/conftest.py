"""Finished runs of the native engine on two processes, and a published recipe of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from openrecipes.flags.parse import resolve
from openrecipes.gate.check import check
from openrecipes.layouts.layout import Layout
from openrecipes.layouts.recompute import effective_recompute
from openrecipes.runs.record import Manifest, RunRecord, RunWriter, Step

BEGUN = datetime(2026, 10, 15, 12, 0, tzinfo=UTC)
ROW_TOKENS, BATCH, STEPS = 1024, 8, 20

HOST, USER, ADDRESS = "train-box-17", "jane.doe", "10.1.2.3"

DATASET = {
    "name": "Test conversations",
    "source": "data/conversations.jsonl.gz",
    "revision": None,
    "license": "Apache-2.0",
    "rows_sha256": "a1b2" * 16,
    "build": {
        "name": "test-1024-v1",
        "tokenizer": "small BPE",
        "loss_mask": "qwen3_5",
        "rows": 500,
        "row_tokens": ROW_TOKENS,
        "padding_tokens": 0,
        "seed": 42,
        "packing": "concatenated",
        "supervised_token_ratio": 0.5,
        "parquet_sha256": "b2c3" * 16,
        "parquet_bytes": 1_500_000,
        "builder": "openrecipes rows build",
    },
}

GIVEN = {
    "model-config": f"/home/{USER}/model/config.json",
    "prompt-data": f"/home/{USER}/rows.parquet",
    "global-batch-size": BATCH,
    "train-iters": STEPS,
    "lr": 2e-3,
    "min-lr": 2e-4,
    "lr-decay-style": "cosine",
    "lr-warmup-fraction": 0.1,
    "adam-beta2": 0.98,
    "weight-decay": 0.1,
    "calculate-per-token-loss": True,
    "accumulate-allreduce-grads-in-fp32": True,
    "use-dynamic-batch-size": True,
    "attention-dropout": 0.0,
    "hidden-dropout": 0.0,
}


def manifest_of(name: str, *, ep: int, max_tokens: int, **fields: Any) -> Manifest:
    """The manifest of a finished run on this machine."""
    flags = resolve(
        {**GIVEN, "expert-model-parallel-size": ep, "max-tokens-per-gpu": max_tokens}, "native"
    )
    layout = Layout.from_flags(flags, 2, row_tokens=ROW_TOKENS, layers=9)
    values: dict[str, Any] = {
        "id": name,
        "engine": "native",
        "launcher": "local",
        "state": "done",
        "argv": [f"/home/{USER}/.venv/bin/openrecipes", "run", f"/home/{USER}/r.yaml"],
        "flags": flags,
        "env": {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": f"/home/{USER}/.triton"},
        "model": {
            "name": "Nemotron-3-Test-5M",
            "source": f"/home/{USER}/model",
            "config_sha256": "c3d4" * 16,
            "parameters": 5_000_000,
            "active_parameters": 3_000_000,
        },
        "rows": {
            "path": f"/home/{USER}/rows.parquet",
            "rows_sha256": "a1b2" * 16,
            "parquet_sha256": "b2c3" * 16,
            "row_tokens": ROW_TOKENS,
            "dataset": DATASET,
        },
        "layout": layout.model_dump(mode="json"),
        "world_size": 2,
        "stack": {
            "engine": "native",
            "framework": "openrecipes 0.1.0 (commit 1a2b3c4d, no local changes)",
            "pytorch": "2.13.0+cpu",
            "python": "3.11.7",
            "source": "openrecipes stack on the run's machine, 2026-10-15",
        },
        "machine": {"gpu": "CPU", "count": 2, "per_node": 2, "hosts": [HOST]},
        "times": {
            "admitted": BEGUN,
            "started": BEGUN + timedelta(seconds=3),
            "first_step": BEGUN + timedelta(seconds=9),
            "finished": BEGUN + timedelta(seconds=60),
        },
        "effective": {"recompute": effective_recompute(layout, "native", "MEMEM*EME")},
        "profiler": False,
        "parity_probe": False,
        **fields,
    }
    return Manifest.model_validate(values)


def write_run(path: Path, manifest: Manifest, *, noise: float = 0.0, speed: float = 1.0) -> Path:
    """A run record whose losses differ by ``noise`` and whose steps take ``speed`` times 2 s."""
    writer = RunWriter.create(path, manifest)
    slots = BATCH * ROW_TOKENS
    for number in range(STEPS):
        writer.append(
            Step(
                attempt=1,
                step=number,
                loss=8.0 - 0.2 * number + noise * (-1) ** number,
                grad_norm=1.0,
                lr=1e-3,
                slots=slots,
                tokens=slots,
                supervised_tokens=slots // 2,
                step_time_s=speed * (2.0 + 0.05 * (number % 3)),
            )
        )
    log = (
        f"{USER}@{HOST}: rank 0 listens on {ADDRESS}:29500\n"
        f"loading /home/{USER}/model, token hf_abcdefghijklmnopqrstuvwx\n"
    )
    (path / "logs" / "rank-0.log").write_text(log)
    return path


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return write_run(tmp_path / "reference", manifest_of("ref-1", ep=1, max_tokens=1024))


@pytest.fixture
def candidate(tmp_path: Path, reference: Path) -> Path:
    """A candidate that passed the check against the reference."""
    manifest = manifest_of("cand-1", ep=2, max_tokens=2048)
    path = write_run(tmp_path / "candidate", manifest, noise=1e-6, speed=0.8)
    assert check(path, reference).verdict == "pass"
    return path


@pytest.fixture
def edit() -> Callable[..., None]:
    """Change fields of a run's manifest."""

    def change(path: Path, **fields: Any) -> None:
        RunWriter(path, RunRecord.open(path).manifest).update(**fields)

    return change
