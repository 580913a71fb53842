"""What one block of a transformer or hybrid layer holds and costs, from its sizes alone.

A block counts its weights in the buckets that parallelism splits differently (dense, routed
experts), the matrix weights that one token meets (``active``), and per token: the forward FLOPs
that do not come from weights, and the bytes that training keeps for the backward pass.

Kept activations are those of a fused-attention implementation in a 2-byte type: each norm's input
and output, each matrix product's input, what the activation function needs, and log-sum-exp and
router scores in fp32. An engine's own buffers come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of one kept value in bf16 or fp16, and in fp32.
HALF, FULL = 2, 4


@dataclass(frozen=True)
class Block:
    """One block: an attention, a Mamba-2 mixer, an MLP or a mixture of experts.

    Attributes:
        kind: ``attention``, ``mamba``, ``mlp`` or ``moe``.
        matrices: dense weights with two or more dimensions.
        vectors: norms, biases and other dense weights with one dimension.
        expert_matrices: matrix weights of all routed experts.
        expert_vectors: biases of all routed experts.
        active: matrix weights that one token meets, routed experts counted top-k.
        attended: query-key plus value width over all heads; 0 without attention.
        window: positions that a token attends to at most; None for all before it.
        scan_flops: forward FLOPs per token of the state-space recurrence.
        activation_bytes: kept per token for the backward pass, without recompute.
    """

    kind: str
    matrices: int
    vectors: int
    active: int
    activation_bytes: int
    expert_matrices: int = 0
    expert_vectors: int = 0
    attended: int = 0
    window: int | None = None
    scan_flops: int = 0

    @property
    def dense(self) -> int:
        """Weights outside the routed experts."""
        return self.matrices + self.vectors

    @property
    def expert(self) -> int:
        """Weights of the routed experts."""
        return self.expert_matrices + self.expert_vectors

    def quadratic_flops(self, sequence: int) -> float:
        """Forward FLOPs per token of query x key and score x value, causal, in one document.

        2 FLOPs per multiply-add, width ``attended``, times the mean number of positions that a
        token attends to: (L + 1) / 2 for a document of L tokens without a window.
        """
        return 2 * self.attended * mean_attended(sequence, self.window)


def mean_attended(sequence: int, window: int | None) -> float:
    """Mean over a document of ``sequence`` tokens of the positions that a token attends to."""
    if window is None or window >= sequence:
        return (sequence + 1) / 2
    # The first `window` tokens see 1..window positions, the others `window` each.
    return (window * (window + 1) / 2 + (sequence - window) * window) / sequence


def attention(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    bias: bool = False,
    head_norms: bool = False,
    sinks: bool = False,
    window: int | None = None,
) -> Block:
    """Grouped-query attention with the norm before it."""
    q, kv = heads * head_dim, kv_heads * head_dim
    matrices = 2 * hidden * q + 2 * hidden * kv
    biases = q + 2 * kv + hidden if bias else 0
    vectors = hidden + biases + (2 * head_dim if head_norms else 0) + (heads if sinks else 0)
    kept = 2 * hidden + (q + 2 * kv) + q + (q + kv if head_norms else 0)
    return Block(
        "attention",
        matrices,
        vectors,
        active=matrices,
        activation_bytes=HALF * kept + FULL * heads,
        attended=2 * q,
        window=window,
    )


def latent_attention(
    hidden: int,
    heads: int,
    *,
    q_rank: int | None,
    kv_rank: int,
    nope_dim: int,
    rope_dim: int,
    value_dim: int,
    bias: bool = False,
) -> Block:
    """Multi-head latent attention (MLA): queries, keys and values through low-rank latents."""
    qk_dim = nope_dim + rope_dim
    q = heads * qk_dim
    down = (hidden * q_rank if q_rank else 0) + hidden * (kv_rank + rope_dim)
    up = (q_rank or hidden) * q + kv_rank * heads * (nope_dim + value_dim)
    out = heads * value_dim * hidden
    biases = (q_rank or 0) + kv_rank + rope_dim + hidden if bias else 0
    latents = 2 * (q_rank or 0) + 2 * kv_rank + rope_dim  # before and after their norms
    kept = 2 * hidden + latents + 2 * q + 2 * heads * value_dim
    matrices = down + up + out
    return Block(
        "attention",
        matrices,
        vectors=hidden + (q_rank or 0) + kv_rank + biases,
        active=matrices,
        activation_bytes=HALF * kept + FULL * heads,
        attended=heads * (qk_dim + value_dim),
    )


def mlp(hidden: int, inner: int, *, gated: bool, bias: bool = False) -> Block:
    """Dense MLP with the norm before it; gated has three matrices, else two."""
    matrices = (3 if gated else 2) * hidden * inner
    biases = (2 if gated else 1) * inner + hidden if bias else 0
    return Block(
        "mlp",
        matrices,
        vectors=hidden + biases,
        active=matrices,
        activation_bytes=HALF * (2 * hidden + (3 if gated else 2) * inner),
    )


def moe(
    hidden: int,
    *,
    experts: int,
    top_k: int,
    inner: int,
    gated: bool,
    shared_inner: int = 0,
    latent: int | None = None,
    router_bias: int = 0,
    expert_bias: bool = False,
) -> Block:
    """Mixture of experts with the norm before it.

    Args:
        hidden: width of the model.
        experts: routed experts.
        top_k: routed experts that a token goes to.
        inner: width inside a routed expert.
        gated: three matrices per expert, else two.
        shared_inner: width inside the shared expert; 0 for none.
        latent: width that routed experts work in, None for the model's.
        router_bias: biases of the router, correction bias included.
        expert_bias: routed experts have biases.
    """
    wide = latent or hidden
    products = 3 if gated else 2
    one_expert = products * wide * inner
    dense = (
        experts * hidden + products * hidden * shared_inner + (2 * hidden * latent if latent else 0)
    )
    biases = (2 if gated else 1) * inner + wide if expert_bias else 0
    routed = top_k * (2 * wide + products * inner)  # an expert's input, inside, output
    kept = 2 * hidden + routed + products * shared_inner + (2 * latent if latent else 0)
    return Block(
        "moe",
        dense,
        vectors=hidden + router_bias,
        active=dense + top_k * one_expert,
        activation_bytes=HALF * kept + FULL * experts,
        expert_matrices=experts * one_expert,
        expert_vectors=experts * biases,
    )


def mamba(
    hidden: int,
    *,
    heads: int,
    head_dim: int,
    groups: int,
    state: int,
    conv_kernel: int,
    chunk: int,
    conv_bias: bool = True,
    bias: bool = False,
) -> Block:
    """Mamba-2 mixer with the norm before it.

    The recurrence costs per token and channel ``state`` three multiply-adds: decay and input of
    the state, and its read-out; a chunked scan does more work in faster operations.
    """
    inner = heads * head_dim
    conv = inner + 2 * groups * state
    projected = inner + conv + heads
    matrices = hidden * projected + conv * conv_kernel + inner * hidden
    biases = (conv if conv_bias else 0) + (projected + hidden if bias else 0)
    kept = 2 * hidden + projected + conv + 2 * inner
    states = FULL * heads * head_dim * state // chunk  # one state per chunk
    return Block(
        "mamba",
        matrices,
        vectors=hidden + inner + 3 * heads + biases,
        active=matrices,
        activation_bytes=HALF * kept + states,
        scan_flops=6 * inner * state,
    )
