"""The short causal convolution of a Mamba-2 mixer: depthwise, with SiLU, inside segments only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class CausalConvolution(nn.Module):
    """y[t] = silu(bias + sum_k weight[:, K-1-k] * x[t-k]), k over the K tokens up to t.

    Args:
        channels: number of channels.
        kernel: K, the number of taps.
        bias: whether there is a bias.
    """

    def __init__(self, channels: int, kernel: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, kernel))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x: Tensor, segment_ids: Tensor) -> Tensor:
        """x (T, channels) and the segment number of each token (T,), to (T, channels)."""
        return _Convolution.apply(x, self.weight, self.bias, segment_ids)


def _taps(x: Tensor, weight: Tensor, same: list[Tensor]) -> Tensor:
    """The convolution without its bias; ``same[k-1]`` is 1 where token t-k shares t's segment."""
    y = x * weight[:, -1]
    for lag, within in enumerate(same, start=1):
        y[lag:].addcmul_(x[:-lag] * within, weight[:, -1 - lag])
    return y


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, segment_ids: Tensor
    ) -> Tensor:
        lags = range(1, min(weight.shape[1], x.shape[0]))
        same = [(segment_ids[lag:] == segment_ids[:-lag]).to(x.dtype).unsqueeze(-1) for lag in lags]
        y = _taps(x, weight, same)
        if bias is not None:
            y += bias
        ctx.save_for_backward(x, weight, y, *same)
        ctx.has_bias = bias is not None
        return torch.nn.functional.silu(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x, weight, y, *same = ctx.saved_tensors
        grad = torch.ops.aten.silu_backward(grads[0].contiguous(), y)
        grad_x = grad * weight[:, -1]
        grad_weight = torch.zeros_like(weight)
        grad_weight[:, -1] = (grad * x).sum(0)
        for lag, within in enumerate(same, start=1):
            inside = grad[lag:] * within
            grad_x[:-lag].addcmul_(inside, weight[:, -1 - lag])
            grad_weight[:, -1 - lag] = inside.mul_(x[:-lag]).sum(0)
        return grad_x, grad_weight, grad.sum(0) if ctx.has_bias else None, None
