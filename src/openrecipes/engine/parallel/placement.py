"""Which part of each parameter a rank holds: said once, for everything that needs to know it.

Reading a checkpoint, random weights, the ranks that a gradient is summed over, export and
comparison all follow from the table in `placement`. A parameter is cut along up to two of its
dimensions into equal parts; where there are fewer parts than ranks, neighbours share one (key-value
heads under a larger TP, groups of B and C under a larger TP x CP).

Rows of a matrix are its outputs, columns its inputs. A pair of matrices is cut by rows, then by
columns, so that only the pair's end has to be summed (Shoeybi et al. 2019, "Megatron-LM").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.layouts.grid import Axis, Coordinates

Sizes = Mapping[Axis, int]

_BY_ROWS = {"q_proj", "z_proj", "x_proj", "B_proj", "C_proj", "dt_proj", "norm"}
_BY_ROWS |= {"up_proj", "shared_experts.up_proj"}
_BY_COLUMNS = {"o_proj", "out_proj", "down_proj", "shared_experts.down_proj"}


@dataclass(frozen=True)
class Split:
    """One dimension cut into equal parts.

    Args:
        dim: the dimension.
        axes: axes whose ranks, numbered together with the first as the outermost, take the parts
            in order.
        parts: how many there are; a divisor of the ranks on these axes.
    """

    dim: int
    axes: tuple[Axis, ...]
    parts: int

    def index(self, place: Coordinates, sizes: Sizes) -> int:
        """The part of the rank at ``place``."""
        number = 0
        for axis in self.axes:
            number = number * sizes[axis] + getattr(place, axis)
        return number * self.parts // prod(sizes[axis] for axis in self.axes)


@dataclass(frozen=True)
class Placement:
    """How one parameter lies over the ranks of its stage; without splits each holds all of it."""

    splits: tuple[Split, ...] = ()

    def index(self, place: Coordinates, sizes: Sizes) -> tuple[int, ...]:
        """The part of the rank at ``place``, one number per split; equal for its holders."""
        return tuple(split.index(place, sizes) for split in self.splits)

    def part(self, whole: Sequence[int], place: Coordinates, sizes: Sizes) -> tuple[slice, ...]:
        """What the rank at ``place`` holds of a parameter of shape ``whole``, per dimension."""
        slices = [slice(0, size) for size in whole]
        for split in self.splits:
            share = whole[split.dim] // split.parts
            start = split.index(place, sizes) * share
            slices[split.dim] = slice(start, start + share)
        return tuple(slices)

    def spread_over(self, axis: Axis) -> bool:
        """Whether ranks along ``axis`` hold other parts."""
        return any(axis in split.axes for split in self.splits)


def placement(name: str, config: NemotronHConfig, sizes: Sizes) -> Placement:
    """The placement of the parameter or buffer of this (whole-model) name.

    Args:
        name: such as ``backbone.layers.3.mixer.q_proj.weight``.
        config: the model's shape.
        sizes: the size of each axis (`RankGrid.sizes`).
    """
    inner = name.rsplit(".mixer.", 1)[-1]
    owner, _, leaf = inner.rpartition(".")
    tp, heads = sizes["tp"], sizes["tp"] * sizes["cp"]
    if inner in ("backbone.embeddings.weight", "lm_head.weight") or owner in _BY_ROWS:
        return _placed(Split(0, ("tp",), tp))
    if owner in _BY_COLUMNS:  # its bias is added to the sum: whole
        return _placed(Split(1, ("tp",), tp)) if leaf == "weight" else Placement()
    if owner in ("k_proj", "v_proj"):
        return _placed(Split(0, ("tp",), min(tp, config.num_key_value_heads)))
    if owner == "x_conv" or inner in ("dt_bias", "A_log", "D"):
        return _placed(Split(0, ("tp", "cp"), heads))
    if owner in ("B_conv", "C_conv"):
        return _placed(Split(0, ("tp", "cp"), min(heads, config.n_groups)))
    if owner == "experts":
        width = 1 if leaf == "up_proj" else 2
        return _placed(Split(0, ("ep",), sizes["ep"]), Split(width, ("etp",), sizes["etp"]))
    return Placement()


def _placed(*splits: Split) -> Placement:
    return Placement(tuple(split for split in splits if split.parts > 1))


def cut(whole: Tensor, slices: tuple[slice, ...]) -> Tensor:
    """A part as a tensor of its own, so that the whole can be freed."""
    return whole[slices].clone(memory_format=torch.contiguous_format)
