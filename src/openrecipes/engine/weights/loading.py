"""Filling a model, or a part of it, from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openrecipes.engine.model import NemotronH, global_name
from openrecipes.engine.weights.checkpoint import Checkpoint
from openrecipes.errors import InputError


@torch.no_grad()
def load(model: NemotronH, checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's weights into a model's parameters, in the parameters' own dtype.

    Raises:
        InputError: a tensor is missing or has another shape than the config says.
    """
    for name, tensor in model.state_dict(keep_vars=True).items():
        whole = global_name(name, model.stage_layers.start)
        tensor.copy_(read_part(checkpoint, whole, tensor.shape))


def read_part(
    checkpoint: Checkpoint, name: str, shape: Sequence[int], part: tuple[slice, ...] = ()
) -> Tensor:
    """A part of a parameter, in the stored dtype; nothing else is read.

    Args:
        checkpoint: where it is.
        name: the whole-model name.
        shape: of the whole parameter.
        part: what is wanted, per dimension; all of it by default.

    Raises:
        InputError: the tensor is missing or has another shape.
    """
    stored = checkpoint.shape(name)
    if stored != list(shape):
        raise InputError(
            "give a checkpoint that matches its config.json",
            file=checkpoint.path,
            field=name,
            found=f"shape {stored}",
            expected=f"{list(shape)}",
        )
    return checkpoint.parameter(name, *part)
