import pytest

from openrecipes.layouts.layout import Layout
from openrecipes.layouts.recompute import effective_recompute, is_effective

FULL = {"granularity": "full", "method": "uniform", "num_layers": 1}


def layout(recompute, **more):
    values = {"tp": 1, "pp": 1, "ep": 1, "etp": 1, "dp": 1} | more
    return Layout(**values, recompute=recompute)


@pytest.mark.parametrize(
    "recompute, engine, pattern, granularity, layers",
    [
        (None, "native", "ME*", "none", {"M": "none", "E": "none", "*": "none"}),
        (FULL, "native", "ME*", "full", {"M": "full", "E": "full", "*": "full"}),
        (FULL, "miles", "ME*", "none", {"M": "none", "E": "none", "*": "none"}),
        (FULL, "miles", "*-", "full", {"*": "full", "-": "full"}),
        (FULL, "automodel", "ME*", "full", {"M": "full", "E": "none", "*": "none"}),
        (
            {"granularity": "selective", "modules": ("moe",)},
            "miles",
            "ME*",
            "selective",
            {"M": "none", "E": "selective", "*": "none"},
        ),
        (
            {"granularity": "selective", "modules": ("mamba", "mlp")},
            "native",
            "ME*",
            "selective",
            {"M": "selective", "E": "none", "*": "none"},
        ),
        (
            {"granularity": "selective", "modules": ("mamba",)},
            "miles",
            "M*",
            "none",
            {"M": "none", "*": "none"},
        ),
        ({"granularity": "selective"}, "miles", "M*", "selective", {"M": "none", "*": "selective"}),
    ],
)
def test_what_is_really_recomputed(recompute, engine, pattern, granularity, layers):
    found = effective_recompute(layout(recompute), engine, pattern)
    assert found["granularity"] == granularity
    assert found["layers"] == layers
    assert found.keys() == {"granularity", "modules", "layers"}


def test_full_recompute_covers_all_blocks_of_automodel_with_expert_parallelism():
    found = effective_recompute(layout(FULL, ep=2, dp=2), "automodel", "ME*")
    assert set(found["layers"].values()) == {"full"}


def test_recompute_without_effect_is_told():
    assert not is_effective(layout(FULL), "miles", "ME*")
    assert is_effective(layout(FULL), "native", "ME*")
    assert is_effective(layout(None), "miles", "ME*")


def test_block_recompute_reaches_the_first_layers_of_each_stage():
    block = {"granularity": "full", "method": "block", "num_layers": 1}
    found = effective_recompute(layout(block, pp=2), "native", "MEM*")
    assert found["layers"] == {"M": "full", "E": "none", "*": "none"}
    found = effective_recompute(layout(block, pp=2, layer_split=(1, 3)), "native", "MEM*")
    assert found["layers"] == {"M": "full", "E": "full", "*": "none"}
