"""From run records to the result block."""

import json
import statistics
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from openrecipes.errors import InputError
from openrecipes.recipe.result import Result
from openrecipes.runs.measure import LONGEST_STEP, SHORTEST_STEP, PriceGiven, measure
from openrecipes.runs.record import RunRecord, RunWriter
from tests.runs.records import BEGUN, NANO, add_steps, make_run, seconds_of

WINDOW_TOKENS = 15 * 128 * 8192


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    return make_run(tmp_path / "run")


def test_every_figure_of_a_run(run: RunRecord) -> None:
    result = measure(run)
    seconds = [seconds_of(step) for step in range(5, 20)]
    total = sum(seconds)
    assert result["window"] == [5, 19]
    assert result["window_tokens"] == WINDOW_TOKENS == 15_728_640
    assert result["tokens_per_s_per_gpu"] == round(WINDOW_TOKENS / total / 8, 2)
    nonpadding = 15 * (128 * 8192 - 1000) / total / 8
    assert result["nonpadding_tokens_per_s_per_gpu"] == round(nonpadding, 2)
    assert result["supervised_tokens_per_s_per_gpu"] == round(WINDOW_TOKENS / 2 / total / 8, 2)
    cv = 100 * statistics.pstdev(seconds) / statistics.fmean(seconds)
    assert result["step_time_cv_percent"] == round(cv, 2)
    assert result["cv_kind"] == "population"
    assert result["step_time_s"]["max"] == max(seconds)
    assert result["mfu"] == 0.153 and result["mfu_note"] is None
    assert result["usd_per_million_tokens"] == 0.28
    assert result["price"]["usd_per_gpu_hour"] == 7.912
    assert result["gpu_hours"] == 1.2
    assert result["measured"] == date(2026, 10, 15)
    assert (result["steps_per_run"], result["runs"]) == (20, 1)
    assert result["active_params"]["count"] == 3227369472
    assert result["routing"] == "natural"
    assert result["effective_recompute"] == {
        "granularity": "none", "modules": [], "layers": {"M": "none"},
    }  # fmt: skip
    assert result["dtypes"] == {
        "weights": "bf16", "gradients": "fp32", "master": "fp32", "exp_avg": "fp32",
        "exp_avg_sq": "fp32",
    }  # fmt: skip


def test_the_block_is_the_schemas(run: RunRecord) -> None:
    result = measure(run)
    assert set(result) == set(Result.model_fields)
    Result.model_validate(result)


def test_a_window_may_be_given(run: RunRecord) -> None:
    result = measure(run, "1:10")
    assert result["window"] == [1, 10]
    total = sum(seconds_of(step) for step in range(1, 11))
    assert result["tokens_per_s_per_gpu"] == round(10 * 128 * 8192 / total / 8, 2)


def test_a_restart_is_never_measured(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=range(12))
    slow_start = lambda step: 500.0 if step == 10 else 10.0  # noqa: E731
    add_steps(RunWriter.open(tmp_path / "run"), range(10, 20), slow_start, attempt=2)
    record = RunRecord.open(tmp_path / "run")
    result = measure(record)
    assert result["window"] == [11, 19]
    assert result["step_time_s"]["max"] == 10.0
    with pytest.raises(InputError, match="step 10 is the first of its attempt"):
        measure(record, "5:19")


def test_a_cpu_has_no_mfu_and_no_price(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        engine="native",
        stack=None,
        world_size=2,
        machine={"gpu": "CPU", "count": 2, "per_node": 2},
    )
    result = measure(run)
    assert (result["mfu"], result["usd_per_million_tokens"], result["price"]) == (None, None, None)
    assert result["mfu_note"] == "no peak is known for a CPU"
    assert result["usd_note"] == "no price is known for a CPU"
    assert result["dtypes"]["weights"] == "fp32"
    total = sum(seconds_of(step) for step in range(5, 20))
    assert result["tokens_per_s_per_gpu"] == round(WINDOW_TOKENS / total / 2, 2)


def test_a_price_may_be_given(run: RunRecord) -> None:
    result = measure(run, price_given=PriceGiven(2.0, "own contract"))
    assert result["price"]["usd_per_gpu_hour"] == 2.0
    rate = result["tokens_per_s_per_gpu"]
    assert result["usd_per_million_tokens"] == pytest.approx(2e6 / rate / 3600, abs=0.005)


def test_an_instance_without_a_price_says_so(run: RunRecord) -> None:
    result = measure(run, instance="AWS p6e-gb200.36xlarge")
    assert result["usd_per_million_tokens"] is None
    assert "AWS p6e-gb200.36xlarge" in result["usd_note"]


@pytest.mark.parametrize("what", ["profiler", "parity_probe"])
def test_no_rate_with_the_profiler_or_the_probe_on(tmp_path: Path, what: str) -> None:
    result = measure(make_run(tmp_path / "run", **{what: True}))
    for name in (
        "tokens_per_s_per_gpu",
        "nonpadding_tokens_per_s_per_gpu",
        "supervised_tokens_per_s_per_gpu",
        "usd_per_million_tokens",
        "mfu",
    ):
        assert result[name] is None
    assert "was on" in result["mfu_note"] and "was on" in result["usd_note"]


def test_a_rate_is_pooled_over_runs(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", seconds=lambda step: 10.0),
        make_run(tmp_path / "b", seconds=lambda step: 30.0),
    ]
    result = measure(runs)
    assert result["tokens_per_s_per_gpu"] == round(2 * WINDOW_TOKENS / (15 * 40) / 8, 2)
    assert result["window_tokens"] == WINDOW_TOKENS
    assert result["runs"] == 2
    assert [d["run"] for d in result["runs_detail"]] == ["a", "b"]
    assert result["step_time_cv_percent"] == 50.0
    assert result["gpu_hours"] == 2.4
    Result.model_validate(result)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("world_size", 4),
        ("layout", {"tp": 2, "pp": 1, "etp": 1, "dp": 4}),
        ("rows", {"rows_sha256": "00" * 32, "row_tokens": 8192}),
        ("machine", {"gpu": "H100"}),
        ("flags", {"global-batch-size": 64}),
        ("model", {"name": "another"}),
        ("engine", "native"),
    ],
)
def test_runs_of_different_recipes_are_not_pooled(
    tmp_path: Path, run: RunRecord, field: str, value: Any
) -> None:
    with pytest.raises(InputError, match="pool runs of one recipe"):
        measure([run, make_run(tmp_path / "other", **{field: value})])


def test_a_run_is_not_pooled_with_itself(run: RunRecord) -> None:
    with pytest.raises(InputError, match="each run once"):
        measure([run, run])


def test_failed_runs_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", state="failed", failure={"kind": "oom", "step": 7})
    with pytest.raises(InputError, match="oom at step 7"):
        measure(run)


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no step"):
        measure(make_run(tmp_path / "run", steps=[]))


def test_too_few_steps_for_the_window_are_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=range(5))
    with pytest.raises(InputError, match="at least 6") as caught:
        measure(run)
    assert caught.value.file == str(run.path)
    with pytest.raises(InputError, match="step 19 is not recorded"):
        measure(run, "1:19")
    assert measure(run, "1:4")["window"] == [1, 4]


@pytest.mark.parametrize("bad", [None, 0.0, 5e-324, 1e308])
def test_a_step_without_a_plausible_time_is_told(tmp_path: Path, bad: float | None) -> None:
    run = make_run(tmp_path / "run", seconds=lambda step: bad if step == 9 else 1.0)
    with pytest.raises(InputError, match=r"step 9.*30 days"):
        measure(run)


@pytest.mark.parametrize("seconds", [SHORTEST_STEP, LONGEST_STEP])
def test_the_farthest_step_times_give_figures(tmp_path: Path, seconds: float) -> None:
    machine = {"machine": {"gpu": "CPU", "count": 8, "per_node": 8}}
    run = make_run(tmp_path / "run", seconds=lambda step: seconds, **machine)
    result = measure(run, price_given=PriceGiven(1.0))
    json.dumps(result, default=str, allow_nan=False)


@pytest.mark.parametrize(
    ("launcher", "gpu", "note"),
    [
        ("local", "CPU", "processes x (launch to finish), including startup"),
        ("local", "H200", "GPUs x (launch to finish), including startup"),
        ("slurm", "H200", "GPUs x (scheduler admission to finish), including startup"),
    ],
)
def test_hours_count_from_what_the_launcher_knows(
    tmp_path: Path, launcher: str, gpu: str, note: str
) -> None:
    machine = {"gpu": gpu, "count": 8, "per_node": 8}
    run = make_run(tmp_path / "run", launcher=launcher, machine=machine)
    assert measure(run)["gpu_hours_note"] == note


def test_slots_that_contradict_the_batch_are_told(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", step_fields={"slots": 9000, "tokens": 5, "supervised_tokens": 1}
    )
    with pytest.raises(InputError, match="contradicts itself"):
        measure(run)


def test_an_engines_padding_beyond_the_rows_is_not_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", step_fields={"slots": 128 * 8192 + 4096})
    assert measure(run)["window_tokens"] == WINDOW_TOKENS


def test_unknown_counts_leave_their_rates_unknown(tmp_path: Path) -> None:
    unknown = {"slots": None, "tokens": None, "supervised_tokens": None}
    result = measure(make_run(tmp_path / "run", step_fields=unknown))
    assert result["tokens_per_s_per_gpu"] is not None
    assert result["nonpadding_tokens_per_s_per_gpu"] is None
    assert result["supervised_tokens_per_s_per_gpu"] is None


def test_a_run_that_is_not_finished_has_no_gpu_hours(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", state="running", times={"admitted": BEGUN})
    assert measure(run)["gpu_hours"] is None


def test_an_mfu_above_one_is_told(tmp_path: Path) -> None:
    model = {**NANO["model"], "active_parameters": 10**14}  # type: ignore[dict-item]
    with pytest.raises(InputError, match="at most 1"):
        measure(make_run(tmp_path / "run", model=model))


def test_the_block_is_json_without_nan(run: RunRecord) -> None:
    json.dumps(measure(run), allow_nan=False, default=str)


def test_a_checkpoint_in_the_hubs_cache_tells_its_origin(tmp_path: Path) -> None:
    revision = "bf77c3174f68ad409e1c2aa60daeb46e32d1c606"
    path = f"/cache/hub/models--nvidia--NVIDIA-Nemotron-3-Nano/snapshots/{revision}"
    run = make_run(
        tmp_path / "run",
        flags={"global-batch-size": 128, "hf-checkpoint": path},
        model={"name": "Nano", "active_parameters": 3227369472},
    )
    assert measure(run)["active_params"] == {
        "count": 3227369472,
        "source": "https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Nano",
        "revision": revision,
    }
