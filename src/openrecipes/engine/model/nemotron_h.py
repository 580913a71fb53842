"""NemotronH on one process. What is notable about it:

- layers of four kinds in a fixed pattern, each `hidden + mixer(norm(hidden))`: Mamba-2 (M), mixture
  of experts (E), attention (*), dense MLP (-)
- attention is grouped-query and has no positions: order is known from the Mamba layers
- Mamba-2 as chunked matrix products, its state in fp32; the gated norm works in groups
- the router is a sigmoid in fp32; a frozen correction bias affects the choice, not the weights
- experts are squared ReLU without a gate; Super's and Ultra's work in a narrower latent space
- no dropout, untied embedding and head, RMS norms in fp32
- nothing crosses a segment: attention, convolution and state stop at its borders

There is no parallelism here and no collective; `engine.parallel` adds both from outside. A pipeline
stage is the same module with fewer layers, and without embedding or head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openrecipes.architectures.nemotron_h import ATTENTION, MAMBA, MOE, NemotronHConfig
from openrecipes.engine.batch import IGNORE, Batch, Segments
from openrecipes.engine.loss import head_cross_entropy
from openrecipes.engine.model.attention import Attention
from openrecipes.engine.model.mamba import Mamba2Mixer
from openrecipes.engine.model.moe import MLP, MoE
from openrecipes.engine.model.norm import RMSNorm


class Block(nn.Module):
    """One layer of the pattern: hidden + mixer(norm(hidden))."""

    def __init__(self, config: NemotronHConfig, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mixer = _mixer(config, kind)

    def forward(self, hidden: Tensor, segments: Segments) -> Tensor:
        """(T, hidden) to (T, hidden)."""
        return hidden + self.mixer(self.norm(hidden), segments)


def _mixer(config: NemotronHConfig, kind: str) -> nn.Module:
    if kind == MAMBA:
        return Mamba2Mixer(config)
    if kind == MOE:
        return MoE(config)
    if kind == ATTENTION:
        return Attention(config)
    return MLP(config, config.intermediate_size)


class Head(nn.Module):
    """The output projection; with targets, the loss, whose logits never exist all at once."""

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """(T, hidden) to logits (T, vocabulary), or to the summed loss () of targets (T,)."""
        if targets is None:
            return nn.functional.linear(hidden, self.weight)
        return head_cross_entropy(hidden, self.weight, targets)


class Backbone(nn.Module):
    """Embedding, layers, final norm."""

    def __init__(self, config: NemotronHConfig, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size) if first else None
        self.layers = nn.ModuleList(Block(config, config.pattern[i]) for i in layers)
        self.norm_f = RMSNorm(config.hidden_size, config.layer_norm_epsilon) if last else None


def keeps_fp32(name: str) -> bool:
    """Whether a parameter stays fp32 in a bf16 model: the router, whose scores are fp32."""
    return name.endswith((".gate.weight", ".gate.e_score_correction_bias"))


class NemotronH(nn.Module):
    """The language model, or one pipeline stage of it.

    Args:
        config: the model's shape.
        layers: the layers that this stage holds, all by default. The stage with layer 0 has the
            embedding, the one with the last layer the final norm and the head.

    Weights are uninitialised: see `initialise` and `engine.weights`.
    """

    def __init__(self, config: NemotronHConfig, layers: range | None = None) -> None:
        super().__init__()
        self.config = config
        self.stage_layers = range(len(config.pattern)) if layers is None else layers
        first = self.stage_layers.start == 0
        last = self.stage_layers.stop == len(config.pattern)
        self.backbone = Backbone(config, self.stage_layers, first=first, last=last)
        self.lm_head = Head(config) if last else None

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The whole model's loss.

        Returns:
            the loss summed over supervised tokens, () fp32, and their number, () int64.
        """
        return self.loss(self.run(self.embed(batch), batch.segments()), batch)

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """(1, T, vocabulary) in fp32. For tests and probes: training never makes them."""
        return self.predict(self.run(self.embed(batch), batch.segments()))

    def to_precision(self, dtype: torch.dtype) -> NemotronH:
        """Cast the parameters to fp32 or bf16, in place; what `keeps_fp32` names stays fp32.

        In bf16 the norms, the router's scores, dt and the SSM state are still computed in fp32.
        """
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            tensor.data = tensor.data.to(torch.float32 if keeps_fp32(name) else dtype)
        return self

    def embed(self, batch: Batch) -> Tensor:
        """The first stage's input: (T, hidden)."""
        if self.backbone.embeddings is None:
            raise ValueError("this stage has no embedding")
        return self.backbone.embeddings(batch.input_ids[0])

    def run(self, hidden: Tensor, segments: Segments) -> Tensor:
        """This stage's layers: (T, hidden) to (T, hidden)."""
        for layer in self.backbone.layers:
            hidden = layer(hidden, segments)
        return hidden

    def loss(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The last stage's end: (T, hidden) to the loss sum and the supervised tokens."""
        norm, head = self._end()
        targets = batch.targets()
        return head(norm(hidden), targets), (targets != IGNORE).sum()

    @torch.no_grad()
    def predict(self, hidden: Tensor) -> Tensor:
        """The last stage's end without targets: (T, hidden) to logits as `logits` gives them."""
        norm, head = self._end()
        return head(norm(hidden)).float()[None]

    def _end(self) -> tuple[nn.Module, nn.Module]:
        if self.backbone.norm_f is None or self.lm_head is None:
            raise ValueError("this stage has no head")
        return self.backbone.norm_f, self.lm_head
