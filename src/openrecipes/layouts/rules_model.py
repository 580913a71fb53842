"""Rules about the sizes of the model: heads, groups, experts and widths that must divide."""

from __future__ import annotations

from collections.abc import Callable

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.layouts.layout import Layout
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

Size = Callable[[NemotronHConfig], int]
MEGATRON = (NATIVE, MILES)


def _divides(letter: str, axis: str, size: Size, what: str) -> Callable[[Case], Broken | None]:
    """The axis divides a size of the layers of one kind (``""`` for every model)."""

    def check(case: Case) -> Broken | None:
        if case.model is None or (letter and not case.has(letter)):
            return None
        parts, whole = getattr(case.layout, axis), size(case.model)
        if whole % parts == 0:
            return None
        valid = nearest(parts, divisors(whole))
        return f"layout.{axis}", parts, f"a divisor of {whole} {what}", valid

    return check


def _either_divides(whole: int, parts: int) -> bool:
    return whole % parts == 0 or parts % whole == 0


def _divisors_and_multiples(whole: int, value: int) -> list[int]:
    """Divisors of ``whole`` and its multiples next to ``value``."""
    below = value // whole * whole
    return sorted({*divisors(whole), *(m for m in (below, below + whole) if m)})


def _axis_to_change(
    layout: Layout, fits: Callable[[int], bool], values: list[int]
) -> tuple[str, int, int | None]:
    """CP where changing it alone helps, else TP, with the nearest valid of ``values``."""
    for axis, other in (("cp", layout.tp), ("tp", layout.cp)):
        size = getattr(layout, axis)
        valid = nearest(size, [value for value in values if fits(value * other)])
        if size > 1 and valid is not None:
            return axis, size, valid
    return "tp", layout.tp, None


def _kv_heads(case: Case) -> Broken | None:
    if case.model is None or not case.has("*"):
        return None
    groups, tp = case.model.num_key_value_heads, case.layout.tp
    if _either_divides(groups, tp):
        return None
    valid = nearest(tp, _divisors_and_multiples(groups, tp))
    return "layout.tp", tp, f"a divisor or a multiple of {groups} key-value heads", valid


def _heads_tp_cp(case: Case) -> Broken | None:
    if case.model is None or not case.has("*") or case.layout.cp == 1:
        return None
    heads, layout = case.model.num_attention_heads, case.layout
    if heads % (layout.tp * layout.cp) == 0:
        return None
    axis, size, valid = _axis_to_change(layout, lambda n: heads % n == 0, divisors(heads))
    return f"layout.{axis}", size, f"TP x CP that divides {heads} attention heads", valid


def _kv_heads_tp_cp(case: Case) -> Broken | None:
    if case.model is None or not case.has("*") or case.layout.cp == 1:
        return None
    groups, layout = case.model.num_key_value_heads, case.layout
    if _either_divides(groups, layout.tp * layout.cp):
        return None
    axis, size, valid = _axis_to_change(
        layout,
        lambda n: _either_divides(groups, n),
        _divisors_and_multiples(groups, layout.cp),
    )
    expected = f"TP x CP that divides {groups} key-value heads or is a multiple of them"
    return f"layout.{axis}", size, expected, valid


def _mamba_heads_cp(case: Case) -> Broken | None:
    if case.model is None or not case.has("M"):
        return None
    heads, layout = case.model.mamba_num_heads, case.layout
    if heads % layout.tp:
        return None  # mamba-heads-divide-tp speaks
    local = heads // layout.tp
    if local % layout.cp == 0:
        return None
    valid = nearest(layout.cp, divisors(local))
    return "layout.cp", layout.cp, f"a divisor of {local} Mamba heads of a TP rank", valid


def _mamba_groups_cp(case: Case) -> Broken | None:
    if case.model is None or not case.has("M"):
        return None
    groups, layout = case.model.n_groups, case.layout
    if groups % layout.tp:
        return None  # mamba-groups-divide-tp speaks
    local = groups // layout.tp
    if _either_divides(local, layout.cp):
        return None
    valid = nearest(layout.cp, _divisors_and_multiples(local, layout.cp))
    expected = f"a divisor or a multiple of {local} Mamba groups of a TP rank"
    return "layout.cp", layout.cp, expected, valid


def _experts_needed(case: Case) -> Broken | None:
    layout = case.layout
    if case.model is None or case.has("E"):
        return None
    for axis in ("ep", "etp"):
        size = getattr(layout, axis)
        if size > 1 and (axis == "ep" or size != layout.tp):
            return f"layout.{axis}", size, "1 for a model without experts", 1
    return None


MODEL_RULES = (
    Rule(
        "experts-divide-ep",
        ENGINES,
        "routed experts % EP = 0",
        "every expert parallel rank holds as many experts",
        _divides("E", "ep", lambda model: model.n_routed_experts, "experts"),
    ),
    Rule(
        "ep-needs-experts",
        ENGINES,
        "EP = 1 for a model without MoE layers",
        "there are no experts to distribute",
        _experts_needed,
    ),
    Rule(
        "heads-divide-tp",
        MEGATRON,
        "attention heads % TP = 0",
        "heads are cut over tensor parallel ranks; miles fails at the first step",
        _divides("*", "tp", lambda model: model.num_attention_heads, "attention heads"),
    ),
    Rule(
        "kv-heads-tp",
        MEGATRON,
        "key-value heads % TP = 0 or TP % key-value heads = 0",
        "key-value heads are cut or repeated; miles fails at the first step",
        _kv_heads,
    ),
    Rule(
        "heads-divide-tp-cp",
        (NATIVE,),
        "with CP > 1: attention heads % (TP x CP) = 0",
        "context parallel ranks exchange sequence for heads",
        _heads_tp_cp,
    ),
    Rule(
        "kv-heads-tp-cp",
        (NATIVE,),
        "with CP > 1: key-value heads and TP x CP divide one another",
        "key-value heads are cut or repeated in the exchange",
        _kv_heads_tp_cp,
    ),
    Rule(
        "mamba-heads-divide-tp",
        MEGATRON,
        "Mamba heads % TP = 0",
        "heads are cut over tensor parallel ranks; miles fails when the model is built",
        _divides("M", "tp", lambda model: model.mamba_num_heads, "Mamba heads"),
    ),
    Rule(
        "mamba-groups-divide-tp",
        MEGATRON,
        "Mamba groups % TP = 0",
        "B and C are cut by groups; miles fails when the model is built",
        _divides("M", "tp", lambda model: model.n_groups, "Mamba groups"),
    ),
    Rule(
        "mamba-heads-divide-cp",
        ENGINES,
        "(Mamba heads / TP) % CP = 0",
        "context parallel ranks exchange sequence for heads",
        _mamba_heads_cp,
    ),
    Rule(
        "mamba-groups-tp-cp",
        ENGINES,
        "Mamba groups / TP and CP divide one another",
        "groups are cut or repeated in the exchange",
        _mamba_groups_cp,
    ),
    Rule(
        "moe-ffn-divides-etp",
        MEGATRON,
        "an expert's inner width % ETP = 0",
        "each expert is cut over expert tensor ranks",
        _divides("E", "etp", lambda model: model.moe_intermediate_size, "inner width of an expert"),
    ),
    Rule(
        "shared-ffn-divides-tp",
        MEGATRON,
        "the shared expert's inner width % TP = 0",
        "the shared expert is cut like a dense layer",
        _divides(
            "E",
            "tp",
            lambda model: model.moe_shared_expert_intermediate_size,
            "inner width of the shared expert",
        ),
    ),
    Rule(
        "ffn-divides-tp",
        MEGATRON,
        "an MLP layer's inner width % TP = 0",
        "MLP layers are cut over tensor parallel ranks",
        _divides("-", "tp", lambda model: model.intermediate_size, "inner width of an MLP"),
    ),
    Rule(
        "vocab-divides-tp",
        (NATIVE,),
        "vocabulary % TP = 0",
        "embedding and head are cut by rows, without padding",
        _divides("", "tp", lambda model: model.vocab_size, "words"),
    ),
    Rule(
        "no-tp-on-nemotron-h",
        (AUTOMODEL,),
        "TP = 1",
        "AutoModel has no tensor parallel plan for NemotronH and refuses it at model build",
        lambda case: (
            ("layout.tp", case.layout.tp, "1", 1)
            if case.model is not None and case.layout.tp > 1
            else None
        ),
    ),
)
