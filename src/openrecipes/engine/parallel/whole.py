"""The whole model's tensors from the parts that ranks hold: for export and for comparison."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from openrecipes.engine.parallel.collectives import gather
from openrecipes.engine.parallel.expert_parallel import SpreadExperts
from openrecipes.engine.parallel.mesh import Mesh


def whole_tensors(
    model: nn.Module, mesh: Mesh, instead: Mapping[int, Tensor] | None = None
) -> dict[str, Tensor]:
    """Parameters and buffers by the one-process model's names, experts of all ranks together.

    Every rank of ``ep`` must call it.

    Args:
        instead: by the id of a parameter, a tensor to take in its place (its gradient, say).
    """
    spread = {name: module for name, module in model.named_modules() if _is_spread(module)}
    whole: dict[str, Tensor] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if instead is not None and id(tensor) not in instead:
            continue
        part = tensor.detach() if instead is None else instead[id(tensor)]
        owner = next((prefix for prefix in spread if name.startswith(f"{prefix}.")), None)
        if owner is None:
            whole[name] = part
        else:
            leaf = name.removeprefix(f"{owner}.local.")
            whole[f"{owner}.{leaf}"] = _gather_first(part, mesh)
    return whole


def _is_spread(module: nn.Module) -> bool:
    return isinstance(module, SpreadExperts)


def _gather_first(part: Tensor, mesh: Mesh) -> Tensor:
    """Parts along the first dimension, of all ranks of ``ep``, in rank order."""
    whole = torch.empty(
        mesh.ep.size * part.shape[0], *part.shape[1:], dtype=part.dtype, device=part.device
    )
    gather(whole.view(-1), part.contiguous().view(-1), mesh.ep)
    return whole
