"""Mixture of experts: a sigmoid router in fp32, squared-ReLU experts, a shared expert.

`MoE.experts` may be replaced by anything with `Experts`' call, `experts(tokens, indices, weights)`:
that is where expert parallelism exchanges tokens around `Experts.compute`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.batch import Segments
from openrecipes.engine.model.grouped import Order, count, expert_ffn, squared_relu


class MLP(nn.Module):
    """down(relu(up(x))^2): a dense layer, or the expert that every token visits."""

    def __init__(self, config: NemotronHConfig, width: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, width, bias=config.mlp_bias)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=config.mlp_bias)

    def forward(self, hidden: Tensor, segments: Segments | None = None) -> Tensor:
        """(T, hidden) to (T, hidden)."""
        return self.down_proj(squared_relu(self.up_proj(hidden)))


class Router(nn.Module):
    """Chooses each token's experts: sigmoid scores, a correction bias that only affects the choice.

    With ``n_group`` above 1, only the ``topk_group`` groups whose two best experts sum highest are
    eligible. The correction bias is frozen: a buffer, kept in checkpoints and always fp32.
    """

    e_score_correction_bias: Tensor

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        experts = config.n_routed_experts
        self.top_k = config.num_experts_per_tok
        self.groups = config.n_group
        self.top_groups = config.topk_group
        self.normalise = config.norm_topk_prob
        self.scaling = config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(T, hidden) to each token's experts (T, k) int64 and their weights (T, k) fp32."""
        scores = F.linear(hidden.float(), self.weight.float()).sigmoid()
        indices = self.choose(scores.detach())
        weights = scores.gather(1, indices)
        if self.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return indices, weights * self.scaling

    def choose(self, scores: Tensor) -> Tensor:
        """The k experts (T, k) with the highest corrected scores among eligible groups."""
        scores = scores + self.e_score_correction_bias
        if self.groups > 1:
            grouped = scores.unflatten(-1, (self.groups, -1))
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(self.top_groups, dim=-1).indices
            closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
            scores = grouped.masked_fill(closed.unsqueeze(-1), -torch.inf).flatten(1)
        return scores.topk(self.top_k, dim=-1, sorted=False).indices


class Experts(nn.Module):
    """E squared-ReLU experts; weights stacked so that one grouped product serves all.

    ``up_proj`` is (E, width, size), ``down_proj`` (E, size, width): each expert's own matrices as
    `nn.Linear` would hold them.
    """

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        experts, width, size = (
            config.n_routed_experts,
            config.moe_intermediate_size,
            config.expert_size,
        )
        self.up_proj = nn.Parameter(torch.empty(experts, width, size))
        self.down_proj = nn.Parameter(torch.empty(experts, size, width))

    def forward(self, tokens: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        """Each token's weighted sum over its experts.

        Args:
            tokens: (T, size).
            indices: (T, k), experts in 0..E-1.
            weights: (T, k) fp32.

        Returns:
            (T, size).
        """
        order = Order.by_expert(indices, self.up_proj.shape[0])
        weights = weights.flatten()[order.slots]
        return order.collect(self.compute(order.spread(tokens), order.counts, weights))

    def compute(self, tokens: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
        """The experts' outputs times their weights.

        Args:
            tokens: (N, size), sorted by expert.
            counts: (E,), tokens of each expert.
            weights: (N,) fp32.

        Returns:
            (N, size).
        """
        return expert_ffn(tokens, counts, weights, self.up_proj, self.down_proj)


class MoE(nn.Module):
    """Routed experts, in a latent space where the config has one, plus the shared expert.

    Attributes:
        tokens_per_expert: (E,) int64, the last forward's load; None before the first.
    """

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        hidden, latent = config.hidden_size, config.moe_latent_size
        self.gate = Router(config)
        self.experts: nn.Module = Experts(config)
        self.shared_experts = MLP(config, config.moe_shared_expert_intermediate_size)
        self.fc1_latent_proj: nn.Module = nn.Identity()
        self.fc2_latent_proj: nn.Module = nn.Identity()
        if latent is not None:
            self.fc1_latent_proj = nn.Linear(hidden, latent, bias=config.mlp_bias)
            self.fc2_latent_proj = nn.Linear(latent, hidden, bias=config.mlp_bias)
        self.tokens_per_expert: Tensor | None = None

    def forward(self, hidden: Tensor, segments: Segments | None = None) -> Tensor:
        """(T, hidden) to (T, hidden)."""
        indices, weights = self.gate(hidden)
        self.tokens_per_expert = count(indices, self.gate.weight.shape[0])
        # First: where this layer is recomputed, nothing after the experts' outputs is needed then.
        shared = self.shared_experts(hidden)
        routed = self.experts(self.fc1_latent_proj(hidden), indices, weights)
        return self.fc2_latent_proj(routed) + shared
