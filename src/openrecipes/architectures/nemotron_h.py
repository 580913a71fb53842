"""NemotronH's configuration, read from any form of its Hugging Face ``config.json``.

The layer pattern comes as letters (``hybrid_override_pattern``) or as a list of names
(``layers_block_type``, in two spellings); an infinite time-step limit comes as a number, as
``Infinity`` or as ``{"__float__": "Infinity"}``. Only this module knows about these forms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openrecipes.errors import InputError

MAMBA, MOE, ATTENTION, MLP = "M", "E", "*", "-"

_LETTER = {
    "mamba": MAMBA,
    "linear_attention": MAMBA,
    "attention": ATTENTION,
    "full_attention": ATTENTION,
    "moe": MOE,
    "mlp": MLP,
}

# Older names of fields, as transformers also accepts them.
_OLDER_NAMES = {
    "n_groups": ("mamba_n_groups",),
    "conv_kernel": ("mamba_d_conv",),
    "time_step_min": ("mamba_dt_min",),
    "time_step_max": ("mamba_dt_max",),
    "time_step_limit": ("mamba_dt_limit",),
    "time_step_floor": ("mamba_dt_init_floor",),
    "use_conv_bias": ("mamba_conv_bias",),
    "chunk_size": ("mamba_chunk_size",),
    "head_dim": ("attention_head_dim",),
    "n_routed_experts": ("num_local_experts",),
    "layers_block_type": ("layer_types",),
}

# What the engine does not compute; any other value would silently be another model.
_FIXED: dict[str, tuple[Any, ...]] = {
    "mamba_hidden_act": ("silu",),
    "mlp_hidden_act": ("relu2",),
    "tie_word_embeddings": (False,),
    "sliding_window": (None,),
    "residual_in_fp32": (False,),
    "attention_dropout": (0, 0.0),
    "hidden_dropout": (0, 0.0),
    "n_shared_experts": (1,),
}


@dataclass(frozen=True)
class NemotronHConfig:
    """The shape of one NemotronH model; field names are those of the Hugging Face config.

    Fields of layer kinds that the pattern does not hold are 0.

    Attributes:
        pattern: one letter per layer: ``M`` Mamba-2, ``E`` mixture of experts, ``*`` attention,
            ``-`` dense MLP.
        time_step_limit: the bounds that dt is limited to in the scan; ``(0, inf)`` is no limit.
        moe_latent_size: width that routed experts work in; None is ``hidden_size``.
        mtp_pattern: the layer letters of one multi-token-prediction block. Its weights are carried
            along, never trained.
    """

    vocab_size: int
    hidden_size: int
    pattern: str
    layer_norm_epsilon: float
    initializer_range: float
    rescale_prenorm_residual: bool
    # M
    mamba_num_heads: int
    mamba_head_dim: int
    n_groups: int
    ssm_state_size: int
    conv_kernel: int
    chunk_size: int
    use_conv_bias: bool
    use_bias: bool
    time_step_limit: tuple[float, float]
    time_step_min: float
    time_step_max: float
    time_step_floor: float
    # *
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    attention_bias: bool
    # -
    intermediate_size: int
    mlp_bias: bool
    # E
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    moe_shared_expert_intermediate_size: int
    moe_latent_size: int | None
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    # Multi-token prediction
    num_nextn_predict_layers: int
    mtp_pattern: str

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers, multi-token prediction not counted."""
        return len(self.pattern)

    @property
    def mamba_inner_size(self) -> int:
        """Width of a Mamba layer's x and z: heads times head size."""
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def expert_size(self) -> int:
        """Width that routed experts read and write."""
        return self.moe_latent_size or self.hidden_size

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> NemotronHConfig:
        """Read the dictionary of a Hugging Face ``config.json``.

        Raises:
            InputError: a field is missing, of the wrong kind, contradicts another one, or asks for
                something that NemotronH checkpoints do not have (dropout, tied embeddings, ...).
        """
        if not isinstance(config, Mapping):
            raise InputError("give a Hugging Face config", found=config, expected="a JSON object")
        read = _Reader(config)
        if config.get("model_type") != "nemotron_h":
            raise _fault("model_type", config.get("model_type"), "nemotron_h")
        for field, allowed in _FIXED.items():
            value = config.get(field, allowed[0])
            if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
                raise _fault(field, value, str(allowed[0]))

        pattern = read.pattern()
        has_mamba, has_moe = MAMBA in pattern, MOE in pattern
        has_attention, has_mlp = ATTENTION in pattern, MLP in pattern
        nextn = read.whole("num_nextn_predict_layers", 0, least=0)
        heads = read.whole("num_attention_heads", used=has_attention)
        built = cls(
            vocab_size=read.whole("vocab_size"),
            hidden_size=read.whole("hidden_size"),
            pattern=pattern,
            layer_norm_epsilon=read.real("layer_norm_epsilon", 1e-5),
            initializer_range=read.real("initializer_range", 0.02),
            rescale_prenorm_residual=read.switch("rescale_prenorm_residual", True),
            mamba_num_heads=read.whole("mamba_num_heads", used=has_mamba),
            mamba_head_dim=read.whole("mamba_head_dim", used=has_mamba),
            n_groups=read.whole("n_groups", used=has_mamba),
            ssm_state_size=read.whole("ssm_state_size", used=has_mamba),
            conv_kernel=read.whole("conv_kernel", 4, used=has_mamba),
            chunk_size=read.whole("chunk_size", 128, used=has_mamba),
            use_conv_bias=read.switch("use_conv_bias", True),
            use_bias=read.switch("use_bias", False),
            time_step_limit=read.time_step_limit(),
            time_step_min=read.real("time_step_min", 0.001),
            time_step_max=read.real("time_step_max", 0.1),
            time_step_floor=read.real("time_step_floor", 1e-4),
            num_attention_heads=heads,
            num_key_value_heads=read.whole("num_key_value_heads", heads, used=has_attention),
            head_dim=read.whole("head_dim", used=has_attention),
            attention_bias=read.switch("attention_bias", False),
            intermediate_size=read.whole("intermediate_size", used=has_mlp),
            mlp_bias=read.switch("mlp_bias", False),
            n_routed_experts=read.whole("n_routed_experts", used=has_moe),
            num_experts_per_tok=read.whole("num_experts_per_tok", used=has_moe),
            moe_intermediate_size=read.whole("moe_intermediate_size", used=has_moe),
            moe_shared_expert_intermediate_size=read.whole(
                "moe_shared_expert_intermediate_size", used=has_moe
            ),
            moe_latent_size=read.latent_size() if has_moe else None,
            n_group=read.whole("n_group", 1, used=has_moe),
            topk_group=read.whole("topk_group", 1, used=has_moe),
            norm_topk_prob=read.switch("norm_topk_prob", True),
            routed_scaling_factor=read.real("routed_scaling_factor", 1.0),
            num_nextn_predict_layers=nextn,
            mtp_pattern=read.mtp_pattern() if nextn else "",
        )
        built._check()
        return built

    def _check(self) -> None:
        """Relations between fields, each told with the field to change."""
        if self.pattern.count(MAMBA):
            _divides("n_groups", self.n_groups, "mamba_num_heads", self.mamba_num_heads)
        if self.pattern.count(ATTENTION):
            kv = self.num_key_value_heads
            _divides("num_key_value_heads", kv, "num_attention_heads", self.num_attention_heads)
        if self.pattern.count(MOE):
            experts = self.n_routed_experts
            _divides("n_group", self.n_group, "n_routed_experts", experts)
            if self.topk_group > self.n_group:
                raise _fault("topk_group", self.topk_group, f"<= n_group ({self.n_group})")
            eligible = experts // self.n_group * self.topk_group
            if self.num_experts_per_tok > eligible:
                found = self.num_experts_per_tok
                raise _fault("num_experts_per_tok", found, f"<= {eligible} eligible experts")
            if self.n_group > 1 and experts // self.n_group < 2:
                raise _fault("n_group", self.n_group, "groups of at least 2 experts")


class _Reader:
    """Typed reads of a config; each fault names its field."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def raw(self, field: str) -> Any:
        """A field's value under its name or an older one; None where absent."""
        for name in (field, *_OLDER_NAMES.get(field, ())):
            if self.config.get(name) is not None:
                return self.config[name]
        return None

    def whole(
        self, field: str, default: int | None = None, *, used: bool = True, least: int = 1
    ) -> int:
        """A whole number of at least ``least``; 0 where the pattern does not use the field."""
        if not used:
            return 0
        value = self.raw(field)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise _fault(field, "nothing" if value is None else value, f"an integer >= {least}")
        return value

    def real(self, field: str, default: float) -> float:
        """A finite number above 0."""
        value = self.raw(field)
        value = default if value is None else value
        if not _is_number(value) or not math.isfinite(value) or value <= 0:
            raise _fault(field, value, "a number > 0")
        return float(value)

    def switch(self, field: str, default: bool) -> bool:
        """true or false."""
        value = self.raw(field)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise _fault(field, value, "true or false")
        return value

    def latent_size(self) -> int | None:
        """Width of the latent expert space, None where the model has none."""
        return None if self.raw("moe_latent_size") is None else self.whole("moe_latent_size")

    def pattern(self) -> str:
        """The layers' letters, from whichever form the config holds."""
        letters, names = self.config.get("hybrid_override_pattern"), self.raw("layers_block_type")
        if letters is None and names is None:
            raise _fault("hybrid_override_pattern", "nothing", "letters M E * -")
        pattern = (
            _from_letters("hybrid_override_pattern", letters)
            if letters is not None
            else _from_names("layers_block_type", names)
        )
        if letters is not None and names is not None:
            other = _from_names("layers_block_type", names)
            if other != pattern:
                raise _fault("layers_block_type", other, f"the same layers as {pattern}")
        layers = self.config.get("num_hidden_layers")
        if layers is not None and layers != len(pattern):
            raise _fault("num_hidden_layers", layers, f"{len(pattern)}, the pattern's length")
        return pattern

    def mtp_pattern(self) -> str:
        """The letters of a multi-token-prediction block; attention then experts by default."""
        if (letters := self.config.get("mtp_hybrid_override_pattern")) is not None:
            return _from_letters("mtp_hybrid_override_pattern", letters)
        names = self.config.get("mtp_layers_block_type")
        return "*E" if names is None else _from_names("mtp_layers_block_type", names)

    def time_step_limit(self) -> tuple[float, float]:
        """The bounds of dt; absent means none (not ``time_step_min``)."""
        value = self.raw("time_step_limit")
        if value is None:
            return (0.0, math.inf)
        expected = "two numbers, low <= high"
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise _fault("time_step_limit", value, expected)
        low, high = (_number_or_infinity(bound) for bound in value)
        if low is None or high is None or not 0 <= low <= high:
            raise _fault("time_step_limit", value, expected)
        return (low, high)


def _from_letters(field: str, letters: Any) -> str:
    if not isinstance(letters, str) or not letters or set(letters) - set("ME*-"):
        raise _fault(field, letters, "letters M E * -")
    return letters


def _from_names(field: str, names: Any) -> str:
    expected = f"a list of {', '.join(_LETTER)}"
    if not isinstance(names, list | tuple) or not names:
        raise _fault(field, names, expected)
    for name in names:
        if not isinstance(name, str) or name not in _LETTER:
            raise _fault(field, name, expected)
    return "".join(_LETTER[name] for name in names)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_or_infinity(value: Any) -> float | None:
    if isinstance(value, Mapping):
        value = value.get("__float__")
    if isinstance(value, str):
        return math.inf if value in ("Infinity", "inf") else None
    return float(value) if _is_number(value) and not math.isnan(value) else None


def _divides(field: str, value: int, of: str, whole: int) -> None:
    if whole % value:
        raise _fault(field, value, f"a divisor of {of} ({whole})")


def _fault(field: str, found: Any, expected: str) -> InputError:
    return InputError(
        "correct the model's config.json", field=field, found=found, expected=expected
    )
