"""Random weights for a model that starts from a config alone."""

from __future__ import annotations

import math

import torch

from openrecipes.engine.model.mamba import initial_dt_bias
from openrecipes.engine.model.nemotron_h import NemotronH


@torch.no_grad()
def initialise(model: NemotronH, seed: int) -> None:
    """Fill a model with random weights, the same for the same seed whatever the stage or layout.

    Matrices are normal with ``initializer_range``; those that write to the residual stream are
    divided by sqrt(number of layers) where ``rescale_prenorm_residual`` is set. A starts at
    -1..-heads, D at 1, dt between ``time_step_min`` and ``time_step_max``, norms at 1, biases at 0.

    Each parameter draws from a generator of its own, seeded by the seed and its name, so a pipeline
    stage gets exactly its part of the whole model.
    """
    config = model.config
    depth = math.sqrt(config.num_hidden_layers) if config.rescale_prenorm_residual else 1.0
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        whole_name = global_name(name, model.stage_layers.start)
        leaf = whole_name.rsplit(".", 1)[-1]
        if leaf == "A_log":
            tensor.copy_(torch.arange(1, tensor.numel() + 1, dtype=torch.float32).log())
        elif leaf == "D" or "norm" in whole_name.split(".")[-2]:
            tensor.fill_(1.0)
        elif leaf == "dt_bias":
            generator = _generator(seed, whole_name)
            tensor.copy_(initial_dt_bias(config, torch.rand(tensor.shape, generator=generator)))
        elif "bias" in leaf:
            tensor.zero_()
        elif "_conv." in whole_name:
            bound = 1 / math.sqrt(tensor.shape[-1])  # as torch initialises a depthwise convolution
            generator = _generator(seed, whole_name)
            tensor.copy_((torch.rand(tensor.shape, generator=generator) * 2 - 1) * bound)
        else:
            std = config.initializer_range / (depth if _writes_residual(whole_name) else 1.0)
            tensor.copy_(torch.randn(tensor.shape, generator=_generator(seed, whole_name)) * std)


def global_name(name: str, first_layer: int) -> str:
    """A stage's parameter name with its layer counted from the model's first layer."""
    prefix = "backbone.layers."
    if not name.startswith(prefix):
        return name
    number, rest = name.removeprefix(prefix).split(".", 1)
    return f"{prefix}{int(number) + first_layer}.{rest}"


def _writes_residual(name: str) -> bool:
    ends = ("out_proj.weight", "o_proj.weight", "down_proj.weight", "fc2_latent_proj.weight")
    return name.endswith(ends) or name.endswith("experts.down_proj")


def _generator(seed: int, name: str) -> torch.Generator:
    digest = 0
    for character in f"{seed}/{name}".encode():
        digest = (digest * 1099511628211 ^ character) % 2**63
    return torch.Generator().manual_seed(digest)
