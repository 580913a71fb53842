"""Rules about how ranks, rows and layers are counted."""

from __future__ import annotations

from openrecipes.layouts.rule import (
    AUTOMODEL,
    ENGINES,
    MILES,
    NATIVE,
    Broken,
    Case,
    Rule,
    divisors,
    nearest,
)


def _world(case: Case) -> Broken | None:
    layout, world = case.layout, case.world_size
    model_parallel = layout.tp * layout.pp * layout.cp
    if world % model_parallel:
        axis = max(("tp", "pp", "cp"), key=lambda name: (world % getattr(layout, name), name))
        size = getattr(layout, axis)
        others = model_parallel // size
        valid = nearest(size, [d for d in divisors(world) if world % (d * others) == 0])
        expected = f"a divisor of {world} GPUs, found {model_parallel}"
        return f"layout.{axis}", size, f"TP x PP x CP {expected}", valid
    if layout.dp * model_parallel != world:
        valid = world // model_parallel
        return "layout.dp", layout.dp, f"{world} GPUs / {model_parallel} = {valid}", valid
    return None


def _expert_world(case: Case) -> Broken | None:
    layout = case.layout
    stage = layout.stage_size
    if stage % (layout.ep * layout.etp) == 0:
        return None
    if stage % layout.etp:
        whole = [d for d in divisors(stage) if stage % (d * layout.ep) == 0]
        valid = nearest(layout.etp, whole or divisors(stage))
        return "layout.etp", layout.etp, f"a divisor of the stage's {stage} GPUs", valid
    experts = case.model.n_routed_experts if case.has("E") and case.model else 0
    room = stage // layout.etp
    fitting = [d for d in divisors(room) if experts % d == 0] if experts else divisors(room)
    expected = f"a divisor of {stage} GPUs of a stage / ETP {layout.etp}"
    return "layout.ep", layout.ep, expected, nearest(layout.ep, fitting)


def _layers(case: Case) -> Broken | None:
    layout, model = case.layout, case.model
    if model is None or layout.layer_split is not None:
        return None
    layers, stages = model.num_hidden_layers, layout.pp * layout.vpp
    if layers % layout.pp:
        valid = nearest(layout.pp, divisors(layers))
        return "layout.pp", layout.pp, f"a divisor of {layers} layers", valid
    if layers % stages:
        valid = nearest(layout.vpp, divisors(layers // layout.pp))
        expected = f"a divisor of {layers // layout.pp} layers per stage"
        return "layout.vpp", layout.vpp, expected, valid
    return None


def _split(case: Case) -> Broken | None:
    layout, model = case.layout, case.model
    split = layout.layer_split
    if split is None:
        return None
    found = list(split)
    if len(split) not in (layout.pp, layout.pp * layout.vpp):
        return "layout.layer_split", found, f"{layout.pp} numbers, one per stage", None
    if len(split) == layout.pp and any(size % layout.vpp for size in split):
        return "layout.layer_split", found, f"multiples of VPP {layout.vpp}", None
    if min(split) < 1:
        return "layout.layer_split", found, "at least one layer per stage", None
    if model is not None and sum(split) != model.num_hidden_layers:
        expected = f"a sum of {model.num_hidden_layers} layers, found {sum(split)}"
        return "layout.layer_split", found, expected, None
    return None


def _vpp(case: Case) -> Broken | None:
    layout = case.layout
    if layout.vpp > 1 and layout.pp == 1:
        return "layout.vpp", layout.vpp, "1 where PP is 1", 1
    return None


def _batch(case: Case) -> Broken | None:
    layout, batch = case.layout, case.global_batch
    if batch is None:
        return None
    rows = 1 if layout.max_tokens_per_gpu else layout.rows_per_microbatch
    if batch % (layout.dp * rows) == 0:
        return None
    step = layout.dp * rows
    below, above = batch // step * step, -(-batch // step) * step
    valid = nearest(batch, [value for value in (below, above) if value])
    unit = f"DP {layout.dp}" + (f" x {rows} rows" if rows > 1 else "")
    return "workload.global_batch", batch, f"a multiple of {unit}", valid


def _rows(case: Case) -> Broken | None:
    layout, row = case.layout, case.row_tokens
    if layout.max_tokens_per_gpu is None or row is None:
        return None
    rows = max(1, layout.max_tokens_per_gpu * layout.cp // row)
    if layout.rows_per_microbatch == rows:
        return None
    expected = f"max(1, {layout.max_tokens_per_gpu} x CP {layout.cp} // {row}) = {rows}"
    return "layout.rows_per_microbatch", layout.rows_per_microbatch, expected, rows


def _tokens(case: Case) -> Broken | None:
    layout, row = case.layout, case.row_tokens
    if row is None:
        return None
    cut = layout.cp * (layout.tp if layout.sequence_parallel else 1)
    if row % cut == 0:
        return None
    axis = "cp" if row % layout.cp else "tp"
    size = getattr(layout, axis)
    valid = nearest(size, [d for d in divisors(row) if row % (d * (cut // size)) == 0])
    return f"layout.{axis}", size, f"CP x TP that divides rows of {row} tokens", valid


def _interleave(case: Case) -> Broken | None:
    layout, batch = case.layout, case.global_batch
    if layout.vpp == 1 or batch is None:
        return None
    microbatches = batch // (layout.dp * layout.rows_per_microbatch)
    if microbatches >= layout.pp:
        return None
    valid = layout.pp * layout.dp * layout.rows_per_microbatch
    expected = f"at least PP {layout.pp} micro-batches per rank, found {microbatches}"
    return "workload.global_batch", batch, expected, valid


def _pipeline(case: Case) -> Broken | None:
    layout, batch = case.layout, case.global_batch
    if layout.pp == 1 or batch is None:
        return None
    microbatches = batch // (layout.dp * layout.rows_per_microbatch)
    if microbatches >= layout.pp:
        return None
    valid = layout.pp * layout.dp * layout.rows_per_microbatch
    expected = f"at least PP {layout.pp} micro-batches per rank, found {microbatches}"
    return "workload.global_batch", batch, expected, valid


RANK_RULES = (
    Rule(
        "world-divides",
        ENGINES,
        "GPUs = TP x PP x CP x DP",
        "ranks would be left over; refused when arguments are read",
        _world,
    ),
    Rule(
        "expert-world-divides",
        ENGINES,
        "(TP x CP x DP) % (ETP x EP) = 0, which is GPUs % (ETP x EP x PP) = 0",
        "experts tile one pipeline stage; miles passes the parser and fails on the GPUs",
        _expert_world,
    ),
    Rule(
        "layers-divide-pp",
        (NATIVE, MILES),
        "without layer_split: layers % (PP x VPP) = 0",
        "stages of equal length hold all layers",
        _layers,
    ),
    Rule(
        "layer-split-fits",
        ENGINES,
        "layer_split has PP numbers (or PP x VPP) whose sum is the number of layers",
        "every layer is on exactly one stage",
        _split,
    ),
    Rule("vpp-needs-pp", ENGINES, "VPP = 1 where PP = 1", "there is nothing to interleave", _vpp),
    Rule(
        "interleave-microbatches",
        (MILES,),
        "with VPP > 1: micro-batches per rank >= PP",
        "Megatron's interleaved schedule needs them to start",
        _interleave,
    ),
    Rule(
        "pipeline-microbatches",
        (AUTOMODEL,),
        "with PP > 1: micro-batches per rank >= PP",
        "AutoModel's schedule is refused when it is built",
        _pipeline,
    ),
    Rule(
        "batch-divides-dp",
        ENGINES,
        "global batch % DP = 0; with fixed micro-batches: % (DP x rows per micro-batch)",
        "every data parallel rank takes the same number of rows in every step",
        _batch,
    ),
    Rule(
        "rows-per-microbatch",
        ENGINES,
        "rows per micro-batch = max(1, tokens per GPU x CP // row tokens)",
        "dynamic batching packs whole rows; a longer row goes alone",
        _rows,
    ),
    Rule(
        "tokens-divide-tp-cp",
        (NATIVE,),
        "row tokens % CP = 0, with sequence parallel % (CP x TP) = 0",
        "the tokens of a row are cut into equal slices",
        _tokens,
    ),
)
