"""A recipe's flags: its arguments, overlaid by its fields; run is derived from them."""

import copy

import pytest

from openrecipes.errors import InputError
from openrecipes.flags.shell import parse_script
from openrecipes.recipe.document import load
from openrecipes.recipe.flags import recipe_arguments, recipe_flags
from openrecipes.recipe.render import render_run
from openrecipes.recipe.schema import Recipe

from .recipes import ALL, NANO, SUPER, with_arguments


def recipe(data, **changes):
    data = copy.deepcopy(data)
    for place, value in changes.items():
        block, _, name = place.partition("__")
        data[block][name] = value
    return Recipe.model_validate(data)


@pytest.mark.parametrize("path", ALL)
def test_a_recipe_without_arguments_is_read_from_its_run(path):
    document = load(path).recipe
    assert recipe_arguments(document) == parse_script(document.run).typed()


@pytest.mark.parametrize("path", ALL)
def test_run_taken_out_comes_back_flag_by_flag(path):
    original = load(path).recipe
    data = with_arguments(path)
    del data["run"]
    data["status"] = "planned"
    again = parse_script(render_run(Recipe.model_validate(data)))
    script = parse_script(original.run)
    assert again.typed() == script.typed()
    assert again.exports == script.exports
    assert again.program == script.program
    assert again.expansions == script.expansions
    assert again.assignments == script.assignments


@pytest.mark.parametrize("path", ALL)
def test_arguments_hold_no_flag_that_a_field_says(path):
    arguments = with_arguments(path)["arguments"]
    assert not [name for name in arguments if name.endswith("-parallel-size")]
    assert "global-batch-size" not in arguments and "actor-num-nodes" not in arguments
    assert arguments["lr"] == "1e-5"


@pytest.mark.parametrize(
    "changes, flag, value",
    [
        ({"layout__ep": 8}, "expert-model-parallel-size", 8),
        ({"layout__max_tokens_per_gpu": 16384}, "max-tokens-per-gpu", 16384),
        ({"layout__sequence_parallel": True}, "sequence-parallel", True),
        ({"workload__global_batch": 256}, "global-batch-size", 256),
        ({"workload__global_batch": 256}, "rollout-batch-size", 256),
        ({"workload__precision": "fp16"}, "fp16", True),
        ({"gpu__count": 16}, "actor-num-nodes", 2),
        ({"layout__recompute": None}, "recompute-granularity", None),
        ({"layout__recompute": None}, "recompute-num-layers", None),
        ({"layout__offload": {"optimizer_fraction": 0.5}}, "optimizer-offload-fraction", 0.5),
        ({"layout__offload": {"optimizer_fraction": 0.5}}, "optimizer-cpu-offload", True),
        ({"layout__vpp": 2}, "num-virtual-stages-per-pipeline-rank", 2),
        ({"layout__dispatcher": "deepep"}, "moe-token-dispatcher-type", "flex"),
    ],
)
def test_fields_win(changes, flag, value):
    data = with_arguments(NANO)
    assert recipe_flags(recipe(data, **changes)).get(flag) == value


def test_the_seeds_run_changes_with_a_field_too():
    data = with_arguments(NANO)
    del data["arguments"]
    assert recipe_flags(recipe(data, layout__ep=8))["expert-model-parallel-size"] == 8


def test_what_a_field_leaves_open_stands_in_arguments():
    data = with_arguments(SUPER)
    assert data["arguments"]["recompute-modules"] == "moe"
    flags = recipe_flags(Recipe.model_validate(data))
    assert flags["recompute-modules"] == ["moe"]
    assert flags["use-precision-aware-optimizer"] is True
    data["layout"]["recompute"]["modules"] = ["moe", "core_attn"]
    flags = recipe_flags(Recipe.model_validate(data))
    assert flags["recompute-modules"] == ["moe", "core_attn"]


def test_values_stay_as_they_were_typed():
    arguments = recipe_arguments(load(NANO).recipe)
    assert arguments["lr"] == "1e-5"
    assert recipe_flags(load(NANO).recipe)["lr"] == 1e-5


def test_another_engine_takes_its_own_flags():
    flags = recipe_flags(load(NANO).recipe, "native")
    assert flags["bf16"] is True and "actor-num-nodes" not in {
        name for name in flags if name not in parse_script(load(NANO).recipe.run).typed()
    }
    assert flags["moe-token-dispatcher-type"] == "alltoall"
    assert recipe_flags(load(NANO).recipe, "automodel")["seq-length"] == 8192


def test_unknown_flags_stay_visible():
    data = with_arguments(NANO)
    data["arguments"]["new-flag"] = "7"
    assert recipe_flags(Recipe.model_validate(data))["new-flag"] == "7"


def test_a_wrong_value_is_the_users_error():
    data = with_arguments(NANO)
    data["arguments"]["lr"] = "fast"
    with pytest.raises(InputError, match="--lr"):
        recipe_flags(Recipe.model_validate(data))
