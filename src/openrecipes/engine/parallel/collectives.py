"""Sums, gathers and exchanges along one axis; on an axis of size 1 nothing is sent."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from openrecipes.engine.parallel.mesh import Axis

# torch 2.13 renamed them; 2.11 knows the old names only
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def sum_(tensor: Tensor, axis: Axis) -> Tensor:
    """``tensor`` summed over the axis, in place, the same on all ranks."""
    if axis.size > 1:
        dist.all_reduce(tensor, group=axis.group)
    return tensor


def highest_(tensor: Tensor, axis: Axis) -> Tensor:
    """The largest of all ranks' values, element by element, in place, the same on all ranks."""
    if axis.size > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=axis.group)
    return tensor


def sum_shard(whole: Tensor, shard: Tensor, axis: Axis) -> None:
    """Sum ``whole`` over the axis; this rank's part of the sum lands in ``shard``.

    Args:
        whole: (size x n, ...).
        shard: (n, ...); a part of ``whole`` where the axis has size 1.
    """
    if axis.size > 1:
        _reduce_scatter(shard, whole, group=axis.group)


def gather(whole: Tensor, shard: Tensor, axis: Axis) -> None:
    """Fill ``whole`` (size x n, ...) with the shards (n, ...) of all ranks, in rank order."""
    if axis.size > 1:
        _all_gather(whole, shard, group=axis.group)


def gather_rows(row: Tensor, axis: Axis) -> Tensor:
    """The vectors (n,) of all ranks as (size, n)."""
    whole = row.new_empty(axis.size, *row.shape)
    whole[axis.rank] = row
    gather(whole.view(-1), row, axis)
    return whole


def joined(part: Tensor, axis: Axis) -> Tensor:
    """All ranks' parts laid end to end along the first dimension; the gradient is summed back.

    (n, ...) to (size x n, ...). Each rank gets the gradient of its own part, summed over what all
    ranks made of it. The inverse way is `summed_part`, and each is the other's gradient.
    """
    return part if axis.size == 1 else _Joined.apply(part, axis)


def summed_part(whole: Tensor, axis: Axis) -> Tensor:
    """The ranks' tensors summed; this rank keeps its part along the first dimension.

    (size x n, ...) to (n, ...).
    """
    return whole if axis.size == 1 else _SummedPart.apply(whole, axis)


def summed(tensor: Tensor, axis: Axis) -> Tensor:
    """The ranks' tensors summed, the same on all; the gradient passes as it is."""
    return tensor if axis.size == 1 else _Summed.apply(tensor, axis)


def shared(tensor: Tensor, axis: Axis) -> Tensor:
    """A tensor that all ranks have alike and use for different things: its gradient is summed."""
    return tensor if axis.size == 1 else _Shared.apply(tensor, axis)


def _join(part: Tensor, axis: Axis) -> Tensor:
    whole = part.new_empty(axis.size * part.shape[0], *part.shape[1:])
    gather(whole, part.contiguous(), axis)
    return whole


def _sum_part(whole: Tensor, axis: Axis) -> Tensor:
    part = whole.new_empty(whole.shape[0] // axis.size, *whole.shape[1:])
    sum_shard(whole.contiguous(), part, axis)
    return part


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return _join(part, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _sum_part(grads[0], ctx.axis), None


class _SummedPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return _sum_part(whole, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _join(grads[0], ctx.axis), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: Axis) -> Tensor:
        return sum_(tensor.clone(memory_format=torch.contiguous_format), axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return sum_(grads[0].clone(memory_format=torch.contiguous_format), ctx.axis), None


def exchange(tensor: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
    """All-to-all of parts of the first dimension, with gradient.

    Args:
        tensor: (sum(send), ...), parts in the order of the ranks that they go to.
        send: length of the part for each rank.
        receive: length of the part from each rank.

    Returns:
        (sum(receive), ...), parts in the order of the ranks that they come from.
    """
    if axis.size == 1:
        return tensor
    return _Exchange.apply(tensor, send, receive, axis)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, send: list[int], receive: list[int], axis: Axis
    ) -> Tensor:
        ctx.send, ctx.receive, ctx.axis = send, receive, axis
        return _all_to_all(tensor, send, receive, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(grads[0], ctx.receive, ctx.send, ctx.axis), None, None, None


def _all_to_all(tensor: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
    out = tensor.new_empty(sum(receive), *tensor.shape[1:])
    dist.all_to_all_single(out, tensor.contiguous(), receive, send, group=axis.group)
    return out
