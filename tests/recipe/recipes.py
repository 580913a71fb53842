"""The recipes that the tests are about."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from openrecipes.recipe import yaml
from openrecipes.recipe.importing import import_file

ROOT = Path(__file__).parents[2]
REGISTRY = ROOT / "recipes"
NANO = REGISTRY / "nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4.yaml"
NANO_REFERENCE = REGISTRY / "nemotron-3-nano-30b-a3b/h200/attune-tp2-pp2-ep2.yaml"
SUPER = REGISTRY / "nemotron-3-super-120b-a12b/h200/attune-tp4-pp2-ep8-mt16k.yaml"
SUPER_REFERENCE = REGISTRY / "nemotron-3-super-120b-a12b/h200/attune-tp4-pp2-ep8.yaml"
ALL = (NANO, NANO_REFERENCE, SUPER, SUPER_REFERENCE)


def data(path: Path) -> dict[str, Any]:
    """The plain data of a recipe file."""
    plain = yaml.plain(yaml.parse(path.read_text(encoding="utf-8"), str(path)))
    assert isinstance(plain, dict)
    return plain


def with_arguments(path: Path) -> dict[str, Any]:
    """The plain data of a recipe whose flags stand in ``arguments``."""
    plain = yaml.plain(import_file(path).data)
    assert isinstance(plain, dict)
    return plain


def complete() -> dict[str, Any]:
    """Nano with every optional block that a newly measured recipe has; its own relations hold."""
    recipe = copy.deepcopy(with_arguments(NANO))
    result = recipe["result"]
    result |= {
        "nonpadding_tokens_per_s_per_gpu": 7814.02,
        "supervised_tokens_per_s_per_gpu": 5196.32,
        "price": {"usd_per_gpu_hour": 7.912, "source": "AWS p5en.48xlarge"},
        "cv_kind": "population",
        "step_time_s": {"mean": 16.7739, "p50": 16.75, "p95": 17.2, "max": 17.4},
        "runs": 2,
        "runs_detail": [
            {"run": "a", "tokens_per_s_per_gpu": 7800.00, "step_time_cv_percent": 1.6},
            {"run": "b", "tokens_per_s_per_gpu": 7828.09, "step_time_cv_percent": 1.7},
        ],
        "effective_recompute": {
            "granularity": "none",
            "modules": [],
            "layers": {"M": "none", "E": "none", "*": "none"},
        },
    }
    recipe["correctness"]["component_tests"] = [
        {
            "component": "attention",
            "flag": "attention-backend",
            "precision": "bf16",
            "relative_error": 0.0031,
            "bound": 0.01,
            "result": "pass",
        }
    ]
    recipe["trials"] = [
        {
            "layout": {"tp": 1, "pp": 2, "cp": 1, "ep": 8, "etp": 1, "dp": 4},
            "outcome": "crash",
            "step": 0,
            "rank": 0,
        }
    ]
    return recipe
