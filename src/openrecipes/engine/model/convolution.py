"""The short causal convolution of a Mamba-2 mixer: depthwise, with SiLU, inside segments only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from openrecipes.engine.batch import Segments

_CACHE_ELEMENTS = 2**16  # of one tensor, worked on at a time on a CPU


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

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        """(T, channels) to (T, channels)."""
        return _Convolution.apply(x, self.weight, self.bias, segments)


def _pieces(segments: Segments, x: Tensor) -> Iterator[tuple[int, int, int]]:
    """(segment's first token, start, stop): each segment, on a CPU in pieces that fit its cache."""
    most = max(16, _CACHE_ELEMENTS // x.shape[1]) if x.device.type == "cpu" else x.shape[0]
    first = 0
    for length in segments.lengths:
        for start in range(first, first + length, most):
            yield first, start, min(start + most, first + length)
        first += length


class _Convolution(torch.autograd.Function):
    """Kept: the input and what goes into the SiLU."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, segments: Segments
    ) -> Tensor:
        taps = list(weight.t().contiguous())[::-1]  # by lag
        inner, out = torch.empty_like(x), torch.empty_like(x)
        for first, start, stop in _pieces(segments, x):
            y = inner[start:stop]
            torch.mul(x[start:stop], taps[0], out=y)
            if bias is not None:
                y += bias
            for lag, tap in enumerate(taps[1:], start=1):
                reach = max(start, first + lag)  # the first token with a token so far behind it
                if reach < stop:
                    inner[reach:stop].addcmul_(x[reach - lag : stop - lag], tap)
            torch.ops.aten.silu.out(y, out=out[start:stop])
        ctx.save_for_backward(x, weight, inner)
        ctx.segments, ctx.has_bias = segments, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x, weight, inner = ctx.saved_tensors
        taps = list(weight.t().contiguous())[::-1]
        sums = torch.promote_types(weight.dtype, torch.float32)
        by_lag = [torch.zeros_like(tap, dtype=sums) for tap in taps]
        grad_bias = torch.zeros_like(by_lag[0]) if ctx.has_bias else None
        grad_out = grads[0].contiguous()
        grad_x = torch.empty_like(x)
        for first, start, stop in _pieces(ctx.segments, x):
            grad = torch.ops.aten.silu_backward(grad_out[start:stop], inner[start:stop])
            torch.mul(grad, taps[0], out=grad_x[start:stop])
            by_lag[0] += (grad * x[start:stop]).sum(0)
            for lag, tap in enumerate(taps[1:], start=1):
                reach = max(start, first + lag)
                if reach < stop:
                    part = grad[reach - start :]
                    behind = slice(reach - lag, stop - lag)
                    grad_x[behind].addcmul_(part, tap)
                    by_lag[lag] += (part * x[behind]).sum(0)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        grad_weight = torch.stack(by_lag[::-1], dim=1).to(weight.dtype)
        return grad_x, grad_weight, None if grad_bias is None else grad_bias.to(weight.dtype), None
