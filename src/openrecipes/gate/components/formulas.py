"""The formulas of a NemotronH layer, as plain as they can be written: slow, and in any precision.

Nothing here is shared with the engine, so that both being wrong alike is unlikely.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def scan(
    x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor, skip: Tensor, ids: Tensor
) -> Tensor:
    """S = exp(dt A) S + dt x B^T, y = S C + D x, token by token; S starts at 0 in each segment.

    Args:
        x: (T, heads, p).
        dt: (T, heads).
        decay: (heads,), A.
        b: (T, groups, s).
        c: like b.
        skip: (heads,), D.
        ids: (T,), segment of each token.
    """
    tokens, heads, p = x.shape
    b = b.repeat_interleave(heads // b.shape[1], 1)
    c = c.repeat_interleave(heads // c.shape[1], 1)
    state = x.new_zeros(heads, p, b.shape[2])
    out = []
    for t in range(tokens):
        if t and ids[t] != ids[t - 1]:
            state = torch.zeros_like(state)
        added = (dt[t, :, None] * x[t])[..., None] * b[t, :, None, :]
        state = (dt[t] * decay).exp()[:, None, None] * state + added
        out.append((state * c[t, :, None, :]).sum(-1) + skip[:, None] * x[t])
    return torch.stack(out)


def attention(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v over earlier tokens of the same segment.

    Args:
        q: (T, heads, d).
        k: (T, key heads, d).
        v: like k.
        ids: (T,), segment of each token.
    """
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    order = torch.arange(q.shape[0], device=q.device)
    seen = (order[:, None] >= order[None, :]) & (ids[:, None] == ids[None, :])
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v)


def experts(
    hidden: Tensor,
    gate: Tensor,
    bias: Tensor,
    up: Tensor,
    down: Tensor,
    shared_up: Tensor,
    shared_down: Tensor,
    top_k: int,
    scaling: float,
) -> Tensor:
    """Sigmoid router, top-k by corrected score, squared-ReLU experts, and the shared expert.

    Args:
        hidden: (T, h).
        gate: (E, h).
        bias: (E,), added to scores for the choice only.
        up: (E, w, h).
        down: (E, h, w).
        shared_up: (w', h).
        shared_down: (h, w').
        top_k: experts of a token.
        scaling: of the normalised weights.
    """
    scores = (hidden @ gate.T).sigmoid()
    chosen = (scores + bias).topk(top_k, dim=-1).indices
    out = []
    for token in range(hidden.shape[0]):
        weights = scores[token, chosen[token]]
        weights = scaling * weights / weights.sum()
        total = shared_down @ (shared_up @ hidden[token]).relu().square()
        for weight, expert in zip(weights, chosen[token].tolist(), strict=True):
            total = total + weight * (down[expert] @ (up[expert] @ hidden[token]).relu().square())
        out.append(total)
    return torch.stack(out)


def cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, ignored: int) -> Tensor:
    """Sum of -log softmax(weight hidden)[target] over targets that are not ``ignored``."""
    logits = hidden @ weight.T
    kept = targets != ignored
    return -logits.log_softmax(-1)[kept, targets[kept]].sum()


def adamw(
    weight: Tensor,
    gradients: Sequence[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> Tensor:
    """The weight after one AdamW step per gradient, bias-corrected, decay decoupled."""
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, gradient in enumerate(gradients, start=1):
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        corrected = first / (1 - betas[0] ** step)
        spread = (second / (1 - betas[1] ** step)).sqrt() + eps
        weight = weight - lr * decay * weight - lr * corrected / spread
    return weight
