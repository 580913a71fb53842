"""This rank's part of a model: cut or read as `placement` says, and made to work with the others.

The order in which parallelism is applied is fixed: parameters are cut, then matrices shared (tp),
words (tp, cp), sequence (cp) and experts (ep, etp), then recompute is laid around what is there.
Every parameter keeps the name that it has in the one-process model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.model import NemotronH, global_name, initial_value, keeps_fp32
from openrecipes.engine.parallel.context_parallel import share_sequence
from openrecipes.engine.parallel.expert_parallel import spread_experts
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.parallel.placement import Placement, cut, placement
from openrecipes.engine.parallel.recompute import recompute
from openrecipes.engine.parallel.tensor_parallel import share_matrices, share_repeated_gradient
from openrecipes.engine.parallel.vocabulary import share_words
from openrecipes.engine.weights import Checkpoint, read_part

#: Gives a part of a parameter: (whole-model name, shape of the whole, slices) to the tensor.
Read = Callable[[str, torch.Size, tuple[slice, ...]], Tensor]


@dataclass(frozen=True, eq=False)
class Held:
    """A parameter or buffer of which this rank holds a part.

    Args:
        name: its name in the whole model.
        tensor: the part.
        placement: which part it is.
    """

    name: str
    tensor: Tensor
    placement: Placement


def held(model: nn.Module, mesh: Mesh) -> Iterator[Held]:
    """What this rank holds, in the model's order.

    Args:
        model: a model, a stage of it, or several stages in one module. A module of another kind is
            taken as one that every rank holds whole.
        mesh: this rank's place.
    """
    stages = [module for module in model.modules() if isinstance(module, NemotronH)]
    if not stages:
        for name, tensor in _tensors(model):
            yield Held(name, tensor, Placement())
    for stage in stages:
        for name, tensor in _tensors(stage):
            whole = global_name(name, stage.stage_layers.start)
            yield Held(whole, tensor, placement(whole, stage.config, mesh.grid.sizes))


def build(
    config: NemotronHConfig,
    mesh: Mesh,
    read: Read,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    layers: range | None = None,
) -> NemotronH:
    """Make this rank's part of a model, or of one stage of it; the whole is nowhere made.

    Args:
        config: the model's shape.
        mesh: this rank's place, with a layout that the rules allow.
        read: where values come from: `from_checkpoint`, `from_seed`.
        dtype: fp32 or bf16; the router stays fp32.
        device: where the part is put.
        layers: the layers of the stage; all by default.
    """
    with torch.device("meta"):
        model = NemotronH(config, layers)

    def part(name: str, whole: Tensor) -> Tensor:
        slices = placement(name, config, mesh.grid.sizes).part(
            whole.shape, mesh.here, mesh.grid.sizes
        )
        kept = torch.float32 if keeps_fp32(name) else dtype
        return read(name, whole.shape, slices).to(device=device, dtype=kept)

    _replace_tensors(model, part)
    return work_together(model, mesh)


def distribute(model: NemotronH, mesh: Mesh) -> NemotronH:
    """Keep this rank's part of a model that every rank has whole, in place."""
    if mesh.stage.size > 1:

        def part(name: str, whole: Tensor) -> Tensor:
            placed = placement(name, model.config, mesh.grid.sizes)
            return cut(whole.detach(), placed.part(whole.shape, mesh.here, mesh.grid.sizes))

        _replace_tensors(model, part)
    return work_together(model, mesh)


def work_together(model: NemotronH, mesh: Mesh) -> NemotronH:
    """Add what makes a model of cut parameters compute what the whole one does."""
    if mesh.tp.size > 1 and not mesh.sequence_parallel:
        for part in held(model, mesh):
            if isinstance(part.tensor, nn.Parameter) and not part.placement.spread_over("tp"):
                share_repeated_gradient(part.tensor, mesh)
    share_matrices(model, mesh)
    share_words(model, mesh)
    share_sequence(model, mesh)
    spread_experts(model, mesh)
    recompute(model, mesh)
    return model


def from_checkpoint(checkpoint: Checkpoint) -> Read:
    """Values from a checkpoint; only the slices are read."""

    def read(name: str, shape: torch.Size, slices: tuple[slice, ...]) -> Tensor:
        return read_part(checkpoint, name, shape, slices)

    return read


def from_seed(config: NemotronHConfig, seed: int) -> Read:
    """Random values, for any layout the same as on one process."""

    def read(name: str, shape: torch.Size, slices: tuple[slice, ...]) -> Tensor:
        return cut(initial_value(config, name, shape, seed), slices)

    return read


def _tensors(module: nn.Module) -> Sequence[tuple[str, Tensor]]:
    return (*module.named_parameters(), *module.named_buffers())


def _replace_tensors(model: NemotronH, part: Callable[[str, Tensor], Tensor]) -> None:
    """Put ``part(whole-model name, tensor)`` in the place of each parameter and buffer."""
    for prefix, module in list(model.named_modules()):
        dotted = f"{prefix}." if prefix else ""
        for leaf, tensor in [*module.named_parameters(recurse=False)]:
            name = global_name(dotted + leaf, model.stage_layers.start)
            setattr(module, leaf, nn.Parameter(part(name, tensor)))
        for leaf, tensor in [*module.named_buffers(recurse=False)]:
            name = global_name(dotted + leaf, model.stage_layers.start)
            setattr(module, leaf, part(name, tensor))
