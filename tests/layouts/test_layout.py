import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from openrecipes.errors import InputError
from openrecipes.layouts.layout import LAYOUT_FLAGS, Layout, rows_per_microbatch

sizes = st.integers(1, 8)


def layouts():
    recompute = st.one_of(
        st.none(),
        st.just({"granularity": "full", "method": "uniform", "num_layers": 1}),
        st.just(
            {"granularity": "selective", "method": None, "num_layers": None, "modules": ("moe",)}
        ),
    )
    offload = st.one_of(
        st.none(),
        st.builds(
            lambda fraction, overlap, aware: {
                "optimizer_fraction": fraction,
                "overlap_d2h_h2d": overlap,
                "precision_aware": aware,
            },
            st.floats(0, 1),
            st.booleans(),
            st.booleans(),
        ),
    )
    return st.builds(
        Layout,
        tp=sizes,
        pp=sizes,
        vpp=sizes,
        cp=sizes,
        ep=sizes,
        etp=sizes,
        dp=sizes,
        sequence_parallel=st.booleans(),
        max_tokens_per_gpu=st.none(),
        rows_per_microbatch=sizes,
        recompute=recompute,
        offload=offload,
        dispatcher=st.sampled_from([None, "allgather", "alltoall", "flex", "deepep", "hybridep"]),
        layer_split=st.none(),
    )


@given(layouts())
def test_a_layout_survives_the_way_through_flags(layout):
    assert Layout.from_flags(layout.flags(), layout.world_size) == layout


@given(layouts())
def test_a_layout_decides_all_flags_it_gives(layout):
    assert layout.flags().keys() <= LAYOUT_FLAGS | {"use-precision-aware-optimizer"}


@pytest.mark.parametrize("split", [(26, 26), (10, 16, 26), (10, 16, 16, 10), (5, 6, 7, 8, 26)])
def test_an_uneven_split_survives_the_way_through_flags(split):
    layout = Layout(tp=1, pp=len(split), ep=1, etp=1, dp=1, layer_split=split)
    again = Layout.from_flags(layout.flags(), layout.world_size, layers=sum(split))
    assert again.layer_split == split


def test_absent_flags_take_megatrons_defaults():
    layout = Layout.from_flags({"tensor-model-parallel-size": 4}, 8)
    assert (layout.tp, layout.etp, layout.ep, layout.pp, layout.dp) == (4, 4, 1, 1, 2)
    assert layout.recompute is None and layout.offload is None and layout.dispatcher is None


def test_a_world_that_does_not_divide_is_left_to_the_rules():
    assert Layout.from_flags({"tensor-model-parallel-size": 3}, 8).dp == 2
    assert Layout.from_flags({"tensor-model-parallel-size": 16}, 8).dp == 1


def test_virtual_stages_given_by_their_size():
    flags = {"pipeline-model-parallel-size": 2, "num-layers-per-virtual-pipeline-stage": 4}
    assert Layout.from_flags(flags, 2, layers=16).vpp == 2


@pytest.mark.parametrize("value", [0, -1, "two", 1.5, True])
def test_an_impossible_size_is_the_users_error(value):
    with pytest.raises(InputError, match="tensor-model-parallel-size"):
        Layout.from_flags({"tensor-model-parallel-size": value}, 8)


def test_an_impossible_fraction_is_the_users_error():
    flags = {"optimizer-cpu-offload": True, "optimizer-offload-fraction": 55.0}
    with pytest.raises(InputError, match="optimizer_fraction"):
        Layout.from_flags(flags, 1)


@pytest.mark.parametrize("key, value", [("tp", "1"), ("tp", 1.0), ("tp", True), ("typo", 1)])
def test_wrong_types_and_unknown_keys_are_refused(key, value):
    values = {"tp": 1, "pp": 1, "ep": 1, "etp": 1, "dp": 1} | {key: value}
    with pytest.raises(ValidationError, match=key):
        Layout.model_validate(values)


def test_equal_layouts_are_one_key():
    one = Layout(tp=1, pp=2, ep=4, etp=1, dp=4, layer_split=(26, 26))
    assert len({one, Layout.model_validate(one.block())}) == 1


@pytest.mark.parametrize(
    "tokens, cp, row, rows",
    [(8192, 1, 8192, 1), (16384, 1, 8192, 2), (1024, 1, 8192, 1), (4096, 2, 8192, 1)],
)
def test_rows_of_a_microbatch(tokens, cp, row, rows):
    assert rows_per_microbatch(tokens, cp, row) == rows
