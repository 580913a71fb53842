"""What fixes each numeric field of a recipe: nothing that was measured stands alone.

``exact``: a relation gives the value. ``bounded``: a relation gives an interval, at most the half
of the last digit written where it derives the value. ``free``: there is nothing in the recipe to
compare it with. A change inside a bound, and of a free field, is found by ``verify --evidence``.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from openrecipes.layouts.block import Block
from openrecipes.recipe.schema import Recipe

Kind = Literal["exact", "bounded", "free"]


@dataclass(frozen=True)
class Relation:
    """What fixes one field.

    Args:
        kind: exact, bounded or free.
        by: the formula or bound, with the lint rule that holds it.
    """

    kind: Kind
    by: str


def _exact(by: str) -> Relation:
    return Relation("exact", by)


def _bounded(by: str) -> Relation:
    return Relation("bounded", by)


_FREE = Relation("free", "nothing in the recipe")
_AXES = _exact("label, summary, run (`layout-label`, `layout-text`, `run-flags`)")
_TRIAL = _bounded("TP x PP x CP x DP = GPUs (`trials`)")

#: Field to what fixes it; items of a list have the place ``[]``.
RELATIONS: dict[str, Relation] = {
    "schema_version": _exact("1 (`schema`)"),
    "gpu.memory_gb": _exact(
        "the GPU's label in the catalogue (`gpu-memory`); with an unknown GPU free"
    ),
    "gpu.count": _exact("TP x PP x CP x DP (`world-divides`), nodes x per_node (`run-flags`)"),
    "gpu.per_node": _exact("the instance's GPUs (`instance-agrees`), run (`run-flags`)"),
    "workload.row_tokens": _exact("window_tokens, build, summary (`window-tokens`, `rows`)"),
    "workload.global_batch": _exact("window_tokens, run (`window-tokens`, `run-flags`)"),
    "workload.dataset.build.rows": _bounded("at least steps x global_batch (`rows`)"),
    "workload.dataset.build.row_tokens": _exact("workload.row_tokens (`rows`)"),
    "workload.dataset.build.padding_tokens": _bounded(
        "0 without a non-padding rate, else within 0.2 of its share (`parts-of-rate`)"
    ),
    "workload.dataset.build.seed": _FREE,
    "workload.dataset.build.supervised_token_ratio": Relation(
        "free", "0 to 1; with a supervised rate bounded (`parts-of-rate`)"
    ),
    "workload.dataset.build.parquet_bytes": _bounded("0.1 to 10 bytes a token (`rows`)"),
    **{f"layout.{axis}": _AXES for axis in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")},
    "layout.layer_split[]": _exact(
        "layers of the model, run (`layer-split-fits`, `run-flags`); with an unknown model free "
        "where there is no run"
    ),
    "layout.max_tokens_per_gpu": _exact("run, summary (`run-flags`, `layout-text`)"),
    "layout.rows_per_microbatch": _exact(
        "max(1, max_tokens_per_gpu x CP // row_tokens) (`rows-per-microbatch`)"
    ),
    "layout.recompute.num_layers": _exact("run, summary (`run-flags`, `layout-text`)"),
    "layout.offload.optimizer_fraction": _exact("run, summary (`run-flags`, `layout-text`)"),
    "result.tokens_per_s_per_gpu": _bounded(
        "at most peak / 6 N (`rate`); MFU and price, where given, within half of their last digit "
        "(`mfu`, `price`); with step_time_s exact (`step-time`), with runs_detail exact (`runs`)"
    ),
    "result.nonpadding_tokens_per_s_per_gpu": _bounded(
        "at most the rate; the rate where there is no padding (`parts-of-rate`)"
    ),
    "result.supervised_tokens_per_s_per_gpu": _bounded(
        "at most the non-padding rate (`parts-of-rate`)"
    ),
    "result.usd_per_million_tokens": _exact("price / (rate x 3600) x 10^6, two decimals (`price`)"),
    "result.price.usd_per_gpu_hour": _bounded(
        "usd_per_million_tokens within half of its last digit (`price`)"
    ),
    "result.step_time_cv_percent": Relation(
        "free", "0.05 to 100 (`percent`); with step_time_s bounded (`step-time`)"
    ),
    "result.step_time_s.mean": _exact("global_batch x row_tokens / rate / GPUs (`step-time`)"),
    "result.step_time_s.p50": _bounded("at most p95 (`step-time`)"),
    "result.step_time_s.p95": _bounded("p50 to max (`step-time`)"),
    "result.step_time_s.max": _bounded("at least p95 and mean; the CV's bounds (`step-time`)"),
    "result.mfu": _exact(
        "6 x N x rate / peak, three digits (`mfu`); with an unknown GPU, or an unknown model and "
        "no active_params, free"
    ),
    "result.active_params.count": _exact(
        "N of the model's config (`active-params`); with a model that the table of names does not "
        "know free, with an MFU bounded (`mfu`)"
    ),
    "result.steps_per_run": _exact("the steps that the flags ask for (`steps`)"),
    "result.window[]": _exact("last - first + 1 steps give window_tokens (`window-tokens`)"),
    "result.window_tokens": _exact("window x global_batch x row_tokens (`window-tokens`)"),
    "result.runs": Relation("free", "with runs_detail exact (`runs`)"),
    "result.runs_detail[].tokens_per_s_per_gpu": _exact("their harmonic mean is the rate (`runs`)"),
    "result.runs_detail[].step_time_cv_percent": _FREE,
    "result.runs_detail[].gpu_hours": _FREE,
    "result.gpu_hours": _bounded(
        "0.9 x steps x tokens / rate to that + one hour of start-up per GPU (`gpu-hours`)"
    ),
    "correctness.component_tests[].relative_error": _bounded("the bound (`component-tests`)"),
    "correctness.component_tests[].bound": _bounded("the error (`component-tests`)"),
    "correctness.convergence.steps": _exact(
        "steps_per_run where the measured run is the candidate (`convergence-steps`)"
    ),
    "correctness.convergence.correlation": _bounded("0.95 to 1 for a pass (`convergence`)"),
    "correctness.convergence.final_loss_difference": _bounded(
        "0 to 0.03 for a pass (`convergence`)"
    ),
    "correctness.convergence.pointwise_failures": _bounded(
        "0 to 10% of steps for a pass (`convergence`)"
    ),
    **{f"trials[].layout.{axis}": _TRIAL for axis in ("tp", "pp", "cp", "dp")},
    **{
        f"trials[].layout.{name}": _bounded("the layout rules, where it went well (`trials`)")
        for name in ("vpp", "ep", "etp", "layer_split[]", "rows_per_microbatch")
    },
    "trials[].layout.max_tokens_per_gpu": _bounded(
        "rows_per_microbatch, where it went well (`trials`)"
    ),
    "trials[].layout.recompute.num_layers": _FREE,
    "trials[].layout.offload.optimizer_fraction": _FREE,
    "trials[].step": _bounded("below steps_per_run (`trials`)"),
    "trials[].rank": _bounded("below gpu.count (`trials`)"),
}


def numeric_fields(block: type[Block] = Recipe, path: str = "") -> Iterator[str]:
    """Every numeric field of the schema, items of lists as ``[]``."""
    for name, info in block.model_fields.items():
        here = f"{path}.{info.alias or name}" if path else info.alias or name
        yield from _numeric(info.annotation, here)


def _numeric(kind: Any, path: str) -> Iterator[str]:
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _numeric(get_args(kind)[0], path)
    elif origin in (Union, types.UnionType):
        found = dict.fromkeys(p for part in get_args(kind) for p in _numeric(part, path))
        yield from found
    elif origin is tuple:
        yield from _numeric(get_args(kind)[0], f"{path}[]")
    elif origin is Literal:
        if all(isinstance(value, int) and value is not True for value in get_args(kind)):
            yield path
    elif isinstance(kind, type) and issubclass(kind, Block):
        yield from numeric_fields(kind, path)
    elif kind in (int, float):
        yield path


def share_free() -> float:
    """The share of numeric fields that nothing fixes."""
    return sum(relation.kind == "free" for relation in RELATIONS.values()) / len(RELATIONS)


def relations_table() -> str:
    """The fields as a Markdown table, for the documentation."""
    note = (
        "A planned recipe may have no `run`, label or summary: a field that only these fix is free "
        "in it. So is one that the model, GPU or instance fixes, where the table of names or the "
        "catalogue does not know it; `model-known`, `gpu-known` and `instance-agrees` say so."
    )
    rows = [f"| `{path}` | {r.kind} | {r.by} |" for path, r in RELATIONS.items()]
    return "\n".join(["| Field | Kind | Fixed by |", "|---|---|---|", *rows, "", note])
