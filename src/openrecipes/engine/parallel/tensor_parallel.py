"""Matrices shared by the ranks of ``tp``, with or without sequence parallelism.

Attention, Mamba and MLPs are a pair: matrices cut by rows (each rank computes its heads or its part
of the inner width), then one cut by columns, whose partial outputs are summed. `placement` has cut
the parameters already and the modules take their sizes from them; what is added here is the two
places where ranks talk, as a hook before the block and a new class for its last matrix:

    sequence parallel   hidden is (T / TP, h) between blocks: each rank has other tokens. A block
                        first joins the tokens of all ranks; its end sums and keeps the rank's own.
    without             hidden is (T, h), the same on all ranks. A block's end sums; so does the
                        gradient at its beginning.

A mixture of experts is not such a pair: it works on the rank's own tokens, only its shared expert
is cut. So experts with TP need sequence parallelism, else TP ranks would all send the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from openrecipes.engine.model.attention import Attention
from openrecipes.engine.model.mamba import Mamba2Mixer
from openrecipes.engine.model.moe import MLP
from openrecipes.engine.parallel.collectives import joined, shared, summed, summed_part
from openrecipes.engine.parallel.mesh import Axis, Mesh

#: Each block's last matrix, the one cut by columns.
_LAST: tuple[tuple[type[nn.Module], str], ...] = (
    (Attention, "o_proj"),
    (Mamba2Mixer, "out_proj"),
    (MLP, "down_proj"),
)


@dataclass(frozen=True)
class Region:
    """Where hidden enters a block whose matrices are shared, and leaves it.

    Args:
        axis: the ranks that share them.
        sequence: whether hidden is cut along the sequence outside.
    """

    axis: Axis
    sequence: bool

    @classmethod
    def of(cls, mesh: Mesh) -> Region:
        """The region of this mesh's tp."""
        return cls(mesh.tp, mesh.sequence_parallel)

    def enter(self, hidden: Tensor) -> Tensor:
        """The rank's hidden to that of all tokens of tp, (T, h)."""
        return (joined if self.sequence else shared)(hidden, self.axis)

    def leave(self, partial: Tensor) -> Tensor:
        """Partial outputs for all tokens to the rank's hidden."""
        return (summed_part if self.sequence else summed)(partial, self.axis)


class ColumnLinear(nn.Module):
    """A linear layer whose inputs are cut: partial products are summed, then the bias is added."""

    def __init__(self, linear: nn.Linear, region: Region) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.region = region

    def forward(self, part: Tensor) -> Tensor:
        """(T, part of the inputs) to the rank's hidden."""
        out = self.region.leave(F.linear(part, self.weight))
        return out if self.bias is None else out + self.bias


def share_matrices(model: nn.Module, mesh: Mesh) -> None:
    """Make the blocks of a model with cut parameters work together; no-op for TP 1."""
    if mesh.tp.size == 1:
        return
    region = Region.of(mesh)

    def enter(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return region.enter(arguments[0]), *arguments[1:]

    for module in list(model.modules()):
        for kind, last in _LAST:
            if isinstance(module, kind):
                setattr(module, last, ColumnLinear(getattr(module, last), region))
                module.register_forward_pre_hook(enter)


def enters(module: nn.Module) -> bool:
    """Whether hidden enters a region at this module: the block's matrices are shared."""
    return isinstance(module, tuple(kind for kind, _ in _LAST))


def share_repeated_gradient(parameter: nn.Parameter, mesh: Mesh) -> None:
    """Without sequence parallelism, what is not cut sees every token on every rank of tp.

    Each rank then has the whole gradient, where the law of `mesh` wants parts that add up: each
    contributes its 1 / TP.
    """
    share = 1 / mesh.tp.size
    parameter.register_hook(lambda gradient: gradient * share)
