"""The two blocks of a layout that trade memory for time: recompute and optimizer offload."""

from __future__ import annotations

from typing import Literal

from openrecipes.layouts.block import Block, Strings, field

Granularity = Literal["full", "selective"]


class Recompute(Block):
    """Which activations are computed again in the backward pass instead of being kept."""

    granularity: Granularity = field(
        "full: whole layers; selective: the modules of the list.", example="full"
    )
    method: Literal["uniform", "block"] | None = field(
        "How full recompute picks layers; null for selective.", example="uniform", default=None
    )
    num_layers: int | None = field(
        "Layers per recomputed group; null for selective.",
        unit="layers",
        example=1,
        default=None,
        ge=1,
    )
    modules: Strings | None = field(
        "Modules that selective recompute covers, in Megatron's names.",
        example=["moe"],
        default=None,
    )


class Offload(Block):
    """What of the optimizer lives in the CPU's memory."""

    optimizer_fraction: float = field(
        "Share of the optimizer state kept on the CPU, a fraction and not a percentage.",
        unit="1",
        example=0.55,
        ge=0,
        le=1,
    )
    overlap_d2h_h2d: bool = field(
        "Copies between GPU and CPU run beside the optimizer's work.", example=True, default=False
    )
    precision_aware: bool | None = field(
        "Megatron's precision-aware optimizer is used.", example=True, default=None
    )
