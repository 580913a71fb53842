"""Cross entropy fused with the head: the logits of a whole row never exist at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openrecipes.engine.batch import IGNORE

CHUNK_ELEMENTS = 2**22  # logits worked on at once: 16 MiB in fp32
GPU_CHUNK_ELEMENTS = 2**27  # 512 MiB: a product must be large to fill a GPU


def chunk_rows(weight: Tensor) -> int:
    """How many tokens' logits over these words (words, hidden) are worked on at once."""
    elements = CHUNK_ELEMENTS if weight.device.type == "cpu" else GPU_CHUNK_ELEMENTS
    return max(1, elements // weight.shape[0])


def head_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Sum over counted positions of -log softmax(weight @ hidden)[target], in fp32.

    Positions whose target is ``IGNORE`` cost nothing: their logits are not computed.

    Args:
        hidden: (T, hidden), already normalised.
        weight: (vocabulary, hidden), the head.
        targets: (T,) int64.

    Returns:
        () fp32.
    """
    return _HeadCrossEntropy.apply(hidden, weight, targets)


class _HeadCrossEntropy(torch.autograd.Function):
    """Gradients are made in the forward pass, chunk by chunk, where the logits are at hand."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        ctx.tokens, ctx.counted = hidden.shape[0], (targets != IGNORE).nonzero().squeeze(-1)
        hidden, targets = hidden.index_select(0, ctx.counted), targets[ctx.counted]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        rows = chunk_rows(weight)
        for start in range(0, hidden.shape[0], rows):
            part, target = hidden[start : start + rows], targets[start : start + rows, None]
            logits = torch.log_softmax(torch.mm(part, weight.t()), -1, dtype=torch.float32)
            total -= logits.gather(1, target).sum()
            if grad_hidden is None and grad_weight is None:
                continue
            grad = logits.exp_()  # softmax - onehot
            grad.scatter_add_(1, target, grad.new_full((), -1.0).expand(target.shape))
            grad = grad.to(weight.dtype)
            if grad_hidden is not None:
                torch.mm(grad, weight, out=grad_hidden[start : start + rows])
            if grad_weight is not None:
                _add_product(grad_weight, grad, part)
        ctx.grads = (grad_hidden, grad_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        scale = grads[0]
        grad_hidden, grad_weight = ctx.grads
        del ctx.grads
        if grad_hidden is not None:
            whole = grad_hidden.new_zeros(ctx.tokens, grad_hidden.shape[1])
            grad_hidden = whole.index_copy_(0, ctx.counted, grad_hidden.mul_(scale))
        if grad_weight is not None:
            grad_weight = grad_weight.mul_(scale).to(ctx.weight_dtype)
        return grad_hidden, grad_weight, None


def _add_product(total: Tensor, grad: Tensor, part: Tensor) -> None:
    """total += grad^T @ part, in fp32."""
    if grad.dtype == torch.float32:
        total.addmm_(grad.t(), part)
    else:
        total += torch.mm(grad.t(), part)
