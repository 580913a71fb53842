"""Each rule: a layout that breaks it, named with the field; the nearest value mends it."""

import dataclasses
import json
from importlib.resources import files

import pytest

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.layouts.layout import Layout
from openrecipes.layouts.rules import RULES, check, rules_table

NANO = NemotronHConfig.from_hf(
    json.loads(
        files("openrecipes.architectures")
        .joinpath("configs/nemotron-3-nano-30b-a3b.json")
        .read_text()
    )
)
FULL = {"granularity": "full", "method": "uniform", "num_layers": 1}
BASE = {
    "tp": 1,
    "pp": 2,
    "cp": 1,
    "ep": 4,
    "etp": 1,
    "dp": 4,
    "max_tokens_per_gpu": 8192,
    "recompute": FULL,
}
DENSE = dataclasses.replace(NANO, pattern="M-*-", intermediate_size=1856)
AWARE_MISSING = {"optimizer_fraction": 0.5, "precision_aware": False}


def case(rule, engine, layout=None, *, model=NANO, world=8, row=8192, batch=128, **more):
    return pytest.param(
        rule, engine, layout or {}, model, world, row, batch, more, id=f"{rule}-{engine}"
    )


CASES = [
    case("world-divides", "miles", {"tp": 3, "dp": 2, "sequence_parallel": True}),
    case("world-divides", "native", {"dp": 3}),
    case("expert-world-divides", "miles", {"ep": 8}),
    case("expert-world-divides", "native", {"etp": 3}),
    case("layers-divide-pp", "miles", {"pp": 8, "dp": 1, "ep": 1}),
    case("layers-divide-pp", "native", {"vpp": 4}),
    case("layer-split-fits", "native", {"layer_split": (20, 30)}),
    case("layer-split-fits", "native", {"layer_split": (10, 20, 22)}),
    case("layer-split-fits", "native", {"layer_split": (0, 52)}),
    case("layer-split-fits", "native", {"layer_split": (25, 27), "vpp": 2}),
    case("vpp-needs-pp", "native", {"pp": 1, "vpp": 2, "dp": 8}),
    case("interleave-microbatches", "miles", {"vpp": 2}, batch=4, model=None),
    case("pipeline-microbatches", "automodel", {}, batch=4),
    case("batch-divides-dp", "native", {}, batch=126),
    case("batch-divides-dp", "miles", {"max_tokens_per_gpu": None, "rows_per_microbatch": 3}),
    case("rows-per-microbatch", "miles", {"max_tokens_per_gpu": 16384}),
    case("rows-per-microbatch", "native", {"rows_per_microbatch": 2}),
    case("tokens-divide-tp-cp", "native", {"cp": 2, "dp": 2, "rows_per_microbatch": 2}, row=8191),
    case("experts-divide-ep", "native", {"ep": 3}),
    case("ep-needs-experts", "native", {"ep": 2}, model=DENSE),
    case("heads-divide-tp", "miles", {"tp": 64, "sequence_parallel": True}, world=512),
    case("kv-heads-tp", "miles", {"tp": 3, "sequence_parallel": True}),
    case("heads-divide-tp-cp", "native", {"cp": 64, "dp": 1}, world=128),
    case("kv-heads-tp-cp", "native", {"cp": 3, "dp": 1}, world=6),
    case("mamba-heads-divide-tp", "native", {"tp": 3, "sequence_parallel": True}),
    case("mamba-groups-divide-tp", "native", {"tp": 16, "sequence_parallel": True}, world=128),
    case("mamba-heads-divide-cp", "automodel", {"cp": 3, "dp": 1}, world=6),
    case("mamba-groups-tp-cp", "miles", {"cp": 3, "dp": 1}, world=6),
    case("moe-ffn-divides-etp", "native", {"etp": 128, "dp": 128}),
    case("shared-ffn-divides-tp", "miles", {"tp": 5, "sequence_parallel": True}),
    case("ffn-divides-tp", "native", {"tp": 5}, model=DENSE),
    case("vocab-divides-tp", "native", {"tp": 5, "sequence_parallel": True}),
    case("no-tp-on-nemotron-h", "automodel", {"tp": 2, "dp": 2}),
    case("moe-tp-needs-sequence-parallel", "native", {"tp": 2, "dp": 2}),
    case("moe-tp-needs-sequence-parallel", "miles", {"tp": 2, "dp": 2}),
    case("no-vpp-on-mamba", "miles", {"vpp": 2}),
    case("even-pp-on-mamba", "miles", {"layer_split": (20, 32)}),
    case("stages-fill-layers", "automodel", {"pp": 8, "vpp": 5, "dp": 1}),
    case("recompute-arguments", "miles", {"recompute": {"granularity": "full", "num_layers": 1}}),
    case("recompute-arguments", "native", {"recompute": FULL | {"num_layers": None}}),
    case("recompute-arguments", "native", {"recompute": FULL | {"modules": ("moe",)}}),
    case(
        "recompute-arguments",
        "miles",
        {"recompute": {"granularity": "selective", "modules": ("mamba", "moe")}},
    ),
    case(
        "recompute-arguments",
        "native",
        {"recompute": {"granularity": "selective", "method": "uniform"}},
    ),
    case("offload-needs-precision-aware", "miles", {"offload": AWARE_MISSING}),
    case("no-offload-fraction", "automodel", {"offload": AWARE_MISSING}),
    case("no-sequence-parallel", "automodel", {"sequence_parallel": True}),
    case("no-expert-tensor-parallel", "automodel", {"etp": 2}),
    case("packed-rows-need-te", "automodel", flags={"attention-backend": "local"}),
    case("cp-pads-documents", "automodel", {"cp": 2, "dp": 2}, row=8190),
    case("automodel-version", "automodel", framework="nemo_automodel 0.6.0 (36044ad3)"),
    case("no-mtp-with-cp-pp", "automodel", {"cp": 2, "dp": 2}, flags={"mtp-num-layers": 1}),
    case("cuda-max-connections", "miles", {"cp": 2, "dp": 2}, env={}, gpu="H200"),
    case(
        "dynamic-batch-needs-max-tokens",
        "miles",
        {"max_tokens_per_gpu": None},
        flags={"use-dynamic-batch-size": True},
    ),
    case("min-lr-below-lr", "native", flags={"lr": 1e-6, "min-lr": 1e-5}),
    case("rollout-covers-batch", "miles", flags={"rollout-batch-size": 64}),
]


def names(violations):
    return {violation.rule for violation in violations}


@pytest.mark.parametrize("rule, engine, layout, model, world, row, batch, more", CASES)
def test_a_broken_rule_is_named_and_its_nearest_value_mends_it(
    rule, engine, layout, model, world, row, batch, more
):
    values = BASE | layout
    inputs = {"model": model, "row_tokens": row, "global_batch": batch, **more}
    found = check(Layout(**values), engine=engine, world_size=world, **inputs)
    broken = [violation for violation in found if violation.rule == rule]
    assert len(broken) == 1
    violation = broken[0]
    assert violation.as_json().keys() == {
        "rule", "engine", "field", "found", "expected", "nearest", "message",
    }  # fmt: skip
    assert violation.rule in violation.message
    if violation.nearest is None:
        return
    block, _, name = violation.field.rpartition(".")
    if block == "layout":
        values = values | {name: violation.nearest}
    elif block.startswith("layout."):
        key = block.removeprefix("layout.")
        values = values | {key: values[key] | {name: violation.nearest}}
    elif block == "workload":
        inputs["global_batch"] = violation.nearest
    elif block == "env":
        inputs["env"] = {name: violation.nearest}
    elif block == "stack":
        inputs[name] = f"nemo_automodel {violation.nearest}"
    else:
        inputs["flags"] = inputs["flags"] | {name: violation.nearest}
    mended = check(Layout.model_validate(values), engine=engine, world_size=world, **inputs)
    assert rule not in names(mended)


def test_every_rule_has_a_case():
    assert {param.values[0] for param in CASES} == set(RULES)


@pytest.mark.parametrize("engine", ["native", "miles"])
@pytest.mark.parametrize(
    "layout, world",
    [
        ({}, 8),
        ({"tp": 2, "ep": 2, "dp": 2, "sequence_parallel": True}, 8),
        ({"tp": 4, "ep": 8, "dp": 2, "sequence_parallel": True, "max_tokens_per_gpu": 1024}, 16),
    ],
)
def test_known_good_layouts_break_nothing(engine, layout, world):
    found = check(
        Layout(**BASE | layout),
        engine=engine,
        world_size=world,
        model=NANO,
        global_batch=128,
        row_tokens=8192,
        env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        gpu="H200",
    )
    assert found == []


def test_a_rule_speaks_for_its_own_engines_only():
    layout = Layout(**BASE | {"vpp": 2})
    assert names(check(layout, engine="miles", world_size=8, model=NANO)) == {"no-vpp-on-mamba"}
    assert check(layout, engine="native", world_size=8, model=NANO) == []


def test_the_table_names_every_rule_once():
    table = rules_table()
    assert all(table.count(f"| `{name}` |") == 1 for name in RULES)
