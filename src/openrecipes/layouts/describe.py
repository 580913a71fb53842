"""The texts made from a layout (label, summary, highlights), and reading them back.

Reading compares numbers and options, not strings, so that a person may word them otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from openrecipes.layouts.layout import Layout

_ALWAYS, _ABOVE_ONE = ("tp", "pp", "ep", "dp"), ("vpp", "cp", "etp")
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_MODULES = {
    "moe": "the MoE layers",
    "mamba": "the Mamba layers",
    "core_attn": "attention's core",
    "mlp": "the MLP layers",
    "layernorm": "the norms",
    "moe_act": "the experts' activation",
    "shared_experts": "the shared experts",
    "mla_up_proj": "the latent attention's projections",
}
Pair = tuple[Any, Any]


def label(layout: Layout) -> str:
    """``TP1 PP2 EP4 DP4``: TP PP EP DP always, VPP CP ETP when above 1."""
    shown = [
        name
        for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
        if name in _ALWAYS or getattr(layout, name) > 1
    ]
    return " ".join(f"{name.upper()}{getattr(layout, name)}" for name in shown)


def summary(layout: Layout, row_tokens: int) -> str:
    """The layout in one sentence that names every option."""
    split = "even split" if layout.layer_split is None else f"layers {_split(layout.layer_split)}"
    cut = layout.pp > 1 or layout.layer_split is not None
    axes = [f"TP {layout.tp}", f"PP {layout.pp} ({split})" if cut else f"PP {layout.pp}"]
    axes += [f"VPP {layout.vpp}"] if layout.vpp > 1 else []
    axes += [f"CP {layout.cp}", f"EP {layout.ep}", f"ETP {layout.etp}", f"DP {layout.dp}"]
    axes += ["sequence parallel"] if layout.sequence_parallel else []
    rows = layout.rows_per_microbatch
    count = _WORDS[rows] if rows < len(_WORDS) else str(rows)
    batch = f"{count} {row_tokens:,}-token row{'s' if rows > 1 else ''} per microbatch (THD"
    if layout.max_tokens_per_gpu is not None:
        batch += f", max {layout.max_tokens_per_gpu:,} tokens/GPU"
    parts = [", ".join(axes), batch + ")", _recompute_text(layout)]
    offload = _offload_text(layout)
    parts += [offload] if offload else []
    parts += ["distributed optimizer"]
    parts += [f"{layout.dispatcher} dispatcher"] if layout.dispatcher else []
    parts += [] if offload else ["no offload"]
    return "; ".join(parts)


def highlights(layout: Layout) -> str:
    """What a list shows beside the label."""
    parts = []
    if layout.max_tokens_per_gpu is not None:
        parts.append(f"max {layout.max_tokens_per_gpu:,} tokens/GPU")
    recompute = layout.recompute
    if recompute is not None and recompute.granularity == "selective":
        names = " and ".join(recompute.modules or ())
        parts.append(f"selective {names.replace('moe', 'MoE')} recompute".replace("  ", " "))
    elif recompute is None:
        parts.append("no recompute")
    if layout.offload is not None:
        parts.append(f"CPU optimizer offload {layout.offload.optimizer_fraction:g}")
    else:
        parts.append("no offload")
    return ", ".join(parts)


def described(layout: Layout, row_tokens: int) -> Layout:
    """The layout with its three texts made anew."""
    texts = {
        "label": label(layout),
        "summary": summary(layout, row_tokens),
        "highlights": highlights(layout),
    }
    return Layout.model_validate({**texts, **_without_texts(layout)})


def _without_texts(layout: Layout) -> dict[str, Any]:
    block = layout.block()
    return {key: block[key] for key in block if key not in ("label", "summary", "highlights")}


def _split(split: tuple[int, ...]) -> str:
    return " + ".join(map(str, split))


def _recompute_text(layout: Layout) -> str:
    recompute = layout.recompute
    if recompute is None:
        return "no recompute"
    if recompute.granularity == "full":
        plural = "s" if recompute.num_layers != 1 else ""
        return f"full recompute ({recompute.method}, {recompute.num_layers} layer{plural})"
    if not recompute.modules:
        return "selective recompute"
    names = [_MODULES.get(module, module) for module in recompute.modules]
    return "selective recompute of " + " and ".join(names)


def _offload_text(layout: Layout) -> str:
    offload = layout.offload
    if offload is None:
        return ""
    text = f"CPU optimizer offload of {offload.optimizer_fraction * 100:g}%"
    options = ["overlapped copies"] if offload.overlap_d2h_h2d else []
    options += ["the precision-aware optimizer"] if offload.precision_aware else []
    return text + (" with " + " and ".join(options) if options else "")


def read_label(text: str, layout: Layout) -> Iterator[Pair]:
    """What a label says otherwise than the layout: pairs of found and expected."""
    said: dict[str, int] = {}
    for word in text.split():
        match = re.fullmatch(r"([A-Za-z]+)(\d{1,6})", word)
        name = match[1].lower() if match else ""
        if match is None or name not in _ALWAYS + _ABOVE_ONE or name in said:
            yield word, label(layout)
            return
        said[name] = int(match[2])
    for name in _ALWAYS + _ABOVE_ONE:
        value = getattr(layout, name)
        if name not in said and (name in _ALWAYS or value > 1):
            yield f"no {name.upper()}", f"{name.upper()}{value}"
        elif said.get(name, value) != value:
            yield f"{name.upper()}{said[name]}", f"{name.upper()}{value}"


def read_text(text: str) -> dict[str, Any]:
    """What a summary or highlights text says, by the names that ``misreadings`` compares."""
    said: dict[str, Any] = {}
    plain = re.sub(r"(\d),(\d{3})", r"\1\2", text)
    for name in _ALWAYS + _ABOVE_ONE:
        match = re.search(rf"\b{name.upper()} ?(\d{{1,6}})\b", plain)
        if match:
            said[name] = int(match[1])
    for key, pattern in (
        ("max_tokens_per_gpu", r"max (\d{1,12}) tokens/GPU"),
        ("row_tokens", r"(\d{1,12})-token row"),
        ("num_layers", r"\b(\d{1,4}) layers?\)"),
    ):
        match = re.search(pattern, plain)
        if match:
            said[key] = int(match[1])
    rows = re.search(rf"\b({'|'.join(_WORDS)}|\d{{1,6}}) \d+-token rows? per micro-?batch", plain)
    if rows:
        word = rows[1]
        said["rows_per_microbatch"] = _WORDS.index(word) if word in _WORDS else int(word)
    lower = plain.lower()
    if "no recompute" in lower:
        said["recompute"] = None
    else:
        recompute = re.search(r"\b(full|selective)\b[^;,]{0,40}recompute", lower)
        said |= {"recompute": recompute[1]} if recompute else {}
    method = re.search(r"\((uniform|block)\b", lower)
    said |= {"method": method[1]} if method else {}
    if "no offload" in lower:
        said["offload"] = None
    else:
        offload = re.search(r"offload (?:of )?(\d{1,3}(?:\.\d{1,6})?)(%?)", plain)
        if offload:
            said["offload"] = round(float(offload[1]) / (100 if offload[2] else 1), 8)
    said["sequence_parallel"] = "sequence parallel" in lower
    said["overlap_d2h_h2d"] = "overlapped copies" in lower
    said["precision_aware"] = "precision-aware" in lower
    dispatcher = re.search(r"\b(allgather|alltoall|flex|deepep|hybridep) dispatcher", lower)
    said |= {"dispatcher": dispatcher[1]} if dispatcher else {}
    split = re.search(r"\blayers (\d{1,4}(?: \+ \d{1,4})+)", lower)
    if split:
        said["layer_split"] = tuple(int(part) for part in split[1].split(" + "))
    elif "even split" in lower:
        said["layer_split"] = None
    return said


def misreadings(
    said: Mapping[str, Any], layout: Layout, row_tokens: int, *, complete: bool
) -> Iterator[Pair]:
    """What a text says otherwise than the layout: pairs of found and expected.

    Args:
        said: what ``read_text`` found.
        layout: the layout.
        row_tokens: row length.
        complete: also report an option of the layout that the text leaves out.
    """
    recompute, offload = layout.recompute, layout.offload
    truth: dict[str, Any] = {name: getattr(layout, name) for name in _ALWAYS + _ABOVE_ONE}
    truth |= {
        "row_tokens": row_tokens,
        "max_tokens_per_gpu": layout.max_tokens_per_gpu,
        "rows_per_microbatch": layout.rows_per_microbatch,
        "recompute": recompute.granularity if recompute else None,
        "method": recompute.method if recompute else None,
        "num_layers": recompute.num_layers if recompute else None,
        "offload": offload.optimizer_fraction if offload else None,
        "sequence_parallel": layout.sequence_parallel,
        "overlap_d2h_h2d": bool(offload and offload.overlap_d2h_h2d),
        "dispatcher": layout.dispatcher,
        "layer_split": layout.layer_split,
    }
    if offload is None or offload.precision_aware is not None:
        truth["precision_aware"] = bool(offload and offload.precision_aware)
    for key, value in truth.items():
        if key in said:
            switch = isinstance(value, bool)
            if said[key] != value and (complete or not switch or said[key]):
                yield f"{key} {said[key]}", f"{key} {value}"
        elif complete and value is not None and key != "vpp":
            yield f"no {key}", f"{key} {value}"
        elif complete and key == "vpp" and value > 1:
            yield "no vpp", f"vpp {value}"
