"""Embedding and head cut by words over the ranks of ``tp``; cross entropy over the parts.

Each rank looks up the tokens whose words it holds, and the parts are summed on the way into the
first block. At the end each rank has the logits of its words for all tokens, chunk by chunk, never
all at once; two small sums over tp make a softmax of them. Under context parallelism a rank
embeds, and counts the loss of, its own stretch of the row.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openrecipes.engine.batch import IGNORE
from openrecipes.engine.loss import chunk_rows
from openrecipes.engine.model import Head, NemotronH
from openrecipes.engine.parallel.collectives import gather, highest_, sum_
from openrecipes.engine.parallel.mesh import Axis, Mesh
from openrecipes.engine.parallel.tensor_parallel import Region


def share_words(model: NemotronH, mesh: Mesh) -> None:
    """Make embedding and head, where this stage has them, work over tp and cp."""
    if mesh.tp.size == mesh.cp.size == 1:
        return
    if model.backbone.embeddings is not None:
        model.backbone.embeddings = SharedEmbedding(model.backbone.embeddings, mesh)
    if model.lm_head is not None:
        model.lm_head = SharedHead(model.lm_head, mesh)


def own_stretch(tokens: Tensor, axis: Axis) -> Tensor:
    """This rank's equal part of the first dimension, whose size the axis divides."""
    share = tokens.shape[0] // axis.size
    return tokens[axis.rank * share : (axis.rank + 1) * share]


class SharedEmbedding(nn.Embedding):
    """Looks up this rank's words; called with the ids of all tokens, as `nn.Embedding` is."""

    def __init__(self, embedding: nn.Embedding, mesh: Mesh) -> None:
        words, size = embedding.weight.shape
        super().__init__(words, size, _weight=embedding.weight.detach())
        self.weight = embedding.weight
        self.mesh = mesh

    def forward(self, input: Tensor) -> Tensor:
        """(T,) ids of the whole micro-batch to the rank's hidden."""
        local, held = _own_words(own_stretch(input, self.mesh.cp), self.weight, self.mesh.tp)
        rows = F.embedding(local, self.weight).masked_fill(~held.unsqueeze(-1), 0)
        return Region.of(self.mesh).leave(rows)


class SharedHead(Head):
    """Logits of this rank's words; called as `Head` is, with the targets of all tokens."""

    def __init__(self, head: Head, mesh: Mesh) -> None:
        nn.Module.__init__(self)
        self.weight = head.weight
        self.mesh = mesh

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """The rank's hidden to the summed loss of its stretch of the row, the same on all of tp.

        Without targets: to all logits (T, vocabulary), without gradient, for probes.
        """
        hidden = Region.of(self.mesh).enter(hidden)
        if targets is None:
            return self._logits(hidden)
        targets = own_stretch(targets, self.mesh.cp)
        if self.mesh.tp.size == 1:
            return super().forward(hidden, targets)
        return _CrossEntropy.apply(hidden, self.weight, targets, self.mesh.tp)

    def _logits(self, hidden: Tensor) -> Tensor:
        part = F.linear(hidden, self.weight)
        words = part.new_empty(self.mesh.tp.size, *part.shape)
        words[self.mesh.tp.rank] = part
        gather(words.flatten(0, 1), part, self.mesh.tp)
        stretch = words.transpose(0, 1).flatten(1)
        whole = stretch.new_empty(self.mesh.cp.size, *stretch.shape)
        whole[self.mesh.cp.rank] = stretch
        gather(whole.flatten(0, 1), stretch, self.mesh.cp)
        return whole.flatten(0, 1)


def _own_words(ids: Tensor, weight: Tensor, axis: Axis) -> tuple[Tensor, Tensor]:
    """Row numbers in this rank's part (0 where the word is not in it), and whether it is."""
    words = weight.shape[0]
    local = ids - axis.rank * words
    held = (local >= 0) & (local < words)
    return local.masked_fill(~held, 0), held


class _CrossEntropy(torch.autograd.Function):
    """As `engine.loss`: gradients are made in the forward pass, where the logits are at hand."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, axis: Axis) -> Tensor:
        train = any(ctx.needs_input_grad[:2])
        ctx.tokens, ctx.counted = hidden.shape[0], (targets != IGNORE).nonzero().squeeze(-1)
        hidden, targets = hidden.index_select(0, ctx.counted), targets[ctx.counted]
        grad_hidden = torch.empty_like(hidden) if train else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if train else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        rows = chunk_rows(weight)
        for start in range(0, hidden.shape[0], rows):
            part = hidden[start : start + rows]
            target, held = _own_words(targets[start : start + rows], weight, axis)
            target, held = target.unsqueeze(-1), held.unsqueeze(-1)
            logits = torch.mm(part, weight.t()).float()
            logits -= highest_(logits.amax(-1, keepdim=True), axis)
            of_target = logits.gather(1, target).masked_fill_(~held, 0)
            exponent = logits.exp_()
            sums, of_target = sum_(torch.stack([exponent.sum(-1, keepdim=True), of_target]), axis)
            total += (sums.log() - of_target).sum()
            if grad_hidden is None or grad_weight is None:
                continue
            grad = exponent.div_(sums)  # softmax - onehot
            grad.scatter_add_(1, target, -held.to(grad.dtype))
            grad = grad.to(weight.dtype)
            torch.mm(grad, weight, out=grad_hidden[start : start + rows])
            grad_weight += torch.mm(grad.t(), part)
        ctx.grads = (grad_hidden, grad_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        grad_hidden, grad_weight = ctx.grads
        del ctx.grads
        whole = grad_hidden.new_zeros(ctx.tokens, grad_hidden.shape[1])
        whole.index_copy_(0, ctx.counted, grad_hidden.mul_(grads[0]))
        return whole, grad_weight.mul_(grads[0]).to(ctx.weight_dtype), None, None
