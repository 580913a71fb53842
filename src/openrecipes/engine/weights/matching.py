"""Whether a checkpoint is the model that its config.json tells of, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from openrecipes.engine.weights.checkpoint import Checkpoint
from openrecipes.engine.weights.exporting import shapes
from openrecipes.engine.weights.names import Holding, holdings
from openrecipes.errors import InputError


def check_checkpoint(path: Path) -> None:
    """Refuse a checkpoint with a tensor that is missing, has another shape, or has no place.

    Only the headers of its files are read.

    Raises:
        InputError: naming the first such tensor.
    """
    checkpoint = Checkpoint(path)
    sizes = shapes(checkpoint.config)
    for tensor, holding in holdings(checkpoint.config, sizes).items():
        name = checkpoint.tensor_name(tensor)
        found, expected = checkpoint.stored_shape(name), stored_shape(holding, sizes)
        if found != expected:
            raise InputError(
                "give a checkpoint that matches its config.json",
                file=path,
                field=name,
                found=f"shape {found}",
                expected=f"shape {expected}",
            )
    checkpoint.extras(sizes)


def stored_shape(holding: Holding, sizes: Mapping[str, torch.Size]) -> list[int]:
    """The shape of a checkpoint tensor that is made of parameters of these sizes."""
    first = sizes[holding.parameters[0]]
    if holding.entry is not None:
        return list(first[1:])
    if not first:
        return []
    rows = sum(sizes[name][0] for name in holding.parameters)
    return [rows, *([1] if holding.channel_first else []), *first[1:]]
