"""Run records for tests: a finished run of 20 steps, any part of it replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from openrecipes.runs.record import Manifest, RunRecord, RunWriter, Step

BEGUN = datetime(2026, 10, 15, 12, 0, tzinfo=UTC)

NANO = {
    "engine": "miles",
    "launcher": "ray",
    "state": "done",
    "argv": ["openrecipes", "run", "nano.yaml"],
    "flags": {
        "global-batch-size": 128,
        "num-rollout": 20,
        "accumulate-allreduce-grads-in-fp32": True,
    },
    "env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "model": {
        "name": "Nemotron-3-Nano-30B-A3B",
        "source": "https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "revision": "bf77c3174f68ad409e1c2aa60daeb46e32d1c606",
        "parameters": 31577940288,
        "active_parameters": 3227369472,
    },
    "rows": {"path": "rows.parquet", "rows_sha256": "8f" * 32, "row_tokens": 8192},
    "layout": {"tp": 1, "pp": 2, "cp": 1, "ep": 4, "etp": 1, "dp": 4, "dispatcher": "alltoall"},
    "world_size": 8,
    "stack": {"instance": "AWS p5en.48xlarge"},
    "machine": {"gpu": "H200", "count": 8, "per_node": 8, "hosts": ["node-1"]},
    "times": {
        "admitted": BEGUN,
        "started": BEGUN + timedelta(seconds=30),
        "first_step": BEGUN + timedelta(seconds=120),
        "finished": BEGUN + timedelta(seconds=540),
    },
    "effective": {"recompute": {"granularity": None, "modules": [], "layers": {"M": "none"}}},
    "profiler": False,
    "parity_probe": False,
}


def seconds_of(step: int) -> float:
    """A first step that compiles, then about 16.8 seconds."""
    return 90.0 if step == 0 else 16.77 + 0.1 * ((step * 7) % 5 - 2)


def make_run(
    path: Path,
    *,
    steps: Sequence[int] = range(20),
    seconds: Callable[[int], float | None] = seconds_of,
    attempt: int = 1,
    step_fields: dict[str, Any] | None = None,
    **fields: Any,
) -> RunRecord:
    """A run record in ``path``; ``fields`` replace fields of the manifest."""
    values = {**NANO, "id": path.name, **fields}
    writer = RunWriter.create(path, Manifest.model_validate(values))
    add_steps(writer, steps, seconds, attempt, step_fields or {})
    return RunRecord.open(path)


def add_steps(
    writer: RunWriter,
    steps: Sequence[int],
    seconds: Callable[[int], float | None] = seconds_of,
    attempt: int = 1,
    step_fields: dict[str, Any] | None = None,
) -> None:
    """Append steps of one attempt."""
    slots = 128 * 8192
    for number in steps:
        values: dict[str, Any] = {
            "loss": 2.0 - 0.01 * number,
            "grad_norm": 1.0,
            "lr": 1e-5,
            "slots": slots,
            "tokens": slots - 1000,
            "supervised_tokens": slots // 2,
            "step_time_s": seconds(number),
        }
        writer.append(
            Step.model_validate(
                {"attempt": attempt, "step": number, **values, **(step_fields or {})}
            )
        )
