"""Run records for the gate's tests, with curves that behave like training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openrecipes.flags.parse import resolve
from openrecipes.runs.record import Manifest, RunWriter, Step

FLAGS = {
    "lr": 1e-4,
    "min-lr": 1e-4,
    "steps": 20,
    "global-batch-size": 8,
    "expert-model-parallel-size": 1,
    "prompt-data": "rows.parquet",
    "optimizer": "adam",
}


def losses(steps: int = 20, scale: float = 0.0, start: float = 9.0) -> list[float]:
    """A falling curve; ``scale`` perturbs it a little more in every step."""
    return [
        start * math.exp(-0.05 * s) + 0.02 * math.sin(3 * s) + scale * (s + 1) * math.cos(s)
        for s in range(steps)
    ]


def record(
    path: Path,
    *,
    flags: Mapping[str, Any] | None = None,
    curve: list[float | None] | None = None,
    grad_norms: list[float | None] | None = None,
    step: Mapping[str, Any] | None = None,
    **manifest: Any,
) -> Path:
    """A run record of the native engine on two processes, done."""
    curve = losses() if curve is None else curve
    norms = (
        [1.0 + 0.1 * math.sin(s) for s in range(len(curve))] if grad_norms is None else grad_norms
    )
    fields: dict[str, Any] = {
        "id": path.name,
        "engine": "native",
        "launcher": "local",
        "state": "done",
        "flags": {**resolve(FLAGS, "native"), **(flags or {})},
        "env": {"OMP_NUM_THREADS": "1"},
        "model": {"config_sha256": "c" * 64, "parameters": 10, "source": "model"},
        "rows": {"rows_sha256": "a" * 64, "row_tokens": 512, "path": "rows.parquet"},
        "world_size": 2,
        "stack": {"pytorch": "2.13.0", "python": "3.12.3"},
        "machine": {"gpu": "CPU", "count": 2, "per_node": 2},
        **manifest,
    }
    writer = RunWriter.create(path, Manifest.model_validate(fields))
    for number, loss in enumerate(curve):
        values: dict[str, Any] = {
            "attempt": 0,
            "step": number,
            "loss": loss,
            "grad_norm": norms[number],
            "lr": 1e-4,
            "slots": 4096,
            "tokens": 4000,
            "supervised_tokens": 2000 + number,
            **(step or {}),
        }
        writer.append(Step.model_validate(values))
    return path
