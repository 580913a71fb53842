"""Tokens sorted by expert and back, and products of each group with its own matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def count(indices: Tensor, experts: int) -> Tensor:
    """(E,) int64: how often each expert stands in ``indices``; bincount would make a GPU wait."""
    flat = indices.flatten()
    return flat.new_zeros(experts).scatter_add_(0, flat, torch.ones_like(flat))


@dataclass(frozen=True)
class Order:
    """Slots (one per token and chosen expert) sorted by expert, then by token.

    Attributes:
        tokens: (N,), the token of each sorted slot.
        slots: (N,), the slot, token x k + choice, of each sorted slot.
        places: (T, k), where each token's slots went.
        counts: (E,), slots of each expert.
    """

    tokens: Tensor
    slots: Tensor
    places: Tensor
    counts: Tensor

    @classmethod
    def by_expert(cls, indices: Tensor, experts: int) -> Order:
        """From each token's experts (T, k)."""
        flat = indices.flatten()
        slots = flat.argsort(stable=True)
        places = torch.empty_like(slots)
        places[slots] = torch.arange(slots.numel(), device=slots.device)
        counts = count(indices, experts)
        return cls(slots // indices.shape[1], slots, places.view_as(indices), counts)

    def spread(self, tokens: Tensor) -> Tensor:
        """(T, size) to (N, size): each token once per chosen expert."""
        return _Spread.apply(tokens, self)

    def collect(self, outputs: Tensor) -> Tensor:
        """(N, size) to (T, size): the sum of each token's slots."""
        return _Collect.apply(outputs, self)


# Each is the other's backward pass; autograd's own would add row by row instead.
class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Order) -> Tensor:
        ctx.order = order
        return tokens.index_select(0, order.tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _sum_rows(grads[0], ctx.order.places), None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, order: Order) -> Tensor:
        ctx.order = order
        return _sum_rows(outputs, order.places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].index_select(0, ctx.order.tokens), None


def _sum_rows(rows: Tensor, places: Tensor) -> Tensor:
    """(T, k) row numbers to (T, size), the sum of those rows."""
    return torch.nn.functional.embedding_bag(places, rows.contiguous(), mode="sum")


def grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Product of groups of tokens; ``ends`` (E,) int32 are the groups' ends, the last one N.

    (N, K) with (E, K, M) gives (N, M); (K, N) with (N, M) gives (E, K, M), one product per group.
    torch's kernel wants rows that begin at multiples of 16 bytes, and bf16 on a GPU; what it does
    not take is done group by group.
    """
    taken = a.device.type == "cpu" or a.dtype == torch.bfloat16
    if not (taken and _aligned(a) and _aligned(b)):
        cuts = ends[:-1].tolist()
        if b.dim() == 3:
            products = zip(a.tensor_split(cuts), b, strict=True)
            return torch.cat([left @ right for left, right in products])
        products = zip(a.tensor_split(cuts, dim=1), b.tensor_split(cuts), strict=True)
        return torch.stack([left @ right for left, right in products])
    kernel = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    return kernel(a, b, offs=ends)


def _aligned(matrix: Tensor) -> bool:
    return max(matrix.stride()[-2:]) * matrix.element_size() % 16 == 0


def expert_ffn(tokens: Tensor, counts: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """weight * down_e(relu(up_e(token))^2) for tokens sorted by expert e.

    Args:
        tokens: (N, size).
        counts: (E,), tokens of each expert.
        weights: (N,) fp32, the router's.
        up: (E, width, size).
        down: (E, size, width).

    Returns:
        (N, size), in the tokens' dtype.
    """
    return _ExpertFFN.apply(tokens, counts, weights, up, down)


class _ExpertFFN(torch.autograd.Function):
    """The weight is applied before the second product: then neither its input nor its output has
    to be kept, only relu(up(token)).
    """

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, counts: Tensor, weights: Tensor, up: Tensor, down: Tensor
    ) -> Tensor:
        ends = counts.cumsum(0).to(torch.int32)
        active = grouped_mm(tokens, up.transpose(1, 2), ends).relu_()
        ctx.save_for_backward(tokens, ends, weights, up, down, active)
        scaled = _scaled_square(active, weights)
        return grouped_mm(scaled, down.transpose(1, 2), ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor, Tensor, Tensor]:
        tokens, ends, weights, up, down, active = ctx.saved_tensors
        grad = grads[0].contiguous()
        scaled = _scaled_square(active, weights)
        grad_down = grouped_mm(grad.t(), scaled, ends)
        grad_scaled = grouped_mm(grad, down, ends)
        # scaled = w r^2: d/dw = r^2 . grad, d/dr = 2 w r grad (zero where r is)
        grad_active = grad_scaled.mul_(active)
        grad_weights = (grad_active * active).sum(-1, dtype=torch.float32)
        grad_up_out = grad_active.mul_((2 * weights).to(grad.dtype).unsqueeze(-1))
        grad_up = grouped_mm(grad_up_out.t(), tokens, ends)
        grad_tokens = grouped_mm(grad_up_out, up, ends)
        return grad_tokens, None, grad_weights.to(weights.dtype), grad_up, grad_down


def _scaled_square(active: Tensor, weights: Tensor) -> Tensor:
    """weight * active^2."""
    return active.square().mul_(weights.to(active.dtype).unsqueeze(-1))


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2, keeping relu(x) alone for the backward pass."""
    return _SquaredReLU.apply(x)


class _SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        active = x.relu()
        ctx.save_for_backward(active)
        return active.square()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (active,) = ctx.saved_tensors
        return (active * 2).mul_(grads[0])
