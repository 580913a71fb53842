"""Grouped-query attention without positions, inside segments only."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.batch import Segments

Attend = Callable[[Tensor, Tensor, Tensor, Segments], Tensor]


class Attention(nn.Module):
    """Causal attention; NemotronH leaves the order of tokens to its Mamba layers.

    Head counts come from the weights' own shapes, so a slice of the heads is the same module.
    """

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, config.attention_bias
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(hidden, queries, bias=bias)
        self.k_proj = nn.Linear(hidden, keys, bias=bias)
        self.v_proj = nn.Linear(hidden, keys, bias=bias)
        self.o_proj = nn.Linear(queries, hidden, bias=bias)
        self.attend: Attend = attend

    def forward(self, hidden: Tensor, segments: Segments) -> Tensor:
        """(T, hidden) to (T, hidden)."""
        heads = (-1, self.head_dim)
        q = self.q_proj(hidden).unflatten(-1, heads)
        k = self.k_proj(hidden).unflatten(-1, heads)
        v = self.v_proj(hidden).unflatten(-1, heads)
        return self.o_proj(self.attend(q, k, v, segments).flatten(1))


def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, causal, inside segments.

    Args:
        q: (T, query heads, d).
        k: (T, key heads, d); query head i reads key head i // (query heads / key heads).
        v: like k.
        segments: the borders.

    Returns:
        (T, query heads, d).
    """
    lengths = segments.lengths
    if len(set(lengths)) == 1:  # all alike: one call, segments as the batch
        alike = (len(lengths), lengths[0])
        q, k, v = q.unflatten(0, alike), k.unflatten(0, alike), v.unflatten(0, alike)
        return _causal(q, k, v).flatten(0, 1)
    pieces = zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
    return torch.cat([_causal(q[None], k[None], v[None])[0] for q, k, v in pieces])


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of (batch, T, heads, d)."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    return out.transpose(1, 2)
