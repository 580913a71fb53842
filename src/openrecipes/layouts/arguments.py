"""Parts of a layout to and from Megatron's arguments; used by the Layout value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from openrecipes.errors import InputError
from openrecipes.layouts.memory import Offload, Recompute

#: Names that both the ``dispatcher`` field and Megatron's flex dispatcher know.
FLEX_BACKENDS = ("deepep", "hybridep")


def size(flags: Mapping[str, Any], name: str, default: int = 1) -> int:
    """A whole number from 1; ``default`` where the argument is absent."""
    value = flags.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(
            "mend the argument", field=f"--{name}", found=value, expected="a whole number from 1"
        )
    return value


def split_flags(split: tuple[int, ...] | None, pp: int) -> dict[str, Any]:
    """First and last rank's layers where that says it all, else Megatron's layout text."""
    if split is None or len(split) < 2:
        return {}
    middle = split[1:-1]
    if len(split) == pp and len(set(middle)) <= 1:
        return {
            "decoder-first-pipeline-num-layers": split[0],
            "decoder-last-pipeline-num-layers": split[-1],
        }
    stages = "|".join(f"t*{layers}" for layers in split)
    return {"pipeline-model-parallel-layout": f"E{stages}L"}


def split_from_flags(
    flags: Mapping[str, Any], pp: int, layers: int | None
) -> tuple[int, ...] | None:
    """Layers per stage; ``None`` for an even split, or where it needs the unknown ``layers``."""
    text = flags.get("pipeline-model-parallel-layout")
    if text:
        return tuple(_decoder_layers(stage) for stage in str(text).split("|"))
    first = flags.get("decoder-first-pipeline-num-layers")
    last = flags.get("decoder-last-pipeline-num-layers")
    if first is None and last is None:
        return None
    if pp == 2 and first is not None and last is not None:
        return (int(first), int(last))
    if layers is None:
        return None
    fixed = [int(value) for value in (first, last) if value is not None]
    free = pp - len(fixed)
    share = (layers - sum(fixed)) // free if free > 0 else 0
    head = share if first is None else int(first)
    tail = share if last is None else int(last)
    return (head, *[share] * (pp - 2), tail)


def _decoder_layers(stage: str) -> int:
    """Decoder layers in one stage of Megatron's layout text (``Et*3`` or ``Ettt``)."""
    return sum(int(repeat or 1) for repeat in re.findall(r"t(?:\*(\d{1,4}))?", stage))


def virtual_stages(flags: Mapping[str, Any], pp: int, layers: int | None) -> int:
    """Virtual stages per rank, from their number or from their size."""
    if flags.get("num-layers-per-virtual-pipeline-stage") is not None and layers is not None:
        per_stage = size(flags, "num-layers-per-virtual-pipeline-stage")
        if layers % (pp * per_stage):
            raise InputError(
                "mend the argument",
                field="--num-layers-per-virtual-pipeline-stage",
                found=per_stage,
                expected=f"a size that divides the {layers} layers of {pp} ranks",
            )
        return layers // (pp * per_stage)
    return size(flags, "num-virtual-stages-per-pipeline-rank")


def recompute_flags(recompute: Recompute) -> dict[str, Any]:
    """Arguments of a recompute block."""
    flags: dict[str, Any] = {"recompute-granularity": recompute.granularity}
    if recompute.method is not None:
        flags["recompute-method"] = recompute.method
    if recompute.num_layers is not None:
        flags["recompute-num-layers"] = recompute.num_layers
    if recompute.modules is not None:
        flags["recompute-modules"] = list(recompute.modules)
    return flags


def recompute_from_flags(flags: Mapping[str, Any]) -> Recompute | None:
    """The recompute block that the arguments describe; ``None`` is no recompute."""
    granularity = flags.get("recompute-granularity")
    if not granularity:
        return None
    modules = flags.get("recompute-modules")
    given = {} if modules is None else {"modules": tuple(_listed(modules))}
    return Recompute(
        granularity=granularity,
        method=flags.get("recompute-method"),
        num_layers=flags.get("recompute-num-layers"),
        **given,
    )


def offload_flags(offload: Offload) -> dict[str, Any]:
    """Arguments of an offload block."""
    flags: dict[str, Any] = {"optimizer-cpu-offload": True}
    if offload.overlap_d2h_h2d:
        flags["overlap-cpu-optimizer-d2h-h2d"] = True
    if offload.precision_aware:
        flags["use-precision-aware-optimizer"] = True
    flags["optimizer-offload-fraction"] = offload.optimizer_fraction
    return flags


def offload_from_flags(flags: Mapping[str, Any]) -> Offload | None:
    """The offload block that the arguments describe; Megatron's fraction defaults to 1."""
    if not flags.get("optimizer-cpu-offload"):
        return None
    fraction = flags.get("optimizer-offload-fraction")
    return Offload(
        optimizer_fraction=1.0 if fraction is None else float(fraction),
        overlap_d2h_h2d=bool(flags.get("overlap-cpu-optimizer-d2h-h2d")),
        precision_aware=bool(flags.get("use-precision-aware-optimizer")),
    )


def dispatcher_flags(dispatcher: str | None) -> dict[str, Any]:
    """Arguments of a dispatcher; DeepEP has a switch of its own, its newer peers are named."""
    if dispatcher == "deepep":
        return {"moe-token-dispatcher-type": "flex", "moe-enable-deepep": True}
    if dispatcher in FLEX_BACKENDS:
        return {"moe-token-dispatcher-type": "flex", "moe-flex-dispatcher-backend": dispatcher}
    return {} if dispatcher is None else {"moe-token-dispatcher-type": dispatcher}


def dispatcher_from_flags(flags: Mapping[str, Any]) -> str | None:
    """The dispatcher, flex dispatchers by the name of their backend."""
    dispatcher = flags.get("moe-token-dispatcher-type")
    backend = flags.get("moe-flex-dispatcher-backend")
    if dispatcher == "flex" and flags.get("moe-enable-deepep"):
        return "deepep"
    if dispatcher == "flex" and backend in FLEX_BACKENDS:
        return str(backend)
    return None if dispatcher is None else str(dispatcher)


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else str(value).split()
