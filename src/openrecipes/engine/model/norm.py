"""RMS norms. Computed in fp32 whatever the dtype of the activations; nothing fp32 is kept."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CACHE_ELEMENTS = 2**16  # of one tensor, worked on at a time on a CPU


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


def _pieces(x: Tensor) -> list[slice]:
    """Rows (T, ...) to work on at a time: all, or on a CPU as many as stay in its cache."""
    rows = x.shape[0]
    most = max(1, _CACHE_ELEMENTS // max(1, x[:1].numel())) if x.device.type == "cpu" else rows
    return [slice(start, start + most) for start in range(0, rows, max(1, most))]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        inverse = _inverse_rms(x, epsilon)
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        grad_x, scale = torch.empty_like(x), weight.float()
        grad_weight = torch.zeros_like(scale)
        for at in _pieces(x):
            grad, unit = grads[0][at].float(), x[at] * inverse[at]
            grad_weight += (grad * unit).flatten(0, -2).sum(0)
            grad_x[at] = _backward_through_rms(grad * scale, unit, inverse[at])
        return grad_x, grad_weight.to(weight.dtype), None


class _GatedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate: Tensor, weight: Tensor, group_size: int, epsilon: float
    ) -> Tensor:
        groups, scale = (-1, group_size), weight.float()
        out = torch.empty_like(gate)
        inverses = []
        for at in _pieces(x):
            gated = F.silu(gate[at].float()).mul_(x[at]).unflatten(-1, groups)
            inverses.append(_inverse_rms(gated, epsilon))
            torch.mul(gated.mul_(inverses[-1]).flatten(-2), scale, out=out[at])
        ctx.save_for_backward(x, gate, weight, torch.cat(inverses))
        ctx.groups = groups
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, gate, weight, inverses = ctx.saved_tensors
        grad_x, grad_gate, scale = torch.empty_like(x), torch.empty_like(gate), weight.float()
        grad_weight = torch.zeros_like(scale)
        for at in _pieces(x):
            grad, x32, gate32 = grads[0][at].float(), x[at].float(), gate[at].float()
            inverse = inverses[at]
            sigmoid = gate32.sigmoid()
            silu = gate32 * sigmoid
            unit = (silu * x32).unflatten(-1, ctx.groups).mul_(inverse)
            grad_weight += (grad * unit.flatten(-2)).sum(0)
            grad_unit = (grad * scale).unflatten(-1, ctx.groups)
            grad_gated = _backward_through_rms(grad_unit, unit, inverse).flatten(-2)
            torch.mul(grad_gated, silu, out=grad_x[at])
            # d silu(g) / dg = sigmoid(g) + silu(g) (1 - sigmoid(g))
            slope = silu.neg_().mul_(sigmoid - 1).add_(sigmoid)
            torch.mul(grad_gated.mul_(x32), slope, out=grad_gate[at])
        return grad_x, grad_gate, grad_weight.to(weight.dtype), None, None
