"""Random weights for a model that starts from a config alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from openrecipes.architectures.nemotron_h import NemotronHConfig
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
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        whole_name = global_name(name, model.stage_layers.start)
        tensor.copy_(initial_value(model.config, whole_name, tensor.shape, seed))


def initial_value(
    config: NemotronHConfig, name: str, shape: Sequence[int], seed: int
) -> torch.Tensor:
    """The random start of one parameter or buffer, fp32; see `initialise`.

    Args:
        config: the model's shape.
        name: the whole-model name.
        shape: of the whole parameter.
        seed: together with the name it decides the values.
    """
    owner, _, leaf = name.rpartition(".")
    generator = _generator(seed, name)
    if leaf == "A_log":
        return torch.arange(1, shape[0] + 1, dtype=torch.float32).log()
    if leaf == "D" or "norm" in owner.rsplit(".", 1)[-1]:
        return torch.ones(shape)
    if leaf == "dt_bias":
        return initial_dt_bias(config, torch.rand(shape, generator=generator))
    if "bias" in leaf:
        return torch.zeros(shape)
    if "_conv." in name:
        bound = 1 / math.sqrt(shape[-1])  # as torch initialises a depthwise convolution
        return (torch.rand(shape, generator=generator) * 2 - 1) * bound
    depth = math.sqrt(config.num_hidden_layers) if config.rescale_prenorm_residual else 1.0
    std = config.initializer_range / (depth if _writes_residual(name) else 1.0)
    return torch.randn(shape, generator=generator) * std


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
