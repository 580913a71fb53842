"""From the Hugging Face config of each known family to its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openrecipes.architectures.blocks import Block, attention, latent_attention, mamba, mlp, moe
from openrecipes.architectures.nemotron_h import ATTENTION, MAMBA, MOE, NemotronHConfig
from openrecipes.errors import InputError

#: A size above this is no model's; it keeps products inside what JSON readers can hold.
_LARGEST = 2**31 - 1
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Shape:
    """A model's layers and what stands around them.

    Attributes:
        family: the config's ``model_type``.
        hidden: width of the model.
        vocabulary: rows of the embedding.
        tied: the output head is the embedding.
        layers: the blocks of each layer.
        mtp: weights of the multi-token-prediction layers, which these recipes do not train.
    """

    family: str
    hidden: int
    vocabulary: int
    tied: bool
    layers: tuple[tuple[Block, ...], ...]
    mtp: int = 0


def shape(config: Mapping[str, Any]) -> Shape:
    """The shape that a Hugging Face ``config.json`` describes.

    Raises:
        InputError: a family that is not known, or a field that is missing or wrong.
    """
    if not isinstance(config, Mapping):
        raise InputError("give a Hugging Face config", found=config, expected="a JSON object")
    family = config.get("model_type")
    reader = _FAMILIES.get(family) if isinstance(family, str) else None
    if reader is None:
        raise InputError(
            "give the config of a known family",
            field="model_type",
            found=family,
            expected=", ".join(sorted(_FAMILIES)),
        )
    return reader(config)


def _nemotron_h(config: Mapping[str, Any]) -> Shape:
    c = NemotronHConfig.from_hf(config)

    def block(letter: str) -> Block:
        if letter == MAMBA:
            return mamba(
                c.hidden_size,
                heads=c.mamba_num_heads,
                head_dim=c.mamba_head_dim,
                groups=c.n_groups,
                state=c.ssm_state_size,
                conv_kernel=c.conv_kernel,
                chunk=c.chunk_size,
                conv_bias=c.use_conv_bias,
                bias=c.use_bias,
            )
        if letter == ATTENTION:
            heads, kv_heads = c.num_attention_heads, c.num_key_value_heads
            return attention(c.hidden_size, heads, kv_heads, c.head_dim, bias=c.attention_bias)
        if letter == MOE:
            return moe(
                c.hidden_size,
                experts=c.n_routed_experts,
                top_k=c.num_experts_per_tok,
                inner=c.moe_intermediate_size,
                gated=False,
                shared_inner=c.moe_shared_expert_intermediate_size,
                latent=c.moe_latent_size,
                router_bias=c.n_routed_experts,
            )
        return mlp(c.hidden_size, c.intermediate_size, gated=False, bias=c.mlp_bias)

    mtp = c.num_nextn_predict_layers * _mtp(c.hidden_size, *map(block, c.mtp_pattern))
    layers = tuple((block(letter),) for letter in c.pattern)
    return Shape("nemotron_h", c.hidden_size, c.vocab_size, False, layers, mtp)


def _llama(config: Mapping[str, Any]) -> Shape:
    return _dense(config, head_norms=False)


def _qwen3(config: Mapping[str, Any]) -> Shape:
    return _dense(config, head_norms=True)


def _dense(config: Mapping[str, Any], *, head_norms: bool) -> Shape:
    hidden = _whole(config, "hidden_size")
    attend = _grouped_attention(config, head_norms=head_norms)
    inner, bias = _whole(config, "intermediate_size"), _switch(config, "mlp_bias")
    layer = (attend, mlp(hidden, inner, gated=True, bias=bias))
    return _shape(config, (layer,) * _layers(config))


def _qwen3_moe(config: Mapping[str, Any]) -> Shape:
    hidden = _whole(config, "hidden_size")
    experts = moe(
        hidden,
        experts=_whole(config, "num_experts"),
        top_k=_top_k(config, "num_experts"),
        inner=_whole(config, "moe_intermediate_size"),
        gated=True,
    )
    plain = mlp(hidden, _whole(config, "intermediate_size"), gated=True)
    attend = _grouped_attention(config, head_norms=True)
    period = _whole(config, "decoder_sparse_step", 1)
    dense_only = config.get("mlp_only_layers") or []
    if not isinstance(dense_only, list):
        raise _fault("mlp_only_layers", dense_only, "a list of layers")
    layers = tuple(
        (attend, plain if i in dense_only or (i + 1) % period else experts)
        for i in range(_layers(config))
    )
    return _shape(config, layers)


def _deepseek_v3(config: Mapping[str, Any]) -> Shape:
    hidden = _whole(config, "hidden_size")
    attend = latent_attention(
        hidden,
        _whole(config, "num_attention_heads"),
        q_rank=_whole(config, "q_lora_rank") if config.get("q_lora_rank") is not None else None,
        kv_rank=_whole(config, "kv_lora_rank"),
        nope_dim=_whole(config, "qk_nope_head_dim"),
        rope_dim=_whole(config, "qk_rope_head_dim"),
        value_dim=_whole(config, "v_head_dim"),
        bias=_switch(config, "attention_bias"),
    )
    inner, count = _whole(config, "moe_intermediate_size"), _whole(config, "n_routed_experts")
    experts = moe(
        hidden,
        experts=count,
        top_k=_top_k(config, "n_routed_experts"),
        inner=inner,
        gated=True,
        shared_inner=inner * _whole(config, "n_shared_experts", 0, least=0),
        router_bias=count,
    )
    plain = mlp(hidden, _whole(config, "intermediate_size"), gated=True)
    first = _whole(config, "first_k_dense_replace", 0, least=0)
    layers = tuple((attend, plain if i < first else experts) for i in range(_layers(config)))
    mtp = _whole(config, "num_nextn_predict_layers", 0, least=0) * _mtp(hidden, attend, experts)
    return _shape(config, layers, mtp)


def _gpt_oss(config: Mapping[str, Any]) -> Shape:
    hidden = _whole(config, "hidden_size")
    count = _whole(config, "num_local_experts")
    experts = moe(
        hidden,
        experts=count,
        top_k=_top_k(config, "num_local_experts"),
        inner=_whole(config, "intermediate_size"),
        gated=True,
        router_bias=count,
        expert_bias=True,
    )
    number = _layers(config)
    kinds = config.get("layer_types") or [
        "full_attention" if i % 2 else "sliding_attention" for i in range(number)
    ]
    if not isinstance(kinds, list) or len(kinds) != number:
        raise _fault("layer_types", kinds, f"{number} names")
    window = _whole(config, "sliding_window", 128)
    layers = tuple(
        (
            _grouped_attention(
                config, sinks=True, window=window if kind == "sliding_attention" else None
            ),
            experts,
        )
        for kind in kinds
    )
    return _shape(config, layers)


_FAMILIES: dict[str, Callable[[Mapping[str, Any]], Shape]] = {
    "nemotron_h": _nemotron_h,
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek_v3,
    "gpt_oss": _gpt_oss,
}


def _shape(config: Mapping[str, Any], layers: tuple[tuple[Block, ...], ...], mtp: int = 0) -> Shape:
    return Shape(
        str(config["model_type"]),
        _whole(config, "hidden_size"),
        _whole(config, "vocab_size"),
        _switch(config, "tie_word_embeddings"),
        layers,
        mtp,
    )


def _grouped_attention(
    config: Mapping[str, Any],
    *,
    head_norms: bool = False,
    sinks: bool = False,
    window: int | None = None,
) -> Block:
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    return attention(
        hidden,
        heads,
        _whole(config, "num_key_value_heads", heads),
        _whole(config, "head_dim", hidden // heads),
        bias=_switch(config, "attention_bias"),
        head_norms=head_norms,
        sinks=sinks,
        window=window,
    )


def _mtp(hidden: int, *blocks: Block) -> int:
    """Weights of one multi-token-prediction layer: two input norms, their joining projection, the
    blocks and a final norm; embedding and head are the model's own."""
    joining = 2 * hidden * hidden + 3 * hidden
    return joining + sum(block.dense + block.expert for block in blocks)


def _layers(config: Mapping[str, Any]) -> int:
    return _whole(config, "num_hidden_layers", most=_MOST_LAYERS)


def _top_k(config: Mapping[str, Any], experts: str) -> int:
    top_k, count = _whole(config, "num_experts_per_tok"), _whole(config, experts)
    if top_k > count:
        raise _fault("num_experts_per_tok", top_k, f"at most {experts} ({count})")
    return top_k


def _whole(
    config: Mapping[str, Any],
    field: str,
    default: int | None = None,
    *,
    least: int = 1,
    most: int = _LARGEST,
) -> int:
    value = config.get(field)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        found = "nothing" if value is None else value
        raise _fault(field, found, f"a whole number from {least} to {most}")
    return value


def _switch(config: Mapping[str, Any], field: str) -> bool:
    value = config.get(field) or False
    if not isinstance(value, bool):
        raise _fault(field, value, "true or false")
    return value


def _fault(field: str, found: Any, expected: str) -> InputError:
    return InputError("mend the config", field=field, found=found, expected=expected)
