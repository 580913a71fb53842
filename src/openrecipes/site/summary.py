"""One recipe in one line: what the index, the pages per model and ``index.json`` show of it."""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from openrecipes.recipe.schema import Recipe
from openrecipes.site import comparison, facts
from openrecipes.site.derive import implied_price

AXES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


class Summary(BaseModel):
    """A recipe as ``index.json`` lists it; an unknown figure is null."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    page: str = Field(description="Address of the page, from the site's root.")
    json_: str = Field(alias="json", description="Address of the recipe as JSON.")
    yaml: str = Field(description="Address of the recipe as YAML.")
    path: str = Field(description="Path of the recipe in its registry.")
    model: str = Field(description="Display name of the model.")
    gpu: str = Field(description="GPU type.")
    gpus: int = Field(description="GPUs of the whole job.")
    per_node: int = Field(description="GPUs of one machine.")
    engine: str | None = Field(description="native, miles or automodel.")
    status: Literal["planned", "measured", "verified", "withdrawn"] = Field(
        description="planned, measured, verified or withdrawn."
    )
    layout: str = Field(description="Short name of the layout.")
    highlights: str | None = Field(description="What else marks the layout.")
    author: str | None = Field(description="Who published it.")
    tokens_per_s_per_gpu: float | None = Field(description="Tokens per second and GPU.")
    usd_per_million_tokens: float | None = Field(description="USD per million tokens.")
    usd_per_gpu_hour: float | None = Field(
        description="USD per GPU-hour, stated or implied by price and rate."
    )
    mfu: float | None = Field(description="Model FLOPs utilisation, a fraction.")
    step_time_cv_percent: float | None = Field(description="Step-time CV in percent.")
    gpu_hours: float | None = Field(description="GPU-hours of the run.")
    row_tokens: int = Field(description="Row length in tokens.")
    global_batch: int = Field(description="Rows of one optimizer step.")
    measured: date | None = Field(description="Day of the measurement.")
    precision: str = Field(description="Number format of the computation.")
    axes: dict[str, int] = Field(description="Sizes of tp, pp, vpp, cp, ep, etp and dp.")
    sequence_parallel: bool = Field(description="Sequence parallel is on.")
    max_tokens_per_gpu: int | None = Field(description="Most tokens of a micro-batch.")
    rows_per_microbatch: int = Field(description="Rows of a micro-batch.")
    recompute: str = Field(description="Activation recompute in a few words.")
    offload: str = Field(description="Optimizer offload in a few words.")
    dispatcher: str | None = Field(description="How tokens travel to their experts.")


def summary(recipe: Recipe, address: str, name: str) -> Summary:
    """The summary of ``recipe``, whose page lies at ``address`` and whose path is ``name``."""
    result = recipe.result
    return Summary(
        page=f"{address}.html",
        json=f"{address}.json",
        yaml=f"{address}.yaml",
        path=name,
        model=recipe.model,
        gpu=recipe.gpu.type,
        gpus=recipe.gpu.count,
        per_node=recipe.gpu.per_node,
        engine=recipe.engine,
        status=recipe.status,
        layout=facts.label(recipe),
        highlights=recipe.layout.highlights,
        author=recipe.author.name if recipe.author else None,
        tokens_per_s_per_gpu=result.tokens_per_s_per_gpu if result else None,
        usd_per_million_tokens=result.usd_per_million_tokens if result else None,
        usd_per_gpu_hour=implied_price(recipe),
        mfu=result.mfu if result else None,
        step_time_cv_percent=result.step_time_cv_percent if result else None,
        gpu_hours=result.gpu_hours if result else None,
        row_tokens=recipe.workload.row_tokens,
        global_batch=recipe.workload.global_batch,
        measured=result.measured if result else None,
        precision=recipe.workload.precision,
        axes={axis: getattr(recipe.layout, axis) for axis in AXES},
        sequence_parallel=recipe.layout.sequence_parallel,
        max_tokens_per_gpu=recipe.layout.max_tokens_per_gpu,
        rows_per_microbatch=recipe.layout.rows_per_microbatch,
        recompute=comparison.recompute(recipe.layout),
        offload=comparison.offload(recipe.layout),
        dispatcher=recipe.layout.dispatcher,
    )
