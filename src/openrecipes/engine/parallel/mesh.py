"""Which ranks work together: the axes, and the one place where they are named and explained.

Ranks are numbered in Megatron's order, the innermost axis first:

    rank = tp + TP (cp + CP (dp + DP pp))           what is not an expert
    rank = etp + ETP (ep + EP (edp + EDP pp))       experts, over the same ranks

``tp``   shares a layer's matrices          ``etp``  shares one expert's matrices
``cp``   shares a row's tokens              ``ep``   shares a layer's experts
``dp``   has other rows                     ``edp``  holds the same experts
``pp``   holds other layers (the stage)

Experts re-tile a whole stage: EDP = TP CP DP / (ETP EP), whatever DP is. Three more names follow:

``data``   dp and cp together: ranks that hold the same weights and see other tokens. Gradients of
           all but the experts are summed, and their optimizer state is sharded, along it.
``stage``  all ranks of one pipeline stage.
``world``  all ranks.

The gradients of experts are summed along ``edp``: the exchange along ``ep`` has already brought
each expert the tokens of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

DENSE_AXES = ("pp", "dp", "cp", "tp")
EXPERT_AXES = ("pp", "edp", "ep", "etp")


@dataclass(frozen=True)
class Axis:
    """This rank's place on one axis.

    Args:
        size: ranks on the axis.
        rank: this rank's position, from 0.
        group: the process group; None where the rank is alone.
    """

    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None


@dataclass(frozen=True)
class Mesh:
    """This rank's place on every axis that something is sent along."""

    data: Axis = Axis()
    ep: Axis = Axis()
    edp: Axis = Axis()
    stage: Axis = Axis()
    world: Axis = Axis()

    @classmethod
    def alone(cls) -> Mesh:
        """One process: nothing is ever sent."""
        return cls()

    @classmethod
    def build(cls, device: str, world: int, *, expert_parallel: int = 1) -> Mesh:
        """The axes of this process group; every rank must call it, with the same sizes.

        Args:
            device: ``cpu`` or ``cuda``.
            world: ranks in all; for 1 there is no process group.
            expert_parallel: EP; it divides the number of ranks.
        """
        if world == 1:
            return cls.alone()
        dense = init_device_mesh(device, (1, world, 1, 1), mesh_dim_names=DENSE_AXES)
        tiles = (1, world // expert_parallel, expert_parallel, 1)
        expert = init_device_mesh(device, tiles, mesh_dim_names=EXPERT_AXES)
        # With TP, CP and PP of 1 the data axis is dp, and it fills the stage and the world.
        data = _axis(dense, "dp")
        return cls(data, _axis(expert, "ep"), _axis(expert, "edp"), stage=data, world=data)


def _axis(mesh: DeviceMesh, name: str) -> Axis:
    size = mesh.size(DENSE_AXES.index(name) if name in DENSE_AXES else EXPERT_AXES.index(name))
    if size == 1:
        return Axis()
    return Axis(size, mesh.get_local_rank(name), mesh.get_group(name))
