"""NemotronH's config in all its forms; faults are told by field."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from openrecipes.architectures.configs import find, models
from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.errors import InputError

NANO: dict[str, Any] = models()[0].config()


def test_the_tables_configs_load() -> None:
    nemotron = [m for m in models() if m.name.startswith("Nemotron")]
    shapes = {m.name: NemotronHConfig.from_hf(m.config()) for m in nemotron}
    nano, super_, ultra = shapes.values()
    assert (nano.num_hidden_layers, nano.pattern.count("*")) == (52, 6)
    assert nano.time_step_limit == (0.0, math.inf) and nano.moe_latent_size is None
    assert nano.expert_size == 2688 and nano.mtp_pattern == ""
    assert (super_.expert_size, super_.mtp_pattern) == (1024, "*E")
    assert ultra.pattern.startswith("MEMEMEM*EMEMEM*E") and ultra.mtp_pattern == "*E"


@pytest.mark.parametrize(
    "names",
    [
        ("mamba", "moe", "attention", "mlp"),
        ("linear_attention", "moe", "full_attention", "mlp"),
    ],
)
@pytest.mark.parametrize("field", ["layers_block_type", "layer_types"])
def test_layers_by_name(names: tuple[str, ...], field: str) -> None:
    config = copy.deepcopy(NANO) | {"intermediate_size": 8, "num_hidden_layers": 4}
    letters = config.pop("hybrid_override_pattern")
    assert NemotronHConfig.from_hf(config | {field: list(names)}).pattern == "ME*-"
    both = config | {field: list(names), "hybrid_override_pattern": letters[:4]}
    with pytest.raises(InputError, match="layers_block_type"):
        NemotronHConfig.from_hf(both)


@pytest.mark.parametrize(
    "limit",
    [[0, math.inf], [0.0, {"__float__": "Infinity"}], (0.0, "Infinity"), None],
)
def test_no_limit_in_all_its_forms(limit: Any) -> None:
    config = NemotronHConfig.from_hf(NANO | {"time_step_limit": limit})
    assert config.time_step_limit == (0.0, math.inf)


def test_a_limit_is_kept() -> None:
    config = NemotronHConfig.from_hf(json.loads(json.dumps(NANO | {"time_step_limit": [0.1, 2]})))
    assert config.time_step_limit == (0.1, 2.0)


def test_an_older_name_counts() -> None:
    config = copy.deepcopy(NANO)
    config["attention_head_dim"] = config.pop("head_dim")
    assert NemotronHConfig.from_hf(config).head_dim == 128


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "llama"),
        ("vocab_size", 0),
        ("vocab_size", "131072"),
        ("hidden_size", True),
        ("hidden_size", 26.5),
        ("hybrid_override_pattern", "MEX"),
        ("hybrid_override_pattern", ""),
        ("hybrid_override_pattern", 3),
        ("num_hidden_layers", 51),
        ("mamba_num_heads", None),
        ("n_groups", 7),
        ("num_key_value_heads", 3),
        ("n_routed_experts", None),
        ("num_experts_per_tok", 129),
        ("n_group", 5),
        ("topk_group", 2),
        ("time_step_limit", [1]),
        ("time_step_limit", [0.0, float("nan")]),
        ("time_step_limit", [2.0, 1.0]),
        ("time_step_limit", "none"),
        ("routed_scaling_factor", "2.5"),
        ("layer_norm_epsilon", -1e-5),
        ("norm_topk_prob", 1),
        ("mlp_hidden_act", "silu"),
        ("mamba_hidden_act", "relu"),
        ("tie_word_embeddings", True),
        ("sliding_window", 4096),
        ("attention_dropout", 0.1),
        ("hidden_dropout", False),
        ("n_shared_experts", 2),
        ("moe_latent_size", 0),
        ("num_nextn_predict_layers", -1),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InputError) as told:
        NemotronHConfig.from_hf(NANO | {field: value})
    assert told.value.field == field
    assert told.value.expected


def test_what_the_pattern_does_not_use_may_be_absent() -> None:
    config = {"model_type": "nemotron_h", "vocab_size": 9, "hidden_size": 8}
    config |= {"hybrid_override_pattern": "--", "intermediate_size": 5}
    assert NemotronHConfig.from_hf(config).n_routed_experts == 0
    with pytest.raises(InputError, match="pattern"):
        NemotronHConfig.from_hf(config | {"hybrid_override_pattern": None})
    with pytest.raises(InputError, match="config"):
        NemotronHConfig.from_hf([1])


@pytest.mark.parametrize(
    "name",
    [
        "Nemotron-3-Nano-30B-A3B",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "models--nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-FP8",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16/",
        "nemotron-3-nano-30b-a3b",
    ],
)
def test_one_model_by_all_its_names(name: str) -> None:
    found = find(name)
    assert found is not None and found.name == "Nemotron-3-Nano-30B-A3B"
    assert find("Nemotron-9") is None and find("") is None
