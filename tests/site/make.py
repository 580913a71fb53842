"""Recipes and run records for the site's tests: small, deterministic, of the real format."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from openrecipes.recipe.document import dump, parse
from openrecipes.recipe.schema import Recipe
from openrecipes.runs.record import Manifest, RunWriter, Step

SEED = Path(__file__).parent / "data" / "nano.yaml"
REFERENCE_PATH = "nemotron-3-nano-30b-a3b/h200/miles-tp2-pp2-ep2.yaml"
SEED_PATH = "nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4.yaml"

LAYOUT = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 2, "etp": 1, "dp": 2}


def seed() -> dict[str, Any]:
    """The first seed as plain data, free to change."""
    return json.loads(parse(SEED.read_text(encoding="utf-8")).recipe.model_dump_json(by_alias=True))


def reference() -> dict[str, Any]:
    """The reference recipe of the first seed, as far as the seed tells it."""
    data = seed()
    data["author"] = {"name": "miles", "url": "https://github.com/radixark/miles"}
    data["status"] = "measured"
    data["correctness"] = None
    data["layout"] |= {
        "tp": 2,
        "ep": 2,
        "dp": 2,
        "sequence_parallel": True,
        "label": "TP2 PP2 EP2 DP2",
        "summary": "TP 2 with sequence parallel, PP 2, EP 2, DP 2",
    }
    unknown = ("usd_per_million_tokens", "mfu", "step_time_cv_percent", "gpu_hours", "measured")
    data["result"] |= {"tokens_per_s_per_gpu": 5229.2, **dict.fromkeys(unknown)}
    return data


def recipe(**changes: Any) -> dict[str, Any]:
    """A small measured recipe on CPUs as plain data; ``changes`` replace whole keys."""
    base: dict[str, Any] = {
        "schema_version": 1,
        "model": "Nemotron-3-Demo-5M",
        "gpu": {"type": "CPU", "count": 2, "per_node": 2},
        "author": {"name": "OpenRecipes demo", "url": "https://example.org/demo"},
        "status": "verified",
        "stack": {
            "engine": "native",
            "framework": "openrecipes 0.1.0",
            "pytorch": "2.13.0",
            "python": "3.11.2",
        },
        "workload": {
            "row_tokens": 1024,
            "rows": "SFT conversations",
            "global_batch": 16,
            "precision": "fp32",
            "dataset": {"name": "Demo conversations", "rows_sha256": "ab" * 32},
        },
        "layout": LAYOUT,
        "result": {
            "tokens_per_s_per_gpu": 1842.31,
            "usd_per_million_tokens": None,
            "usd_note": "no price is known for a CPU",
            "step_time_cv_percent": 2.31,
            "cv_kind": "population",
            "step_time_s": {"mean": 4.45, "p50": 4.41, "p95": 4.7, "max": 4.9},
            "mfu": None,
            "mfu_note": "no peak is known for a CPU",
            "active_params": {"count": 3145728},
            "measured": "2026-10-15",
            "steps_per_run": 20,
            "window": [5, 19],
            "window_tokens": 245760,
            "runs": 1,
            "profiler": False,
            "gpu_hours": 0.06,
        },
        "correctness": {
            "result": "pass",
            "summary": "passed",
            "configuration": "pass",
            "convergence": {
                "steps": 20,
                "result": "pass",
                "correlation": 0.9999991,
                "final_loss_difference": 2.1e-06,
                "pointwise_failures": 0,
                "candidate_run": "candidate-1",
                "reference_run": "reference-1",
            },
        },
        "env": {"OMP_NUM_THREADS": "1"},
        "run": "openrecipes train \\\n  --expert-model-parallel-size 2 \\\n\n  --lr 1e-3\n",
        "notes": "- The demo's recipe.\n",
    }
    return {**base, **changes}


def write(folder: Path, name: str, data: dict[str, Any]) -> Path:
    """Write a recipe's file below ``folder``."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = dump(Recipe.model_validate_json(json.dumps(data)))
    path.write_text(text, encoding="utf-8")
    return path


def loss(step: int, shift: float = 0.0) -> float:
    """A curve that falls as a loss does."""
    return 2.2 + 6.6 * math.exp(-step / 5) + 0.05 * math.sin(step * 1.7) + shift * (step % 3 - 1)


def run(
    path: Path,
    identity: str,
    *,
    seconds: float = 4.4,
    shift: float = 0.0,
    steps: int = 20,
    state: str = "done",
    **manifest: Any,
) -> Path:
    """Write a run record of ``steps`` steps; the first one is slow, as first steps are."""
    head = {
        "id": identity,
        "engine": "native",
        "launcher": "local",
        "layout": LAYOUT,
        "world_size": 2,
        "machine": {"gpu": "CPU", "count": 2, "per_node": 2, "hosts": None},
        "model": {"name": "Nemotron-3-Demo-5M", "active_parameters": 3145728},
        "memory": {
            "weights": 19947136,
            "gradients": 29920320,
            "master": 0,
            "optimizer": 19946880,
            "activations": None,
            "offloaded": 0,
            "rank": 0,
        },
        "flags": {"num-rollout": 20, "train-iters": 20},
        "times": {
            "admitted": "2026-10-15T08:00:00Z",
            "started": "2026-10-15T08:00:01Z",
            "finished": "2026-10-15T08:01:50Z" if state == "done" else None,
        },
        **manifest,
    }
    writer = RunWriter.create(path, Manifest.model_validate(head))
    for step in range(steps):
        slow = 5.2 if step == 0 else 1 + 0.04 * math.sin(step * 2.3)
        writer.append(
            Step(
                attempt=0,
                step=step,
                loss=loss(step, shift),
                grad_norm=1.0 / (1 + step),
                lr=1e-3,
                slots=16384,
                tokens=16384,
                supervised_tokens=9000,
                step_time_s=seconds * slow,
                data_time_s=0.02,
                peak_rss_bytes=[900 * 2**20, 910 * 2**20],
            )
        )
    writer.update(state=state)
    return path


VERDICT: dict[str, Any] = {
    "format": 1,
    "verdict": "pass",
    "configuration": {
        "differences": [
            {
                "flag": "expert-model-parallel-size",
                "candidate": 2,
                "reference": 1,
                "class": "layout",
                "verdict": "pass",
                "reason": "Experts are spread over ranks; each expert sees the same tokens.",
            },
            {
                "flag": "recompute-granularity",
                "candidate": None,
                "reference": "full",
                "class": "memory",
                "verdict": "pass",
                "reason": "Activations are computed again instead of kept.",
            },
            {
                "flag": "optimizer-offload-fraction",
                "candidate": 0.55,
                "reference": 1.0,
                "class": "placement",
                "verdict": "pass",
                "reason": "It decides where optimizer state lives.",
            },
        ]
    },
    "convergence": {
        "correlation": 0.9999991,
        "final_loss_difference": 2.1e-06,
        "pointwise_failures": 0,
        "noise_floor": {"replicates": 1, "loss": {"floor": 4e-4, "difference": 3e-4}},
    },
}


def evidence(folder: Path) -> None:
    """A candidate's and a reference's run record, with the candidate's verdict."""
    candidate = run(folder / "candidate", "candidate-1", seconds=4.4, shift=0.0008)
    run(folder / "reference", "reference-1", seconds=6.1)
    (candidate / "verdicts").mkdir()
    (candidate / "verdicts" / "check.json").write_text(json.dumps(VERDICT), encoding="utf-8")
