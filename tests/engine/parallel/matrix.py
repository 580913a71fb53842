"""The layouts that are held against one process, by their number of processes."""

from __future__ import annotations

from dataclasses import replace

from openrecipes.layouts.layout import Layout
from openrecipes.layouts.memory import Recompute
from tests.engine.parallel.trial import Run, full, layout, recompute

SP = {"sequence_parallel": True}

#: Every layout that must train as one process does: its name, and the model it is tried on.
LAYOUTS: dict[str, tuple[Layout, str]] = {
    # two processes
    "DP2": (layout(dp=2), "moe"),
    "EP2": (layout(dp=2, ep=2), "moe"),
    "TP1 ETP2": (layout(dp=2, etp=2), "moe"),
    "TP2": (layout(tp=2, etp=2, **SP), "moe"),
    "TP2 ETP1": (layout(tp=2, **SP), "moe"),
    "TP2 EP2 ETP1": (layout(tp=2, ep=2, **SP), "moe"),
    "TP2 without sequence parallel": (layout(tp=2, etp=2), "dense"),
    "CP2": (layout(cp=2), "moe"),
    "CP2 EP2": (layout(cp=2, ep=2), "moe"),
    "PP2": (layout(pp=2), "moe"),
    "PP2 VPP3": (layout(pp=2, vpp=3), "moe"),
    # four processes
    "TP2 DP2 EP4 ETP1": (layout(tp=2, dp=2, ep=4, **SP), "moe"),
    "TP2 DP2 EP2": (layout(tp=2, dp=2, ep=2, etp=2, **SP), "moe"),
    "TP2 DP2 EP2 ETP1": (layout(tp=2, dp=2, ep=2, **SP), "moe"),
    "CP2 TP2": (layout(tp=2, cp=2, etp=2, **SP), "moe"),
    "CP2 TP2 without sequence parallel": (layout(tp=2, cp=2, etp=2), "dense"),
    "ETP2 EP2": (layout(dp=4, ep=2, etp=2), "moe"),
    "CP2 DP2 EP4": (layout(cp=2, dp=2, ep=4), "moe"),
    "CP4": (layout(cp=4), "moe"),
    "TP4": (layout(tp=4, etp=4, **SP), "wide"),
    "TP2 PP2": (layout(tp=2, pp=2, etp=2, **SP), "moe"),
    "TP2 PP2 ETP1": (layout(tp=2, pp=2, **SP), "moe"),
    "CP2 PP2": (layout(cp=2, pp=2), "moe"),
    "PP2 EP2": (layout(pp=2, dp=2, ep=2), "moe"),
    "PP2 ETP2": (layout(pp=2, dp=2, etp=2), "moe"),
    "PP2 VPP3 EP2": (layout(pp=2, vpp=3, dp=2, ep=2), "moe"),
    "PP4": (layout(pp=4, layer_split=(2, 1, 1, 2)), "moe"),
}

RECOMPUTES: dict[str, Recompute | None] = {
    "none": None,
    "full, uniform, 1": full(),
    "full, uniform, 2": full(2),
    "full, block, 3": full(3, "block"),
    "moe core_attn": recompute("moe", "core_attn"),
    "layernorm": recompute("layernorm"),
    "mamba mlp shared_experts": recompute("mamba", "mlp", "shared_experts", "moe_act"),
    "moe mamba layernorm": recompute("moe", "mamba", "layernorm"),
}


#: The shapes of both seed recipes and of the recipes that they are checked against, on small
#: models: name, layout, model, recompute, rows per micro-batch.
SHAPES: list[tuple[str, Layout, str, str, int]] = [
    ("Nano, one stage", layout(dp=4, ep=4), "nano", "full, uniform, 1", 1),
    ("Nano reference, one stage", layout(tp=2, dp=2, ep=2, **SP), "nano", "full, uniform, 1", 1),
    ("Super, one stage", layout(tp=4, dp=2, ep=8, **SP), "super", "moe core_attn", 2),
    ("Super reference, one stage", layout(tp=4, dp=2, ep=8, **SP), "super", "full, uniform, 1", 1),
    ("Nano", layout(pp=2, dp=4, ep=4), "nano", "full, uniform, 1", 1),
    ("Nano reference", layout(tp=2, pp=2, dp=2, ep=2, **SP), "nano", "full, uniform, 1", 1),
    ("Super", layout(tp=4, pp=2, dp=2, ep=8, **SP), "super", "moe core_attn", 2),
    ("Super reference", layout(tp=4, pp=2, dp=2, ep=8, **SP), "super", "full, uniform, 1", 1),
]


def run(name: str, recomputed: str = "none", *, ragged: bool = False, rows: int = 1) -> Run:
    """A layout with a recompute, rows of one length or of several, rows per micro-batch."""
    chosen, model = LAYOUTS[name]
    return run_of(chosen, model, recomputed, ragged=ragged, rows=rows)


def run_of(
    chosen: Layout, model: str, recomputed: str, *, ragged: bool = False, rows: int = 1
) -> Run:
    """The same for a layout that has no name."""
    asked = RECOMPUTES[recomputed]
    if asked is not None:
        chosen = chosen.model_copy(update={"recompute": asked})
    return replace(Run(chosen, model), ragged=ragged, rows_per_microbatch=rows)


#: Each axis with and without recompute, with rows of one length and of several.
PAIRWISE: list[tuple[str, str, bool, int]] = [
    ("DP2", "full, uniform, 1", True, 1),
    ("EP2", "moe core_attn", True, 1),
    ("TP1 ETP2", "none", True, 1),
    ("TP1 ETP2", "moe mamba layernorm", False, 2),
    ("TP2", "none", False, 2),
    ("TP2", "layernorm", True, 1),
    ("TP2 ETP1", "full, uniform, 2", False, 1),
    ("TP2 EP2 ETP1", "none", True, 1),
    ("TP2 EP2 ETP1", "full, uniform, 1", False, 1),
    ("TP2 without sequence parallel", "mamba mlp shared_experts", True, 1),
    ("CP2", "none", True, 1),
    ("CP2", "mamba mlp shared_experts", False, 2),
    ("CP2 EP2", "full, block, 3", True, 1),
    ("TP2 DP2 EP4 ETP1", "full, uniform, 1", False, 2),
    ("TP2 DP2 EP2 ETP1", "none", True, 1),
    ("CP2 TP2", "none", True, 1),
    ("CP2 TP2", "full, uniform, 1", False, 1),
    ("CP2 TP2 without sequence parallel", "full, uniform, 2", True, 2),
    ("ETP2 EP2", "none", False, 1),
    ("TP4", "layernorm", False, 1),
]
