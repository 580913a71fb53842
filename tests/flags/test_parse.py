"""Words to typed flags and back; what an engine cannot do is refused, never ignored silently."""

import shlex
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as given_values
from hypothesis import strategies as st

from openrecipes.errors import InputError
from openrecipes.flags.parse import ineffective, parse_argv, render_argv, resolve
from openrecipes.flags.table import Flag, table

# The arguments of the public recipe for Nemotron-3-Nano on 8 H200.
NANO = shlex.split(
    "--actor-num-nodes 1 --actor-num-gpus-per-node 8 --num-gpus-per-node 8 --hf-checkpoint $HF_CKPT"
    " --ref-load $HF_CKPT --megatron-to-hf-mode bridge --loss-type sft_loss"
    " --calculate-per-token-loss --disable-compute-advantages-and-returns --debug-train-only"
    " --rollout-function-path pretokenized_sft_rollout.generate_rollout --prompt-data $SFT_DATA"
    " --input-key messages --metadata-key metadata --num-rollout 20 --rollout-batch-size 128"
    " --global-batch-size 128 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 2"
    " --context-parallel-size 1 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1"
    " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    " --use-dynamic-batch-size --max-tokens-per-gpu 8192 --attention-backend auto"
    " --optimizer adam --lr 1e-5 --lr-decay-style cosine --min-lr 1e-6 --lr-warmup-fraction 0.1"
    " --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98 --attention-dropout 0.0"
    " --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32"
    " --distributed-timeout-minutes 30"
)
SUPER_ONLY = shlex.split(
    "--sequence-parallel --recompute-modules moe core_attn --log-probs-chunk-size 128"
    " --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer"
    " --optimizer-offload-fraction 0.55"
)


def test_the_public_recipes_parse_with_types() -> None:
    flags = parse_argv(NANO + SUPER_ONLY)
    assert flags["lr"] == 1e-5
    assert flags["expert-model-parallel-size"] == 4
    assert flags["use-dynamic-batch-size"] is True
    assert flags["recompute-modules"] == ["moe", "core_attn"]
    assert flags["hf-checkpoint"] == "$HF_CKPT"
    assert set(resolve(flags, "miles")) >= set(flags)


def test_rendering_and_parsing_are_inverse_on_the_public_recipe() -> None:
    flags = parse_argv(NANO + SUPER_ONLY)
    assert parse_argv(render_argv(flags)) == flags


def _values(flag: Flag) -> st.SearchStrategy[Any]:
    if flag.choices and flag.type != "list":
        return st.sampled_from(flag.choices)
    return {
        "int": st.integers(-(2**40), 2**40),
        "float": st.floats(allow_nan=False, allow_infinity=False),
        "switch": st.just(True),
        "list": st.lists(st.sampled_from(flag.choices or ("a",)), min_size=1, max_size=3),
    }.get(flag.type, st.text(min_size=1).filter(lambda text: not text.startswith("--")))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given_values(st.data())
def test_rendering_and_parsing_are_inverse(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(table())), unique=True, max_size=6))
    flags = {name: data.draw(_values(table()[name])) for name in names}
    assert parse_argv(render_argv(flags)) == flags


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--learning-rate", "1"], "unknown flag"),
        (["--lr", "fast"], "expected a number"),
        (["--lr", "nan"], "expected a number"),
        (["--lr"], "give its value"),
        (["--lr", "--seed", "1"], "give its value"),
        (["--seed", "1.5"], "expected a whole number"),
        (["--train-iters", "１２"], "expected a whole number"),
        (["--train-iters", "1_000"], "expected a whole number"),
        (["--train-iters", "9" * 5000], "expected a whole number"),
        (["--lr", "１e-5"], "expected a number"),
        (["--lr", "1_0.0"], "expected a number"),
        (["--lr", "1e999"], "expected a number"),
        (["--bf16=true"], "expected no value"),
        (["--lr-decay-style", "cosin"], "expected constant | linear | cosine"),
        (["rows.parquet"], "expected a --flag"),
        (["--", "--lr", "1"], "expected a --flag"),
    ],
)
def test_wrong_words_are_refused_with_what_was_expected(words: list[str], part: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_argv(words)
    assert part in str(caught.value)


def test_a_misspelt_flag_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="--lr-warmup-fraction"):
        parse_argv(["--lr-warmup-fracton", "0.1"])


def test_equals_sign_and_repetition() -> None:
    assert parse_argv(["--lr=1e-5", "--lr", "2e-5"]) == {"lr": 2e-5}


def test_native_refuses_what_it_cannot_do_and_takes_what_changes_nothing() -> None:
    neutral = {
        "tensor-model-parallel-size": 1,
        "attention-dropout": 0.0,
        "loss-type": "sft_loss",
        "moe-token-dispatcher-type": "alltoall",
    }
    resolved = resolve(neutral, "native")
    assert neutral.items() <= resolved.items()
    for name, value in {
        "attention-dropout": 0.1,
        "optimizer": "sgd",
        "save": "somewhere",
        "fp8-format": "e4m3",
        "lr-decay-style": "WSD",
    }.items():
        with pytest.raises(InputError) as caught:
            resolve({name: value}, "native")
        assert caught.value.field == f"--{name}"


def test_defaults_are_megatrons_except_where_the_engine_has_its_own() -> None:
    native, miles = resolve({}, "native"), resolve({}, "miles")
    assert native["adam-beta2"] == miles["adam-beta2"] == 0.999
    assert native["attention-dropout"] == 0.0 and miles["attention-dropout"] == 0.1
    assert native["calculate-per-token-loss"] is True
    assert miles["lr"] == 1e-6 and native["lr"] is None


def test_expert_tensor_parallel_follows_tensor_parallel_where_absent() -> None:
    given = {"tensor-model-parallel-size": 4}
    assert resolve(given, "miles")["expert-tensor-parallel-size"] == 4
    given["expert-tensor-parallel-size"] = 1
    assert resolve(given, "miles")["expert-tensor-parallel-size"] == 1


def test_text_values_become_typed() -> None:
    assert resolve({"lr": "1e-5", "global-batch-size": "8"}, "native")["lr"] == 1e-5
    with pytest.raises(InputError):
        resolve({"global-batch-size": 8.0}, "native")
    with pytest.raises(InputError):
        resolve({"global-batch-size": True}, "native")


def test_ignored_flags_are_told_with_their_reason() -> None:
    told = ineffective(parse_argv(NANO), "native")
    assert "attention-backend" in told and all(told.values())
    assert "lr" not in told
