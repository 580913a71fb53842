"""Rules about memory options, sequence parallelism, and what one engine cannot do."""

from __future__ import annotations

import re

from openrecipes.layouts.recompute import MODULE_LAYERS
from openrecipes.layouts.rule import (
    AUTOMODEL,
    ENGINES,
    MILES,
    NATIVE,
    Broken,
    Case,
    Rule,
    nearest,
)

MEGATRON = (NATIVE, MILES)
_BLACKWELL = ("B100", "B200", "B300", "GB200", "GB300", "CPU")


def _sequence_parallel(case: Case) -> Broken | None:
    layout = case.layout
    if case.has("E") and layout.tp > 1 and not layout.sequence_parallel:
        return "layout.sequence_parallel", False, f"true with TP {layout.tp} and experts", True
    return None


def _vpp_on_mamba(case: Case) -> Broken | None:
    if case.has("M") and case.layout.vpp > 1:
        return "layout.vpp", case.layout.vpp, "1 for a model with Mamba layers", 1
    return None


def _even_pp(case: Case) -> Broken | None:
    split = case.layout.layer_split
    if not case.has("M") or split is None or len(set(split)) == 1:
        return None
    even = [sum(split) // len(split)] * len(split)
    valid = even if sum(even) == sum(split) else None
    return "layout.layer_split", list(split), "an even split (null)", valid


def _stages(case: Case) -> Broken | None:
    layout, model = case.layout, case.model
    if model is None or layout.layer_split is not None or layout.pp == 1:
        return None
    layers = model.num_hidden_layers

    def reached(vpp: int) -> bool:
        return -(-layers // -(-layers // (layout.pp * vpp))) == layout.pp * vpp

    if reached(layout.vpp):
        return None
    valid = nearest(layout.vpp, [v for v in range(1, layers // layout.pp + 1) if reached(v)])
    return "layout.vpp", layout.vpp, f"stages of equal size over {layers} layers", valid


def _recompute(case: Case) -> Broken | None:
    recompute = case.layout.recompute
    if recompute is None:
        return None
    if recompute.granularity == "selective":
        if recompute.method is not None:
            return "layout.recompute.method", recompute.method, "null with selective", None
        return _modules(case)
    if recompute.method is None:
        return "layout.recompute.method", None, "uniform or block with full", "uniform"
    if recompute.num_layers is None:
        return "layout.recompute.num_layers", None, "a number of layers with full", 1
    if recompute.modules:
        found = list(recompute.modules)
        return "layout.recompute.modules", found, "no modules with full", []
    return None


def _modules(case: Case) -> Broken | None:
    modules = case.layout.recompute.modules if case.layout.recompute else None
    known = [name for name in MODULE_LAYERS if case.engine == NATIVE or name != "mamba"]
    unknown = [name for name in modules or () if name not in known]
    if not unknown:
        return None
    valid = [name for name in modules or () if name in known]
    return "layout.recompute.modules", unknown[0], " | ".join(known), valid


def _precision_aware(case: Case) -> Broken | None:
    offload = case.layout.offload
    if offload is None:
        return None
    aware = offload.precision_aware
    if aware is None:
        aware = bool(case.flags.get("use-precision-aware-optimizer")) if case.flags else None
    if aware is False:
        return "layout.offload.precision_aware", False, "true with optimizer offload", True
    return None


def _connections(case: Case) -> Broken | None:
    layout = case.layout
    if case.env is None or case.gpu is None or case.gpu.upper() in _BLACKWELL:
        return None
    found = case.env.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if (layout.tp > 1 or layout.cp > 1) and found != "1":
        expected = f"1 with TP or CP above 1 on {case.gpu}"
        return "env.CUDA_DEVICE_MAX_CONNECTIONS", found, expected, "1"
    return None


def _max_tokens(case: Case) -> Broken | None:
    if case.flags.get("use-dynamic-batch-size") and case.layout.max_tokens_per_gpu is None:
        expected = "a number of tokens with dynamic batching"
        return "layout.max_tokens_per_gpu", None, expected, case.row_tokens
    return None


def _min_lr(case: Case) -> Broken | None:
    low, high = case.flags.get("min-lr"), case.flags.get("lr")
    if not isinstance(low, int | float) or not isinstance(high, int | float) or low <= high:
        return None
    return "arguments.min-lr", low, f"at most lr {high:g}", high


def _rollout(case: Case) -> Broken | None:
    rows, batch = case.flags.get("rollout-batch-size"), case.global_batch
    if not isinstance(rows, int) or batch is None or (rows >= batch and rows % batch == 0):
        return None
    valid = max(batch, rows // batch * batch)
    return "arguments.rollout-batch-size", rows, f"a multiple of the global batch {batch}", valid


def _packed_attention(case: Case) -> Broken | None:
    backend = case.flags.get("attention-backend")
    if backend in ("unfused", "local"):
        expected = "auto, fused or flash (Transformer Engine)"
        return "arguments.attention-backend", backend, expected, "auto"
    return None


def _mtp(case: Case) -> Broken | None:
    layout = case.layout
    if case.flags.get("mtp-num-layers") and layout.cp > 1 and layout.pp > 1:
        return "layout.cp", layout.cp, "1 with PP and multi-token prediction", 1
    return None


def _padded_documents(case: Case) -> Broken | None:
    cp, row = case.layout.cp, case.row_tokens
    if cp == 1 or row is None or row % (2 * cp) == 0:
        return None
    valid = nearest(cp, [c for c in range(1, cp) if row % (2 * c) == 0])
    return "layout.cp", cp, f"{row} % (2 x CP) = 0", valid or 1


def _version(case: Case) -> Broken | None:
    found = re.search(r"\b(\d{1,6})\.(\d{1,6})(?:\.\d{1,6})*", case.framework or "")
    if found is None or (int(found[1]), int(found[2])) >= (0, 7):
        return None
    return "stack.framework", found[0], "0.7.0 or later", "0.7.0"


ENGINE_RULES = (
    Rule(
        "moe-tp-needs-sequence-parallel",
        MEGATRON,
        "with experts and TP > 1: sequence parallel on",
        "without it every tensor parallel rank sends the same tokens to the experts; miles fails "
        "at the first step",
        _sequence_parallel,
    ),
    Rule(
        "no-vpp-on-mamba",
        (MILES,),
        "VPP = 1 for a model with Mamba layers",
        "Megatron's hybrid stack has no virtual stages; the flag is dropped in silence",
        _vpp_on_mamba,
    ),
    Rule(
        "even-pp-on-mamba",
        (MILES,),
        "layer_split null or even for a model with Mamba layers",
        "uneven pipeline splits are ignored in silence",
        _even_pp,
    ),
    Rule(
        "stages-fill-layers",
        (AUTOMODEL,),
        "ceil(layers / ceil(layers / (PP x VPP))) = PP x VPP",
        "AutoModel cuts stages by layers per stage and refuses another number of stages",
        _stages,
    ),
    Rule(
        "recompute-arguments",
        ENGINES,
        "full has a method and a number of layers and no modules; selective has no method and "
        "known modules",
        "refused when arguments are read",
        _recompute,
    ),
    Rule(
        "offload-needs-precision-aware",
        MEGATRON,
        "optimizer offload needs the precision-aware optimizer",
        "refused when arguments are read",
        _precision_aware,
    ),
    Rule(
        "no-offload-fraction",
        (AUTOMODEL,),
        "no optimizer offload",
        "AutoModel offloads all of FSDP's state or nothing",
        lambda case: (
            (
                "layout.offload",
                f"a fraction of {case.layout.offload.optimizer_fraction:g}",
                "null",
                None,
            )
            if case.layout.offload is not None
            else None
        ),
    ),
    Rule(
        "no-sequence-parallel",
        (AUTOMODEL,),
        "sequence parallel off",
        "refused for NemotronH and for MoE models with their own code",
        lambda case: (
            ("layout.sequence_parallel", True, "false", False)
            if case.layout.sequence_parallel
            else None
        ),
    ),
    Rule(
        "no-expert-tensor-parallel",
        (AUTOMODEL,),
        "ETP = 1",
        "AutoModel never cuts an expert",
        lambda case: (
            ("layout.etp", case.layout.etp, "1", 1)
            if case.layout.etp > 1 and case.layout.etp != case.layout.tp
            else None
        ),
    ),
    Rule(
        "packed-rows-need-te",
        (AUTOMODEL,),
        "attention by Transformer Engine",
        "elsewhere attention runs across the documents of a row in silence",
        _packed_attention,
    ),
    Rule(
        "cp-pads-documents",
        (AUTOMODEL,),
        "with CP > 1: documents are padded to multiples of 2 x CP, so row tokens % (2 x CP) = 0",
        "Transformer Engine cuts every document into 2 x CP pieces; rows of other documents grow",
        _padded_documents,
    ),
    Rule(
        "automodel-version",
        (AUTOMODEL,),
        "AutoModel is 0.7.0 or later",
        "before it gradients of replicas, routers and groups of experts were wrong in silence",
        _version,
    ),
    Rule(
        "no-mtp-with-cp-pp",
        (AUTOMODEL,),
        "no multi-token prediction where CP > 1 and PP > 1",
        "refused for this family",
        _mtp,
    ),
    Rule(
        "cuda-max-connections",
        (MILES,),
        "CUDA_DEVICE_MAX_CONNECTIONS = 1 with TP > 1 or CP > 1 before Blackwell",
        "refused when arguments are read",
        _connections,
    ),
    Rule(
        "dynamic-batch-needs-max-tokens",
        MEGATRON,
        "dynamic batching has max tokens per GPU",
        "refused when arguments are read",
        _max_tokens,
    ),
    Rule(
        "min-lr-below-lr",
        ENGINES,
        "min-lr <= lr",
        "refused when arguments are read",
        _min_lr,
    ),
    Rule(
        "rollout-covers-batch",
        (MILES,),
        "rollout-batch-size is a multiple of the global batch",
        "rows per step would not fill the batch; miles fails at the first step",
        _rollout,
    ),
)
