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


def sum_shard(whole: Tensor, shard: Tensor, axis: Axis) -> None:
    """Sum ``whole`` over the axis; this rank's part of the sum lands in ``shard``.

    Args:
        whole: (size x n,).
        shard: (n,); a part of ``whole`` where the axis has size 1.
    """
    if axis.size > 1:
        _reduce_scatter(shard, whole, group=axis.group)


def gather(whole: Tensor, shard: Tensor, axis: Axis) -> None:
    """Fill ``whole`` (size x n,) with the shards (n,) of all ranks, in rank order."""
    if axis.size > 1:
        _all_gather(whole, shard, group=axis.group)


def gather_rows(row: Tensor, axis: Axis) -> Tensor:
    """The vectors (n,) of all ranks as (size, n)."""
    whole = row.new_empty(axis.size, *row.shape)
    whole[axis.rank] = row
    gather(whole.view(-1), row, axis)
    return whole


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
