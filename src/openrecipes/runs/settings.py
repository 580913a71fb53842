"""What a manifest's resolved flags say about the run: precision, batch, number formats, routing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from openrecipes.runs.record import Manifest, Step

#: A checkpoint in the Hugging Face hub's cache: its id and revision are in the path.
_HUB_CACHE = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/([0-9a-f]{40})(?:/|$)")
#: Layer letters in the order in which a pattern's legend names them.
_LETTERS = ("M", "E", "*", "-")


def precision(manifest: Manifest) -> str:
    """Precision of the computation, as a recipe's ``workload.precision`` says it.

    miles computes in bf16 unless fp16 is given, the native engine in fp32 unless bf16 is.
    """
    flags = manifest.flags
    if flags.get("fp4-format"):
        return "nvfp4"
    if flags.get("fp8-format"):
        return "mxfp8" if flags.get("fp8-recipe") == "mxfp8" else "fp8"
    if flags.get("fp16"):
        return "fp16"
    if flags.get("bf16") or manifest.engine != "native":
        return "bf16"
    return "fp32"


def global_batch(manifest: Manifest) -> int | None:
    """Rows of one optimizer step."""
    value = manifest.flags.get("global-batch-size")
    return value if isinstance(value, int) and value > 0 else None


def dtypes(manifest: Manifest) -> dict[str, str]:
    """Number formats of weights, gradients, master weights and Adam's moments.

    Megatron keeps masters and moments in fp32 unless the precision-aware optimizer is told
    otherwise; gradients are fp32 where they are accumulated so, as the native engine always does.
    """
    flags = manifest.flags
    weights = precision(manifest)
    weights = weights if weights in ("fp32", "fp16") else "bf16"
    in_fp32 = manifest.engine == "native" or flags.get("accumulate-allreduce-grads-in-fp32")
    aware = bool(flags.get("use-precision-aware-optimizer"))

    def kept(flag: str) -> str:
        return str(flags.get(flag) or "fp32") if aware else "fp32"

    gradients = "fp32" if in_fp32 else weights
    return {
        "weights": weights,
        "gradients": str(flags.get("main-grads-dtype") or gradients) if aware else gradients,
        "master": kept("main-params-dtype"),
        "exp_avg": kept("exp-avg-dtype"),
        "exp_avg_sq": kept("exp-avg-sq-dtype"),
    }


def routing(manifest: Manifest, steps: Sequence[Step]) -> str | None:
    """``forced`` to balance, or ``natural``; None for a model without experts."""
    if manifest.flags.get("moe-router-force-load-balancing"):
        return "forced"
    has_experts = any(step.expert_load is not None for step in steps)
    dispatcher = (manifest.layout or {}).get("dispatcher")
    return "natural" if has_experts or dispatcher else None


def slowed(manifest: Manifest) -> str | None:
    """What was on that slows steps down, so that no rate is given; None for a run at full speed."""
    if manifest.profiler:
        return "the profiler was on"
    return "the parity probe was on" if manifest.parity_probe else None


def effective_recompute(manifest: Manifest) -> dict[str, Any] | None:
    """The recipe's ``effective_recompute`` block; None where the engine did not tell."""
    recompute = manifest.effective.recompute
    if recompute is None:
        return None
    layers = {letter: recompute.layers[letter] for letter in _LETTERS if letter in recompute.layers}
    return {
        "granularity": recompute.granularity or "none",
        "modules": list(recompute.modules or []),
        "layers": layers or None,
    }


def origin(manifest: Manifest) -> tuple[str | None, str | None]:
    """Where the model's config comes from, and its revision.

    As the record tells; else read from a checkpoint's path in the hub's cache.
    """
    model = manifest.model
    if model.source is not None:
        return model.source, model.revision
    match = _HUB_CACHE.search(str(manifest.flags.get("hf-checkpoint") or ""))
    if match is None:
        return None, model.revision
    return f"https://huggingface.co/{match[1]}/{match[2]}", model.revision or match[3]
