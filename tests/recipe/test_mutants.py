"""Thousands of small changes: each one outside its field's bound is found by lint.

The bounds are computed here on their own, from the published formulas.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from openrecipes.recipe.lint import lint_data
from openrecipes.recipe.lint.relations import RELATIONS, numeric_fields, share_free

from .mutants import (
    Mutant,
    flag_mutants,
    hash_mutants,
    leaves,
    number_mutants,
    numbers,
    place,
    swap_mutants,
)
from .recipes import NANO, SUPER, complete, with_arguments

SEED = 20261015
PEAK = 989e12
BASES = {
    "nano": with_arguments(NANO),
    "super": with_arguments(SUPER),
    "complete": complete(),
}


def found(data: dict[str, Any]) -> bool:
    return any(finding.severity != "note" for finding in lint_data(data))


def near(value: float, expected: float, width: float) -> bool:
    return abs(value - expected) <= width * (1 + 1e-6)


def at(data: dict[str, Any], path: str) -> Any:
    for key in path.split("."):
        data = data[key]
    return data


def rate_fits(data: dict[str, Any]) -> bool:
    """Rate, MFU, price: within half of the last digit written."""
    result = data["result"]
    rate = result["tokens_per_s_per_gpu"]
    mfu = 6 * result["active_params"]["count"] * rate / PEAK
    price = (result.get("price") or {}).get("usd_per_gpu_hour", 63.296 / 8)
    if not near(result["mfu"], mfu, 0.0005 if mfu >= 0.1 else 0.00005):
        return False
    if not near(result["usd_per_million_tokens"], price / (rate * 3600) * 1e6, 0.005):
        return False
    times = result.get("step_time_s")
    tokens = data["workload"]["global_batch"] * data["workload"]["row_tokens"]
    if times is not None:
        derived = tokens / times["mean"] / data["gpu"]["count"]
        if not near(rate, derived, derived * 0.5e-4 / times["mean"] + 0.005):
            return False
    details = result.get("runs_detail")
    if details:
        pooled = len(details) / sum(1 / one["tokens_per_s_per_gpu"] for one in details)
        return near(rate, pooled, 0.0101)
    return True


def hours_fit(data: dict[str, Any]) -> bool:
    result, work = data["result"], data["workload"]
    tokens = result["steps_per_run"] * work["global_batch"] * work["row_tokens"]
    training = tokens / result["tokens_per_s_per_gpu"] / 3600
    most = result["runs"] * (training + data["gpu"]["count"])
    return 0.9 * training <= result["gpu_hours"] <= most


def spread_fits(data: dict[str, Any]) -> bool:
    result = data["result"]
    times, cv = result.get("step_time_s"), result["step_time_cv_percent"]
    if not (cv == 0 or 0.05 <= cv <= 100):
        return False
    if times is None:
        return True
    if not times["p50"] <= times["p95"] <= times["max"] or times["mean"] > times["max"]:
        return False
    steps = result["runs"] * (result["window"][1] - result["window"][0] + 1)
    above = times["max"] / times["mean"] - 1
    low, high = above / (steps - 1) ** 0.5, (above * steps / (steps - 1)) ** 0.5
    return 100 * low - 0.005 <= cv <= 100 * high + 0.005


def inside(data: dict[str, Any], field: str) -> bool:
    """Whether a changed field still holds its bound; an exact field never does."""
    kind = RELATIONS[field].kind
    build = data["workload"]["dataset"]["build"]
    result = data["result"]
    check = data["correctness"]["convergence"]
    tests = data["correctness"].get("component_tests") or []
    tokens = build["rows"] * data["workload"]["row_tokens"]
    rate = result["tokens_per_s_per_gpu"]
    parts = [result.get(f"{p}_tokens_per_s_per_gpu") for p in ("nonpadding", "supervised")]
    bounds = {
        "workload.dataset.build.rows": build["rows"] >= 2560
        and 0.1 * tokens <= build["parquet_bytes"] <= 10 * tokens + 1e5,
        "workload.dataset.build.parquet_bytes": int(0.1 * tokens)
        <= build["parquet_bytes"]
        <= int(10 * tokens) + 100_000,
        "workload.dataset.build.supervised_token_ratio": 0 <= build["supervised_token_ratio"] <= 1,
        "result.tokens_per_s_per_gpu": rate > 0
        and rate_fits(data)
        and hours_fit(data)
        and all(part is None or part <= rate for part in parts)
        and (parts[0] is None or near(parts[0], rate, 0.011)),
        "result.nonpadding_tokens_per_s_per_gpu": parts[0] is not None
        and near(parts[0], rate, 0.011)
        and parts[1] <= parts[0] <= rate,
        "result.supervised_tokens_per_s_per_gpu": parts[1] is not None and 0 < parts[1] <= parts[0],
        "result.price.usd_per_gpu_hour": rate_fits(data),
        "result.step_time_cv_percent": spread_fits(data),
        **{
            f"result.step_time_s.{name}": spread_fits(data) and rate_fits(data)
            for name in ("mean", "p50", "p95", "max")
        },
        "result.runs": result["runs"] >= 1 and "runs_detail" not in result and hours_fit(data),
        "result.runs_detail[].tokens_per_s_per_gpu": rate_fits(data),
        "result.gpu_hours": hours_fit(data),
        "correctness.component_tests[].relative_error": all(
            0 <= one["relative_error"] <= one["bound"] for one in tests
        ),
        "correctness.component_tests[].bound": all(
            one["relative_error"] <= one["bound"] for one in tests
        ),
        "correctness.convergence.correlation": 0.95 <= check["correlation"] <= 1,
        "correctness.convergence.final_loss_difference": 0
        <= check["final_loss_difference"]
        <= 0.03,
        "correctness.convergence.pointwise_failures": 0 <= check["pointwise_failures"] <= 2,
        "workload.dataset.build.seed": True,
        "result.runs_detail[].step_time_cv_percent": True,
    }
    filled = 1 - build["padding_tokens"] / tokens if tokens else 0
    ratio = build["supervised_token_ratio"]
    if parts[0] is not None:
        bounds["workload.dataset.build.padding_tokens"] = (
            near(parts[0] / rate, filled, 0.2) and parts[0] <= rate and filled > 0
        )
        bounds["workload.dataset.build.supervised_token_ratio"] &= near(
            parts[1] / parts[0], ratio, 0.2
        )
        bounds["result.supervised_tokens_per_s_per_gpu"] &= near(parts[1] / parts[0], ratio, 0.2)
    else:
        bounds["workload.dataset.build.padding_tokens"] = build["padding_tokens"] == 0
    for name in ("vpp", "ep", "etp", "rows_per_microbatch"):
        bounds[f"trials[].layout.{name}"] = True  # a trial that failed may have broken a rule
    trials = data.get("trials") or []
    for name in ("tp", "pp", "cp", "dp"):
        bounds[f"trials[].layout.{name}"] = all(
            t["layout"]["tp"] * t["layout"]["pp"] * t["layout"]["cp"] * t["layout"]["dp"]
            == data["gpu"]["count"]
            for t in trials
        )
    bounds["trials[].step"] = all(t["step"] < result["steps_per_run"] for t in trials)
    bounds["trials[].rank"] = all(t["rank"] < data["gpu"]["count"] for t in trials)
    if field in bounds:
        return bool(bounds[field])
    assert kind == "exact", field
    return False


def surviving(mutants: list[Mutant]) -> tuple[list[tuple[str, tuple[str, ...]]], int]:
    """Mutants that lint misses though not all their fields hold their bounds; and the found."""
    missed = [mutant for mutant in mutants if not found(mutant.data)]
    wrong = [
        (mutant.what, mutant.fields)
        for mutant in missed
        if not (mutant.fields and all(inside(mutant.data, field) for field in mutant.fields))
    ]
    return wrong, len(mutants) - len(missed)


@pytest.mark.parametrize("base", BASES)
def test_the_recipe_itself_is_clean(base: str) -> None:
    assert not found(BASES[base])


@pytest.mark.parametrize("base", BASES)
def test_changed_numbers_are_found(base: str) -> None:
    chance = random.Random(SEED)
    mutants = list(number_mutants(BASES[base], chance))
    assert len(mutants) > 600
    wrong, count = surviving(mutants)
    assert wrong == []
    assert count > 0.7 * len(mutants)


@pytest.mark.parametrize("base", BASES)
def test_swapped_numbers_are_found(base: str) -> None:
    chance = random.Random(SEED)
    assert surviving(list(swap_mutants(BASES[base], chance, 1000)))[0] == []


@pytest.mark.parametrize("base", BASES)
def test_changed_flags_are_found(base: str) -> None:
    chance = random.Random(SEED)
    mutants = list(flag_mutants(BASES[base], chance))
    assert len(mutants) > 200
    assert surviving(mutants)[0] == []


@pytest.mark.parametrize("base", BASES)
def test_broken_hashes_are_found(base: str) -> None:
    chance = random.Random(SEED)
    mutants = [mutant for _ in range(5) for mutant in hash_mutants(BASES[base], chance)]
    assert len(mutants) > 100
    assert surviving(mutants)[0] == []


@pytest.mark.parametrize("base", BASES)
def test_each_number_can_be_missed_by_nobody(base: str) -> None:
    """A bound that finds nothing at all would be no bound: each such field has a found mutant."""
    chance = random.Random(SEED)
    seen = {
        field: False
        for path, value in numbers(BASES[base])
        for field in [place(path)]
        if value and RELATIONS[field].kind != "free" and not field.startswith("trials[]")
    }
    for mutant in number_mutants(BASES[base], chance):
        (field,) = mutant.fields
        if field in seen and not seen[field]:
            seen[field] = found(mutant.data)
    assert [field for field, was in seen.items() if not was] == []


def test_every_numeric_field_has_its_relation() -> None:
    assert sorted(numeric_fields()) == sorted(RELATIONS)


def test_few_fields_are_free() -> None:
    assert share_free() <= 0.2
    nano = [place(path) for path, _ in numbers(BASES["nano"])]
    assert len(nano) == 37
    assert sum(RELATIONS[field].kind == "free" for field in nano) <= 0.2 * len(nano)


def test_leaves_reach_every_value() -> None:
    assert dict(leaves({"a": [1, {"b": 2}]})) == {("a", 0): 1, ("a", 1, "b"): 2}
