"""Counting models: published totals, transformers' own counts, FLOPs, kept bytes."""

import math
from typing import Any

import pytest

from openrecipes.architectures.blocks import mean_attended
from openrecipes.architectures.configs import find, models
from openrecipes.architectures.describe import describe
from openrecipes.errors import InputError

#: Name, all parameters as published (without multi-token prediction), active parameters.
COUNTS = [
    ("Nemotron-3-Nano-30B-A3B", 31_577_940_288, 3_227_369_472),
    ("Nemotron-3-Super-120B-A12B", 120_668_707_840, 12_232_228_864),
    ("Nemotron-3-Ultra-550B-A55B", 549_308_993_536, 54_982_475_776),
    ("Qwen3-30B-A3B", 30_532_122_624, 3_041_656_832),
    ("Qwen3-235B-A22B", 235_093_634_560, 21_567_635_456),
    ("DeepSeek-V3", 671_026_419_200, 36_624_596_992),
    ("Llama-3.1-8B", 8_030_261_248, 7_504_658_432),
    ("Llama-3.1-70B", 70_553_706_496, 69_501_714_432),
    ("gpt-oss-20b", 20_914_757_184, 3_607_142_400),
    ("gpt-oss-120b", 116_829_156_672, 5_131_100_160),
]


def config_of(name: str) -> dict[str, Any]:
    model = find(name)
    assert model is not None
    return model.config()


@pytest.mark.parametrize(("name", "parameters", "active"), COUNTS)
def test_counts_are_the_published_ones(name: str, parameters: int, active: int) -> None:
    found = describe(config_of(name))
    assert found.parameters == parameters
    assert found.active_parameters == active
    assert found.flops_per_token == 6 * active


def test_every_named_model_is_counted() -> None:
    assert {model.name for model in models()} == {name for name, _, _ in COUNTS}


def test_nanos_layers_summed_by_hand() -> None:
    h, d_in, conv = 2688, 64 * 64, 64 * 64 + 2 * 8 * 128
    mamba = h * (2 * d_in + 2 * 8 * 128 + 64) + conv * 4 + d_in * h
    attention = 2 * h * 32 * 128 + 2 * h * 2 * 128
    moe = 128 * h + 6 * 2 * h * 1856 + 2 * h * 3712
    found = describe(config_of("Nemotron-3-Nano-30B-A3B"))
    by_kind = {layer.kind: layer.active_parameters for layer in found.layers}
    assert by_kind == {"mamba": mamba, "attention": attention, "moe": moe}
    kinds = [layer.kind for layer in found.layers]
    assert [kinds.count(kind) for kind in ("mamba", "attention", "moe")] == [23, 6, 23]
    total = 23 * mamba + 6 * attention + 23 * moe + 131072 * h
    assert found.active_parameters == total


def test_sums_over_layers_are_the_totals() -> None:
    for model in models():
        found = describe(model.config())
        document = found.as_json()
        layers = document["layers"]
        split = document["split"]
        assert sum(split.values()) == document["parameters"]
        assert sum(layer["expert"] for layer in layers) == split["expert"]
        dense = sum(layer["dense"] for layer in layers) + found.hidden
        assert dense == split["dense"]
        active = sum(layer["active_parameters"] for layer in layers) + found.head_active
        assert active == document["active_parameters"]


def test_flops_without_attention_are_two_per_active_parameter() -> None:
    for model in models():
        found = describe(model.config())
        flops = found.flops()
        assert flops.forward == 2 * found.active_parameters
        assert flops.backward == 2 * flops.forward
        assert flops.recompute == 0
        assert flops.total == found.flops_per_token


def test_the_quadratic_term_of_llama_by_hand() -> None:
    found = describe(config_of("Llama-3.1-8B"))
    extra = found.flops(4096).forward - found.flops().forward
    assert extra == 32 * 4 * 32 * 128 * (4096 + 1) / 2


def test_the_quadratic_term_of_latent_attention_by_hand() -> None:
    found = describe(config_of("DeepSeek-V3"))
    extra = found.flops(4096).forward - found.flops().forward
    assert extra == 61 * 2 * 128 * (128 + 64 + 128) * (4096 + 1) / 2


def test_a_window_bounds_what_a_token_attends_to() -> None:
    assert mean_attended(10, None) == 5.5
    assert mean_attended(10, 20) == 5.5
    assert mean_attended(4, 2) == (1 + 2 + 2 + 2) / 4
    full = describe({**config_of("gpt-oss-20b"), "layer_types": ["full_attention"] * 24})
    half = describe(config_of("gpt-oss-20b"))
    assert half.flops(8192).forward < full.flops(8192).forward
    assert half.flops().forward == full.flops().forward


def test_recompute_repeats_the_forward_pass_of_what_it_covers() -> None:
    found = describe(config_of("Nemotron-3-Super-120B-A12B"))
    full = found.flops(8192, "full").recompute
    parts = [found.flops(8192, kind).recompute for kind in ("mamba", "attention", "moe")]
    assert all(0 < part < full for part in parts)
    assert math.isclose(sum(parts), full)
    head = 2 * found.head_active
    assert math.isclose(full, found.flops(8192).forward - head)
    assert found.flops(8192, {"moe", "mamba"}).recompute == parts[2] + parts[0]


def test_full_recompute_keeps_only_a_layers_input() -> None:
    found = describe(config_of("Nemotron-3-Nano-30B-A3B"))
    for layer in found.layers:
        assert layer.activation_bytes_full_recompute == 2 * 2688
        assert layer.activation_bytes > layer.activation_bytes_full_recompute


def test_kept_bytes_of_a_dense_mlp_by_hand() -> None:
    found = describe(config_of("Llama-3.1-8B"))
    mlp = found.layers[0].blocks[1]
    assert mlp.activation_bytes == 2 * (2 * 4096 + 3 * 14336)


def test_a_tied_head_is_no_further_parameter_but_takes_part() -> None:
    config = config_of("Llama-3.1-8B")
    tied = describe({**config, "tie_word_embeddings": True})
    plain = describe(config)
    assert plain.parameters - tied.parameters == 128256 * 4096
    assert plain.active_parameters == tied.active_parameters


def test_multi_token_prediction_is_counted_apart() -> None:
    config = config_of("Nemotron-3-Super-120B-A12B")
    without = describe({**config, "num_nextn_predict_layers": 0})
    found = describe(config)
    assert found.parameters == without.parameters
    assert found.mtp_parameters > 2.9e9 and without.mtp_parameters == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": 4096.0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 10**30}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"mlp_only_layers": 5}, "mlp_only_layers"),
        ({"model_type": "gpt2"}, "model_type"),
        ({"model_type": ["qwen3"]}, "model_type"),
    ],
)
def test_a_wrong_field_is_told(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        describe({**config_of("Qwen3-30B-A3B"), **change})
    assert caught.value.field == field


@pytest.mark.parametrize("config", [[], None, "text"])
def test_what_is_no_config_is_told(config: Any) -> None:
    with pytest.raises(InputError, match="config"):
        describe(config)


TINY: dict[str, dict[str, Any]] = {
    "llama": {"mlp_bias": True, "attention_bias": True, "tie_word_embeddings": False},
    "qwen3": {"head_dim": 24, "attention_bias": False, "tie_word_embeddings": True},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 8,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "tie_word_embeddings": False,
    },
    "deepseek_v3": {
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 4,
        "v_head_dim": 20,
        "n_group": 4,
        "topk_group": 2,
        "tie_word_embeddings": False,
    },
    "gpt_oss": {
        "head_dim": 16,
        "num_local_experts": 4,
        "attention_bias": True,
        "sliding_window": 8,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("family", TINY)
def test_transformers_counts_the_same(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = {
        "model_type": family,
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4 if family == "deepseek_v3" else 2,
        "num_experts_per_tok": 2,
        **TINY[family],
    }
    theirs = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(theirs)
    counted = sum(p.numel() for p in model.parameters())
    counted += sum(b.numel() for n, b in model.named_buffers() if n.endswith("correction_bias"))
    found = describe(config)
    assert found.parameters == counted
    experts = sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)
    assert found.expert == experts


@pytest.mark.parametrize("name", [name for name, _, _ in COUNTS])
def test_transformers_counts_the_same_at_full_size(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = {
        key: value
        for key, value in config_of(name).items()
        if key not in ("auto_map", "quantization_config", "transformers_version")
    }
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**config)
        )
    counted = sum(p.numel() for p in model.parameters())
    counted += sum(b.numel() for n, b in model.named_buffers() if n.endswith("correction_bias"))
    assert describe(config).parameters == counted
