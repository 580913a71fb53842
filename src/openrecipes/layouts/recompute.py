"""What an engine really recomputes, whatever its flags ask for.

Sources: miles 0.1.0 with Megatron-LM 37f91617, whose hybrid block has no path for full
recompute; NeMo AutoModel 0.7.0, whose "full" covers only Mamba and MLP blocks without expert
parallelism, and whose selective policy knows operations instead of modules.
"""

from __future__ import annotations

from typing import Any

from openrecipes.errors import InputError
from openrecipes.layouts.grid import stage_ranges
from openrecipes.layouts.layout import Layout

#: Modules that selective recompute knows, and the layer letters they touch.
MODULE_LAYERS: dict[str, str] = {
    "core_attn": "*",
    "moe_act": "E",
    "layernorm": "ME*-",
    "mla_up_proj": "",  # multi-latent attention, which NemotronH does not have
    "mlp": "-",
    "moe": "E",
    "shared_experts": "E",
    "mamba": "M",
}
#: Megatron's default where selective recompute names no module.
DEFAULT_MODULES = ("core_attn",)


def effective_recompute(layout: Layout, engine: str, pattern: str | None = None) -> dict[str, Any]:
    """The recompute that is in force.

    Args:
        layout: what was asked for.
        engine: ``native``, ``miles`` or ``automodel``.
        pattern: the model's layer letters (M E * -); only those in it are reported. Without it
            the four kinds of a NemotronH model are.

    Returns:
        ``{"granularity": none|full|selective, "modules": [...], "layers": {letter: ...}}``.
    """
    letters = [letter for letter in "ME*-" if pattern is None or letter in pattern]
    layers = dict.fromkeys(letters, "none")
    asked = layout.recompute
    if asked is None:
        return {"granularity": "none", "modules": [], "layers": layers}
    if asked.granularity == "full":
        covered = _full_coverage(layout, engine, letters, pattern)
        layers |= dict.fromkeys(covered, "full")
        return {"granularity": "full" if covered else "none", "modules": [], "layers": layers}
    if engine == "automodel":
        layers |= dict.fromkeys(letters, "selective")
        return {"granularity": "selective", "modules": [], "layers": layers}
    modules = [
        module
        for module in (DEFAULT_MODULES if asked.modules is None else asked.modules)
        if module in MODULE_LAYERS
        and (module != "mamba" or engine == "native")
        and any(letter in letters for letter in MODULE_LAYERS[module])
    ]
    for module in modules:
        layers |= {letter: "selective" for letter in MODULE_LAYERS[module] if letter in layers}
    return {
        "granularity": "selective" if modules else "none",
        "modules": modules,
        "layers": layers,
    }


def _full_coverage(
    layout: Layout, engine: str, letters: list[str], pattern: str | None
) -> list[str]:
    """Letters of the kinds of layers that full recompute reaches."""
    if engine == "miles" and "M" in letters:
        return []
    if engine == "automodel":
        return [letter for letter in letters if letter in "M-"] if layout.ep == 1 else letters
    recompute = layout.recompute
    if recompute is None or recompute.method != "block" or pattern is None:
        return letters
    # The first layers of each stage, by number.
    try:
        stages = stage_ranges(layout, len(pattern))
    except InputError:
        return letters  # a layout rule says what is wrong
    count = recompute.num_layers or 0
    reached = {pattern[layer] for stage in stages for layer in stage[:count]}
    return [letter for letter in letters if letter in reached]


def is_effective(layout: Layout, engine: str, pattern: str | None = None) -> bool:
    """Whether the recompute that a layout asks for does anything."""
    asked = layout.recompute is not None
    return not asked or effective_recompute(layout, engine, pattern)["granularity"] != "none"
