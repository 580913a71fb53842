"""The whole model's tensors from the parts that ranks hold: for export and for comparison.

Rank 0 names a tensor, the first holder of each part sends it, rank 0 lays the parts together: one
tensor is whole at a time, and only there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from openrecipes.engine.model import NemotronH, keeps_fp32
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.parallel.parts import held
from openrecipes.engine.parallel.placement import placement
from openrecipes.engine.weights import shapes

Read = Callable[[str], Tensor]


class Assembly:
    """Whole tensors by name, laid together on rank 0.

    Args:
        model: this rank's part: a model or stages of it.
        mesh: this rank's place.
        instead: by the id of a parameter, an fp32 tensor to take in its place: its gradient.
    """

    def __init__(
        self, model: nn.Module, mesh: Mesh, instead: Mapping[int, Tensor] | None = None
    ) -> None:
        self._mesh = mesh
        self._instead = instead
        self._config = next(m.config for m in model.modules() if isinstance(m, NemotronH))
        self._shapes = shapes(self._config)
        self._parts = {part.name: part.tensor for part in held(model, mesh)}
        low = [t.dtype for name, t in self._parts.items() if not keeps_fp32(name)]
        self._dtype = low[0]
        self._device = next(iter(self._parts.values())).device

    @property
    def names(self) -> list[str]:
        """All tensors of the whole model; with ``instead`` those that something stands for."""
        names = list(self._shapes)
        return [n for n in names if not n.endswith("correction_bias")] if self._instead else names

    def lend(self, use: Callable[[Read], Any]) -> None:
        """On rank 0 call ``use`` with a function that reads whole tensors; elsewhere serve it.

        Every rank must call it.
        """
        if self._mesh.world.size == 1:
            use(self._own)
        elif self._mesh.rank == 0:
            try:
                use(self._read)
            finally:
                self._ask(None)
        else:
            while (name := self._ask(None)) is not None:
                if self._mesh.rank in self._senders(name):
                    dist.send(self._own(name).contiguous(), dst=0)

    def _own(self, name: str) -> Tensor:
        tensor = self._parts[name]
        return tensor.detach() if self._instead is None else self._instead[id(tensor)]

    def _ask(self, name: str | None) -> str | None:
        """Tell all ranks the name that rank 0 wants; None is the end."""
        asked = [name]
        dist.broadcast_object_list(asked, src=0, device=self._device)
        return asked[0]

    def _read(self, name: str) -> Tensor:
        self._ask(name)
        fp32 = self._instead is not None or keeps_fp32(name)
        dtype = torch.float32 if fp32 else self._dtype
        whole = torch.empty(self._shapes[name], dtype=dtype, device=self._device)
        for sender, slices in self._senders(name).items():
            part = torch.empty_like(whole[slices], memory_format=torch.contiguous_format)
            if sender == 0:
                part = self._own(name)
            else:
                dist.recv(part, src=sender)
            whole[slices] = part
        return whole

    def _senders(self, name: str) -> dict[int, tuple[slice, ...]]:
        """The first rank that holds each part of a tensor, and which part it is."""
        grid = self._mesh.grid
        placed = placement(name, self._config, grid.sizes)
        stage = stage_of(name, self._mesh, self._config.num_hidden_layers)
        first: dict[tuple[int, ...], int] = {}
        for rank in range(stage * grid.layout.stage_size, (stage + 1) * grid.layout.stage_size):
            first.setdefault(placed.index(grid.coordinates(rank), grid.sizes), rank)
        shape = self._shapes[name]
        return {
            rank: placed.part(shape, grid.coordinates(rank), grid.sizes) for rank in first.values()
        }


def stage_of(name: str, mesh: Mesh, layers: int) -> int:
    """The pipeline rank that holds the tensor of this whole-model name."""
    prefix = "backbone.layers."
    if name.startswith(prefix):
        layer = int(name.removeprefix(prefix).split(".", 1)[0])
    else:
        layer = 0 if name.startswith("backbone.embeddings.") else layers - 1
    return next(
        pp
        for pp in range(mesh.layout.pp)
        if any(layer in chunk for chunk in mesh.grid.chunks(pp, layers))
    )


def whole_tensors(
    model: nn.Module, mesh: Mesh, instead: Mapping[int, Tensor] | None = None
) -> dict[str, Tensor]:
    """All parameters and buffers, whole, on every rank; every rank must call it.

    Args:
        model, mesh, instead: as in `Assembly`; with ``instead`` parameters only.
    """
    assembly = Assembly(model, mesh, instead)
    whole: list[dict[str, Tensor]] = [{}]
    assembly.lend(lambda read: whole[0].update({n: read(n).clone() for n in assembly.names}))
    if mesh.world.size > 1:
        dist.broadcast_object_list(whole, src=0)
    return whole[0]
