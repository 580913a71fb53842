"""Products of token groups with each group's own matrix: the arithmetic of experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Product of groups of tokens; ``ends`` (E,) int32 are the groups' ends, the last one N.

    (N, K) with (E, K, M) gives (N, M); (K, N) with (N, M) gives (E, K, M), one product per group.
    """
    kernel = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    return kernel(a, b, offs=ends)


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
