"""Experts spread over ranks: tokens travel to their experts and back (the alltoall dispatcher).

Rank r of ``ep`` holds experts r E/EP to (r + 1) E/EP - 1 of every layer. Each rank routes its own
tokens with the whole router, sends each to the rank of its expert, computes what it was sent, and
sends the outputs back. An expert therefore sees the tokens of all ranks of ``ep``, and its gradient
is already their sum.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openrecipes.engine.model.moe import Experts, MoE
from openrecipes.engine.parallel.collectives import exchange
from openrecipes.engine.parallel.mesh import Axis


def spread_experts(model: nn.Module, axis: Axis) -> None:
    """Keep only this rank's experts in every MoE layer of ``model``; no-op for a size of 1."""
    if axis.size == 1:
        return
    for module in model.modules():
        if isinstance(module, MoE) and isinstance(module.experts, Experts):
            module.experts = SpreadExperts(module.experts, axis)


class SpreadExperts(nn.Module):
    """This rank's experts of one layer; called as `Experts` is, with all experts' numbers.

    Args:
        experts: all experts; E is a multiple of the axis' size.
        axis: the ranks that share them.
    """

    def __init__(self, experts: Experts, axis: Axis) -> None:
        super().__init__()
        self.axis = axis
        self.total = experts.up_proj.shape[0]
        self.held = self.total // axis.size
        mine = slice(axis.rank * self.held, (axis.rank + 1) * self.held)
        self.local = experts
        experts.up_proj = nn.Parameter(experts.up_proj.detach()[mine].clone())
        experts.down_proj = nn.Parameter(experts.down_proj.detach()[mine].clone())

    def forward(self, tokens: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        """Tokens (T, size), experts (T, k) in 0..E-1, weights (T, k), to (T, size)."""
        top_k = indices.shape[1]
        order = indices.flatten().argsort(stable=True)  # slots, by expert then by token
        counts = torch.bincount(indices.flatten(), minlength=self.total)
        out = self._compute(tokens[order // top_k], counts, weights.flatten()[order])
        return out[inverse(order)].unflatten(0, (-1, top_k)).sum(1)

    def _compute(self, tokens: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
        """As `Experts.compute`, for tokens sorted by expert over all ranks' experts."""
        sent = counts.view(self.axis.size, self.held)
        ones = [1] * self.axis.size
        received = exchange(sent, ones, ones, self.axis)  # row r: what rank r sends my experts
        # One copy to the host for both: the sizes of the exchange must be known there.
        send, receive = torch.stack([sent.sum(1), received.sum(1)]).tolist()
        tokens = exchange(tokens, send, receive, self.axis)
        weights = exchange(weights, send, receive, self.axis)
        # They came by rank, then by expert; the grouped products want them by expert.
        expert = torch.arange(self.held, device=tokens.device).repeat(self.axis.size)
        order = expert.repeat_interleave(received.flatten()).argsort(stable=True)
        out = self.local.compute(tokens[order], received.sum(0), weights[order])
        return exchange(out[inverse(order)], receive, send, self.axis)


def inverse(order: Tensor) -> Tensor:
    """The permutation that undoes ``order``."""
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    return back
