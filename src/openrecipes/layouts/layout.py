"""The Layout value: how one model is split over the GPUs, as a recipe's ``layout`` block.

Every part of OpenRecipes that speaks of a layout (recipes, plans, run records, trials) uses this
one object. Its axes are Megatron's: tensor (TP), pipeline (PP, with VPP virtual stages per rank),
context (CP), expert (EP), expert tensor (ETP) and data parallel (DP) sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from openrecipes.errors import InputError
from openrecipes.layouts.arguments import (
    dispatcher_flags,
    dispatcher_from_flags,
    offload_flags,
    offload_from_flags,
    recompute_flags,
    recompute_from_flags,
    size,
    split_flags,
    split_from_flags,
    virtual_stages,
)
from openrecipes.layouts.block import MOST_GPUS, Block, Layers, field
from openrecipes.layouts.memory import Offload, Recompute

Dispatcher = Literal["allgather", "alltoall", "flex", "deepep", "hybridep"]

#: Arguments that a layout decides. Where the layout does not give one, it is absent from the
#: command: a stale value in ``arguments`` never survives a changed layout.
LAYOUT_FLAGS = frozenset(
    {
        "tensor-model-parallel-size",
        "pipeline-model-parallel-size",
        "context-parallel-size",
        "expert-model-parallel-size",
        "expert-tensor-parallel-size",
        "sequence-parallel",
        "num-virtual-stages-per-pipeline-rank",
        "num-layers-per-virtual-pipeline-stage",
        "decoder-first-pipeline-num-layers",
        "decoder-last-pipeline-num-layers",
        "pipeline-model-parallel-layout",
        "use-dynamic-batch-size",
        "max-tokens-per-gpu",
        "micro-batch-size",
        "recompute-granularity",
        "recompute-method",
        "recompute-num-layers",
        "recompute-modules",
        "optimizer-cpu-offload",
        "optimizer-offload-fraction",
        "overlap-cpu-optimizer-d2h-h2d",
        "moe-token-dispatcher-type",
        "moe-flex-dispatcher-backend",
        "moe-enable-deepep",
    }
)


class Layout(Block):
    """How the model, its rows and its memory are split over the GPUs."""

    label: str | None = field(
        "Short name made from the axes: TP PP EP DP always, VPP CP ETP when above 1.",
        example="TP1 PP2 EP4 DP4",
        default=None,
    )
    summary: str | None = field(
        "The layout in one sentence, made from the other fields.",
        example="TP 1, PP 2 (even split), CP 1, EP 4, ETP 1, DP 4; one 8,192-token row per "
        "microbatch (THD, max 8,192 tokens/GPU); full recompute (uniform, 1 layer); distributed "
        "optimizer; alltoall dispatcher; no offload",
        default=None,
    )
    highlights: str | None = field(
        "What a list of recipes shows beside the label.",
        example="max 8,192 tokens/GPU, no offload",
        default=None,
    )
    tp: int = field("Tensor parallel size.", unit="GPUs", example=1, ge=1, le=MOST_GPUS)
    pp: int = field("Pipeline parallel size.", unit="stages", example=2, ge=1, le=MOST_GPUS)
    vpp: int = field(
        "Virtual pipeline stages per rank; 1 is a plain pipeline.",
        unit="stages",
        example=1,
        default=1,
        ge=1,
        le=MOST_GPUS,
    )
    cp: int = field("Context parallel size.", unit="GPUs", example=1, default=1, ge=1, le=MOST_GPUS)
    ep: int = field("Expert parallel size.", unit="GPUs", example=4, default=1, ge=1, le=MOST_GPUS)
    etp: int = field(
        "Tensor parallel size of the experts.", unit="GPUs", example=1, ge=1, le=MOST_GPUS
    )
    dp: int = field(
        "Data parallel size: GPUs / (TP x PP x CP).", unit="GPUs", example=4, ge=1, le=MOST_GPUS
    )
    sequence_parallel: bool = field(
        "Activations between tensor parallel blocks are split along the sequence.",
        example=False,
        default=False,
    )
    layer_split: Layers | None = field(
        "Layers of each pipeline stage; null is an even split.",
        unit="layers",
        example=[26, 26],
        default=None,
    )
    max_tokens_per_gpu: int | None = field(
        "Most tokens that a micro-batch holds per context parallel rank; null where the engine "
        "counts rows instead.",
        unit="tokens",
        example=8192,
        default=None,
        ge=1,
    )
    rows_per_microbatch: int = field(
        "Rows in one micro-batch: max(1, max_tokens_per_gpu x CP // row_tokens).",
        unit="rows",
        example=1,
        default=1,
        ge=1,
    )
    recompute: Recompute | None = field(
        "Activation recompute; null is none.",
        example={"granularity": "full", "method": "uniform", "num_layers": 1},
        default=None,
    )
    offload: Offload | None = field(
        "Optimizer state on the CPU; null is none.",
        example={"optimizer_fraction": 0.55, "overlap_d2h_h2d": True},
        default=None,
    )
    dispatcher: Dispatcher | None = field(
        "How tokens travel to their experts; null for a model without experts.",
        example="alltoall",
        default=None,
    )

    @property
    def world_size(self) -> int:
        """TP x PP x CP x DP: the GPUs that this layout asks for."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def stage_size(self) -> int:
        """GPUs of one pipeline stage: TP x CP x DP."""
        return self.tp * self.cp * self.dp

    def flags(self) -> dict[str, Any]:
        """The layout as Megatron arguments: long names without dashes, typed values.

        What the layout leaves open (``recompute.modules`` or ``offload.precision_aware`` not
        told) is not in the result.
        """
        flags: dict[str, Any] = {
            "tensor-model-parallel-size": self.tp,
            "pipeline-model-parallel-size": self.pp,
            "context-parallel-size": self.cp,
            "expert-model-parallel-size": self.ep,
            "expert-tensor-parallel-size": self.etp,
        }
        if self.sequence_parallel:
            flags["sequence-parallel"] = True
        if self.vpp > 1:
            flags["num-virtual-stages-per-pipeline-rank"] = self.vpp
        flags |= split_flags(self.layer_split, self.pp)
        if self.recompute is not None:
            flags |= recompute_flags(self.recompute)
        if self.max_tokens_per_gpu is None:
            flags["micro-batch-size"] = self.rows_per_microbatch
        else:
            flags["use-dynamic-batch-size"] = True
            flags["max-tokens-per-gpu"] = self.max_tokens_per_gpu
        if self.offload is not None:
            flags |= offload_flags(self.offload)
        return flags | dispatcher_flags(self.dispatcher)

    @classmethod
    def from_flags(
        cls,
        flags: Mapping[str, Any],
        world_size: int,
        *,
        row_tokens: int | None = None,
        layers: int | None = None,
    ) -> Layout:
        """The layout that a set of Megatron arguments describes.

        Args:
            flags: typed arguments by long name; absent ones take Megatron's defaults (ETP is TP).
            world_size: number of GPUs; DP is what remains of it. A size that does not divide
                gives the floor, and ``layouts.rules`` reports it.
            row_tokens: row length, from which the rows of a micro-batch follow.
            layers: layers of the model; needed for VPP given as layers per virtual stage.

        Raises:
            InputError: a value that no layout can have, such as a size of 0.
        """
        try:
            tp = size(flags, "tensor-model-parallel-size")
            pp = size(flags, "pipeline-model-parallel-size")
            cp = size(flags, "context-parallel-size")
            max_tokens = (
                flags.get("max-tokens-per-gpu") if flags.get("use-dynamic-batch-size") else None
            )
            values: dict[str, Any] = {
                "tp": tp,
                "pp": pp,
                "vpp": virtual_stages(flags, pp, layers),
                "cp": cp,
                "ep": size(flags, "expert-model-parallel-size"),
                "etp": size(flags, "expert-tensor-parallel-size", default=tp),
                "dp": max(1, world_size // (tp * pp * cp)),
                "sequence_parallel": bool(flags.get("sequence-parallel")),
                "layer_split": split_from_flags(flags, pp, layers),
                "max_tokens_per_gpu": max_tokens,
                "rows_per_microbatch": rows_per_microbatch(max_tokens, cp, row_tokens)
                if max_tokens and row_tokens
                else size(flags, "micro-batch-size"),
                "recompute": recompute_from_flags(flags),
                "offload": offload_from_flags(flags),
                "dispatcher": dispatcher_from_flags(flags),
            }
            return cls(**values)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise InputError(
                "mend the layout's argument",
                field=".".join(["layout", *map(str, fault["loc"])]),
                found=fault["input"],
                expected=fault["msg"],
            ) from None


def rows_per_microbatch(max_tokens_per_gpu: int, cp: int, row_tokens: int) -> int:
    """Rows of equal length that one micro-batch takes: max(1, tokens x CP // row length).

    A row longer than the limit goes alone, as miles' dynamic batching does it.
    """
    return max(1, max_tokens_per_gpu * cp // row_tokens)
