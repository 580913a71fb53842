"""Filling a model, or one pipeline stage of it, from a checkpoint."""

from __future__ import annotations

import torch

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
        stored = checkpoint.parameter(global_name(name, model.stage_layers.start))
        if stored.shape != tensor.shape:
            raise InputError(
                "give a checkpoint that matches its config.json",
                file=checkpoint.path,
                field=name,
                found=f"shape {list(stored.shape)}",
                expected=f"{list(tensor.shape)}",
            )
        tensor.copy_(stored)
