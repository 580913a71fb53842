"""RMS norms. Computed in fp32 whatever the dtype of the activations; nothing fp32 is kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) to the same shape and dtype."""
        return _RMSNorm.apply(x, self.weight, self.epsilon)


class GatedRMSNorm(nn.Module):
    """rmsnorm(x * silu(gate)) * weight, the mean square taken over each group of channels."""

    def __init__(self, size: int, group_size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.group_size = group_size
        self.epsilon = epsilon

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x and gate (T, size) to (T, size) in the gate's dtype."""
        return _GatedRMSNorm.apply(x, gate, self.weight, self.group_size, self.epsilon)


def _inverse_rms(x: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(mean(x^2) + epsilon) over the last dimension, kept."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return norm.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()


def _backward_through_rms(grad: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """Gradient of x given that of x * inverse_rms(x) (``grad``, overwritten) and its value."""
    along = (grad * unit).mean(-1, keepdim=True)
    return grad.addcmul_(unit, along, value=-1).mul_(inverse)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        inverse = _inverse_rms(x, epsilon)
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        grad = grads[0].float()
        unit = x * inverse
        grad_weight = (grad * unit).flatten(0, -2).sum(0)
        grad_x = _backward_through_rms(grad * weight.float(), unit, inverse)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None


class _GatedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate: Tensor, weight: Tensor, group_size: int, epsilon: float
    ) -> Tensor:
        gated = torch.nn.functional.silu(gate.float()).mul_(x).unflatten(-1, (-1, group_size))
        inverse = _inverse_rms(gated, epsilon)
        ctx.save_for_backward(x, gate, weight, inverse)
        ctx.group_size = group_size
        return gated.mul_(inverse).flatten(-2).mul_(weight.float()).to(gate.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, gate, weight, inverse = ctx.saved_tensors
        groups = (-1, ctx.group_size)
        grad, x32, gate32 = grads[0].float(), x.float(), gate.float()
        sigmoid = gate32.sigmoid()
        silu = gate32 * sigmoid
        unit = (silu * x32).unflatten(-1, groups).mul_(inverse)
        grad_weight = (grad * unit.flatten(-2)).sum(0)
        grad_gated = _backward_through_rms(
            (grad * weight.float()).unflatten(-1, groups), unit, inverse
        ).flatten(-2)
        grad_x = grad_gated * silu
        # d silu(g) / dg = sigmoid(g) + silu(g) (1 - sigmoid(g))
        slope = silu.neg_().mul_(sigmoid - 1).add_(sigmoid)
        grad_gate = grad_gated.mul_(x32).mul_(slope)
        return (
            grad_x.to(x.dtype),
            grad_gate.to(gate.dtype),
            grad_weight.to(weight.dtype),
            None,
            None,
        )
