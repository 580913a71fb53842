"""A model in numbers: parameters, active parameters, FLOPs and kept bytes, per layer and in total.

Active parameters (N) are the matrix weights that take part in one token's forward pass: routed
experts counted top-k, the convolution included, the input embedding left out (a look-up), the
output head kept; norms, biases and other vectors are not counted, nor are multi-token-prediction
layers, which recipes train without.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from openrecipes.architectures.blocks import HALF, Block
from openrecipes.architectures.families import shape

#: FLOPs of a multiply-add, and of the backward pass against the forward one.
_MULTIPLY_ADD, _BACKWARD = 2, 2


@dataclass(frozen=True)
class Layer:
    """One layer: its blocks, and their sums."""

    index: int
    blocks: tuple[Block, ...]
    hidden: int

    @property
    def kind(self) -> str:
        """Kinds of its blocks, such as ``mamba`` or ``attention+moe``."""
        return "+".join(block.kind for block in self.blocks)

    @property
    def dense(self) -> int:
        """Weights outside the routed experts."""
        return sum(block.dense for block in self.blocks)

    @property
    def expert(self) -> int:
        """Weights of all routed experts."""
        return sum(block.expert for block in self.blocks)

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.dense + self.expert

    @property
    def active_parameters(self) -> int:
        """Matrix weights that one token meets."""
        return sum(block.active for block in self.blocks)

    @property
    def activation_bytes(self) -> int:
        """Bytes kept per token for the backward pass, in a 2-byte type, without recompute."""
        return sum(block.activation_bytes for block in self.blocks)

    @property
    def activation_bytes_full_recompute(self) -> int:
        """Bytes kept per token when the whole layer is recomputed: its input."""
        return HALF * self.hidden

    def forward_flops(self, sequence: int | None = None) -> float:
        """Forward FLOPs per token; with a ``sequence`` length, attention scores and scan too."""
        return sum(_forward(block, sequence) for block in self.blocks)

    def as_json(self, sequence: int) -> dict[str, Any]:
        """The layer as ``model describe --json`` prints it."""
        return {
            "index": self.index,
            "kind": self.kind,
            "parameters": self.parameters,
            "dense": self.dense,
            "expert": self.expert,
            "active_parameters": self.active_parameters,
            "forward_flops_per_token": round(self.forward_flops()),
            "forward_flops_per_token_with_attention": round(self.forward_flops(sequence)),
            "activation_bytes_per_token": self.activation_bytes,
            "activation_bytes_per_token_full_recompute": self.activation_bytes_full_recompute,
        }


@dataclass(frozen=True)
class Flops:
    """FLOPs per token; ``recompute`` is the forward work that the backward pass repeats."""

    forward: float
    backward: float
    recompute: float

    @property
    def total(self) -> float:
        """Forward, backward and recompute."""
        return self.forward + self.backward + self.recompute


@dataclass(frozen=True)
class Description:
    """A model in numbers.

    Attributes:
        family: the config's ``model_type``.
        hidden: width of the model.
        embedding: weights of the input embedding.
        head: weights of the output head; 0 where it is the embedding.
        head_active: matrix weights of the head that one token meets.
        final_norm: weights of the norm before the head.
        layers: the layers in order.
        mtp_parameters: weights of multi-token-prediction layers; in no other figure.
    """

    family: str
    hidden: int
    embedding: int
    head: int
    head_active: int
    final_norm: int
    layers: tuple[Layer, ...]
    mtp_parameters: int

    @property
    def dense(self) -> int:
        """Weights of all layers and the final norm outside routed experts, embedding and head."""
        return sum(layer.dense for layer in self.layers) + self.final_norm

    @property
    def expert(self) -> int:
        """Weights of all routed experts."""
        return sum(layer.expert for layer in self.layers)

    @property
    def parameters(self) -> int:
        """All weights, multi-token prediction left out."""
        return self.dense + self.expert + self.embedding + self.head

    @property
    def active_parameters(self) -> int:
        """N: matrix weights that take part in one token's forward pass."""
        return sum(layer.active_parameters for layer in self.layers) + self.head_active

    @property
    def flops_per_token(self) -> int:
        """6 x N, the FLOPs per token that MFU counts: no attention scores, no recompute."""
        return _MULTIPLY_ADD * (1 + _BACKWARD) * self.active_parameters

    def flops(self, sequence: int | None = None, recompute: Collection[str] | str = ()) -> Flops:
        """FLOPs per token.

        Args:
            sequence: document length; where given, attention scores (causal) and the scan count.
            recompute: ``full`` for every layer, or the kinds of blocks whose forward pass is
                repeated (``moe``, ``attention``, ``mlp``, ``mamba``).
        """
        layers = sum(layer.forward_flops(sequence) for layer in self.layers)
        forward = layers + _MULTIPLY_ADD * self.head_active
        if recompute == "full":
            again = layers
        else:
            kinds = {recompute} if isinstance(recompute, str) else set(recompute)
            blocks = (block for layer in self.layers for block in layer.blocks)
            again = sum(_forward(block, sequence) for block in blocks if block.kind in kinds)
        return Flops(forward, _BACKWARD * forward, again)

    def as_json(self, sequence: int = 8192) -> dict[str, Any]:
        """The description as ``model describe --json`` prints it."""
        plain, attended = self.flops(), self.flops(sequence, "full")
        return {
            "family": self.family,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "flops_per_token": self.flops_per_token,
            "split": {
                "dense": self.dense,
                "expert": self.expert,
                "embedding": self.embedding,
                "head": self.head,
            },
            "mtp_parameters": self.mtp_parameters,
            "flops": {
                "sequence": sequence,
                "forward": round(plain.forward),
                "backward": round(plain.backward),
                "forward_with_attention": round(attended.forward),
                "backward_with_attention": round(attended.backward),
                "full_recompute": round(self.flops(recompute="full").recompute),
                "full_recompute_with_attention": round(attended.recompute),
            },
            "activation_bytes_per_token": sum(layer.activation_bytes for layer in self.layers),
            "activation_bytes_per_token_full_recompute": sum(
                layer.activation_bytes_full_recompute for layer in self.layers
            ),
            "layers": [layer.as_json(sequence) for layer in self.layers],
        }


def describe(config: Mapping[str, Any]) -> Description:
    """Count a model from its Hugging Face config.

    Raises:
        InputError: a family that is not known, or a field that is missing or wrong.
    """
    found = shape(config)
    table = found.vocabulary * found.hidden
    return Description(
        family=found.family,
        hidden=found.hidden,
        embedding=table,
        head=0 if found.tied else table,
        head_active=table,
        final_norm=found.hidden,
        layers=tuple(Layer(i, blocks, found.hidden) for i, blocks in enumerate(found.layers)),
        mtp_parameters=found.mtp,
    )


def _forward(block: Block, sequence: int | None) -> float:
    weights = _MULTIPLY_ADD * block.active
    if sequence is None:
        return weights
    return weights + block.quadratic_flops(sequence) + block.scan_flops
