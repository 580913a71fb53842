"""A row's tokens shared by the ranks of ``cp``: heads exchanged for sequence.

Between blocks a rank has a stretch of T / CP tokens. Attention and Mamba need the whole sequence,
but not all heads: after the projections an all-to-all gives each rank the whole sequence of 1 / CP
of its heads, before the last norm or projection another one gives it back (Jacobs et al. 2023,
"DeepSpeed Ulysses"). Both work on whole heads, so segments, masks and the scan are unchanged, and
Mamba's convolutions, A, D and dt_bias are simply held in part (see `placement`). z is used after
the way back and is never sent.

Key-value heads, or groups of B and C, that are fewer than CP are repeated: each rank gets the one
that its heads read.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from openrecipes.engine.model.attention import Attention
from openrecipes.engine.model.mamba import Mamba2Mixer
from openrecipes.engine.parallel.collectives import exchange
from openrecipes.engine.parallel.mesh import Axis, Mesh


def heads_for_tokens(tokens: Tensor, head_size: int, axis: Axis) -> Tensor:
    """All heads of the rank's tokens to all tokens of the rank's heads.

    Args:
        tokens: (T / CP, heads x head size); the heads and CP divide one another.
        head_size: channels that stay together.

    Returns:
        (T, max(heads / CP, 1) x head size).
    """
    heads = tokens.shape[1] // head_size
    if heads < axis.size:
        tokens = tokens.unflatten(1, (heads, head_size))
        tokens = tokens.repeat_interleave(axis.size // heads, 1).flatten(1)
    parts = tokens.unflatten(1, (axis.size, -1)).transpose(0, 1)  # (CP, T / CP, channels)
    ones = [1] * axis.size
    return exchange(parts, ones, ones, axis).flatten(0, 1)


def tokens_for_heads(heads: Tensor, axis: Axis) -> Tensor:
    """(T, channels of the rank's heads) to (T / CP, channels of all heads): the way back."""
    ones = [1] * axis.size
    parts = exchange(heads.unflatten(0, (axis.size, -1)), ones, ones, axis)
    return parts.transpose(0, 1).flatten(1)


def share_sequence(model: nn.Module, mesh: Mesh) -> None:
    """Put the exchanges around attention and scan; no-op for CP 1."""
    axis = mesh.cp
    if axis.size == 1:
        return
    for module in model.modules():
        if isinstance(module, Attention):
            for projection in (module.q_proj, module.k_proj, module.v_proj):
                _exchange_after(projection, module.head_dim, axis)
            _exchange_before(module.o_proj, axis)
        elif isinstance(module, Mamba2Mixer):
            _exchange_after(module.x_proj, module.head_dim, axis)
            _exchange_after(module.B_proj, module.state_size, axis)
            _exchange_after(module.C_proj, module.state_size, axis)
            _exchange_after(module.dt_proj, 1, axis)
            _exchange_before(module.norm, axis)


def _exchange_after(projection: nn.Module, head_size: int, axis: Axis) -> None:
    def hook(_: nn.Module, arguments: Any, out: Tensor) -> Tensor:
        return heads_for_tokens(out, head_size, axis)

    projection.register_forward_hook(hook)


def _exchange_before(module: nn.Module, axis: Axis) -> None:
    def hook(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tokens_for_heads(arguments[0], axis), *arguments[1:]

    module.register_forward_pre_hook(hook)
