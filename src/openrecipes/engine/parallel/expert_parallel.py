"""Experts spread over ranks: tokens travel to their experts and back (the alltoall dispatcher).

Rank r of ``ep`` holds experts r E/EP to (r + 1) E/EP - 1 of every layer, and of each of them the
part of the inner width that its place on ``etp`` names. Each rank routes its own tokens with the
whole router, sends each to all ranks that hold a part of its expert, and sums the partial outputs
that come back. An expert therefore sees the tokens of all ranks of ``experts``, and its gradient is
already their sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from openrecipes.engine.model.grouped import Order
from openrecipes.engine.model.moe import Experts, MoE
from openrecipes.engine.parallel.collectives import exchange
from openrecipes.engine.parallel.mesh import Axis, Mesh
from openrecipes.engine.parallel.recompute import decided


def spread_experts(model: nn.Module, mesh: Mesh) -> None:
    """Exchange tokens in every MoE layer of a model with cut experts; no-op for EP and ETP 1."""
    if mesh.experts.size == 1:
        return
    for module in model.modules():
        if isinstance(module, MoE) and isinstance(module.experts, Experts):
            module.experts = SpreadExperts(module.experts, mesh.experts, mesh.etp.size)


class SpreadExperts(Experts):
    """This rank's part of one layer's experts; called as `Experts` is, with all experts' numbers.

    Args:
        experts: the experts that this rank holds, or its part of them.
        axis: etp and ep together, etp the inner.
        parts: ETP, the parts of each expert.
    """

    def __init__(self, experts: Experts, axis: Axis, parts: int) -> None:
        nn.Module.__init__(self)
        self.up_proj, self.down_proj = experts.up_proj, experts.down_proj
        self.axis = axis
        self.parts = parts
        self.held = experts.up_proj.shape[0]
        self.total = self.held * (axis.size // parts)

    def forward(self, tokens: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        """Tokens (T, size), experts (T, k) in 0..E-1, weights (T, k), to (T, size)."""
        order = Order.by_expert(indices, self.total)
        weights = _Ordered.apply(weights.flatten(), order.slots, order.places.flatten())
        return order.collect(self._travel(order.spread(tokens), order.counts, weights))

    def _travel(self, tokens: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
        """As `Experts.compute`, for tokens sorted by expert over all ranks' experts."""
        received, send, receive = decided(lambda: self._sizes(counts))
        tokens = exchange(self._for_each_part(tokens, send), send, receive, self.axis)
        weights = exchange(self._for_each_part(weights, send), send, receive, self.axis)
        # They came by rank, then by expert; the grouped products want them by expert.
        expert = torch.arange(self.held, device=tokens.device).repeat(self.axis.size)
        order = expert.repeat_interleave(received.flatten()).argsort(stable=True)
        back = inverse(order)
        tokens, weights = (_Ordered.apply(rows, order, back) for rows in (tokens, weights))
        out = _Ordered.apply(self.compute(tokens, received.sum(0), weights), back, order)
        return self._sum_parts(exchange(out, receive, send, self.axis), send)

    def _sizes(self, counts: Tensor) -> tuple[Tensor, list[int], list[int]]:
        """What each rank sends to my experts (ranks, held), and the sizes of the exchange."""
        sent = counts.view(-1, self.held).repeat_interleave(self.parts, 0)
        ones = [1] * self.axis.size
        received = exchange(sent, ones, ones, self.axis)
        # One copy to the host for both: the sizes of the exchange must be known there.
        send, receive = torch.stack([sent.sum(1), received.sum(1)]).tolist()
        return received, send, receive

    def _for_each_part(self, slots: Tensor, send: list[int]) -> Tensor:
        """Each expert's slots once for every rank that holds a part of it."""
        if self.parts == 1:
            return slots
        pieces = slots.split(send[:: self.parts])
        return torch.cat([piece for piece in pieces for _ in range(self.parts)])

    def _sum_parts(self, out: Tensor, send: list[int]) -> Tensor:
        """The partial outputs of each expert's parts, added up."""
        if self.parts == 1:
            return out
        pieces = out.split(send)
        whole = [
            torch.stack(pieces[first : first + self.parts]).sum(0)
            for first in range(0, len(pieces), self.parts)
        ]
        return torch.cat(whole)


class _Ordered(torch.autograd.Function):
    """rows[order]; ``back`` undoes ``order``.

    The gradient is put back by a gather, and no index is kept as an activation: after the way back
    of a recomputed layer nothing is needed again.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.back = back
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0][ctx.back], None, None


def inverse(order: Tensor) -> Tensor:
    """The permutation that undoes ``order``."""
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    return back
