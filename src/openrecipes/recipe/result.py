"""The ``result`` block: what was measured, and over which steps."""

from __future__ import annotations

from datetime import date as Day
from typing import Annotated, Literal

from pydantic import Strict

from openrecipes.layouts.block import Block, Step, Strings, field

Dtype = Literal["fp32", "bf16", "fp16", "fp8", "int8"]
LayerRecompute = Literal["none", "selective", "full"]


class ActiveParams(Block):
    """Matrix parameters that take part in one token's forward pass (N of the MFU)."""

    count: int = field("N.", unit="parameters", example=3227369472, ge=1)
    source: str | None = field(
        "Where the model's config comes from.",
        example="https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        default=None,
    )
    revision: str | None = field(
        "Revision of the source.",
        example="bf77c3174f68ad409e1c2aa60daeb46e32d1c606",
        default=None,
    )


class Price(Block):
    """The price that the cost was computed with."""

    usd_per_gpu_hour: float = field(
        "Price of one GPU for one hour.", unit="USD/GPU-hour", example=7.912, gt=0
    )
    source: str | None = field(
        "Whose price.", example="AWS p5en.48xlarge, on demand, us-east-2", default=None
    )
    date: Day | None = field("Day of the price.", example="2026-10-15", default=None)


class StepTime(Block):
    """Step times over the measured window."""

    mean: float = field("Mean.", unit="s", example=16.77, gt=0)
    p50: float = field("Median.", unit="s", example=16.75, gt=0)
    p95: float = field("95th percentile.", unit="s", example=17.2, gt=0)
    max: float = field("Longest step.", unit="s", example=17.3, gt=0)


class Dtypes(Block):
    """Number formats of what the optimizer keeps."""

    weights: Dtype | None = field("Weights.", example="bf16", default=None)
    gradients: Dtype | None = field("Gradients.", example="fp32", default=None)
    master: Dtype | None = field("Master weights.", example="fp32", default=None)
    exp_avg: Dtype | None = field("Adam's first moment.", example="fp32", default=None)
    exp_avg_sq: Dtype | None = field("Adam's second moment.", example="fp32", default=None)


class LayerKinds(Block):
    """Effective recompute of each kind of layer, by the letters of the layer pattern."""

    mamba: LayerRecompute | None = field("Mamba-2 layers.", example="none", default=None, alias="M")
    moe: LayerRecompute | None = field("MoE layers.", example="none", default=None, alias="E")
    attention: LayerRecompute | None = field(
        "Attention layers.", example="none", default=None, alias="*"
    )
    mlp: LayerRecompute | None = field("MLP layers.", example="none", default=None, alias="-")


class EffectiveRecompute(Block):
    """What the engine really recomputed, whatever the flags asked for."""

    granularity: Literal["none", "full", "selective"] = field(
        "Effective granularity.", example="none"
    )
    modules: Strings = field("Effective modules.", example=["moe"], default=())
    layers: LayerKinds | None = field(
        "Per kind of layer.", example={"M": "none", "E": "selective"}, default=None
    )


class RunDetail(Block):
    """One of the runs that a rate is pooled over."""

    run: str = field("Id of the run record.", example="20261015-nano-a", min_length=1)
    tokens_per_s_per_gpu: float = field(
        "The run's own rate.", unit="tokens/s/GPU", example=7810.4, gt=0
    )
    step_time_cv_percent: float | None = field(
        "The run's own spread.", unit="%", example=1.6, default=None, ge=0
    )
    gpu_hours: float | None = field(
        "GPU-hours of the run.", unit="GPU-hours", example=1.2, default=None, gt=0
    )


class Result(Block):
    """Figures of the measured runs. A key with null says: not known."""

    tokens_per_s_per_gpu: float | None = field(
        "Rows' tokens per second and GPU over the window, padding included.",
        unit="tokens/s/GPU",
        example=7814.02,
        default=None,
        gt=0,
    )
    nonpadding_tokens_per_s_per_gpu: float | None = field(
        "The same, without padding.", unit="tokens/s/GPU", example=7814.02, default=None, gt=0
    )
    supervised_tokens_per_s_per_gpu: float | None = field(
        "The same, tokens with a loss only.",
        unit="tokens/s/GPU",
        example=5196.32,
        default=None,
        gt=0,
    )
    usd_per_million_tokens: float | None = field(
        "Cost of a million tokens.", unit="USD/1M tokens", example=0.28, default=None, ge=0
    )
    usd_note: str | None = field(
        "Why the cost is not known.", example="no price for these GPUs", default=None
    )
    price: Price | None = field(
        "The price behind the cost.", example={"usd_per_gpu_hour": 7.912}, default=None
    )
    step_time_cv_percent: float | None = field(
        "Standard deviation / mean of the window's step times, in percent.",
        unit="%",
        example=1.63,
        default=None,
        ge=0,
    )
    cv_kind: Literal["population", "sample"] | None = field(
        "Which standard deviation.", example="population", default=None
    )
    step_time_s: StepTime | None = field(
        "Step times.",
        example={"mean": 16.77, "p50": 16.75, "p95": 17.2, "max": 17.3},
        default=None,
    )
    mfu: float | None = field(
        "Model FLOPs utilisation, 6 x N x rate / dense peak, a fraction.",
        unit="1",
        example=0.153,
        default=None,
        ge=0,
        le=1,
    )
    mfu_note: str | None = field(
        "Why the MFU is not known.", example="no peak is known for a CPU", default=None
    )
    active_params: ActiveParams | None = field(
        "N of the MFU.", example={"count": 3227369472}, default=None
    )
    measured: Day | None = field("Day of the run.", example="2026-10-15", default=None)
    steps_per_run: int | None = field(
        "Steps of each run.", unit="steps", example=20, default=None, ge=1
    )
    window: Annotated[tuple[Step, Step], Strict(False)] | None = field(
        "First and last measured step, inclusive, counted from 0.",
        unit="step",
        example=[5, 19],
        default=None,
    )
    window_tokens: int | None = field(
        "Tokens of the window: steps x rows x row length.",
        unit="tokens",
        example=15728640,
        default=None,
        ge=1,
    )
    runs: int | None = field(
        "Runs that the rate is pooled over.", unit="runs", example=1, default=None, ge=1
    )
    runs_detail: Annotated[tuple[RunDetail, ...], Strict(False)] | None = field(
        "The runs one by one.",
        example=[{"run": "20261015-nano-a", "tokens_per_s_per_gpu": 7810.4}],
        default=None,
    )
    profiler: bool | None = field("A profiler was on.", example=False, default=None)
    routing: Literal["natural", "forced"] | None = field(
        "Experts chosen by the router, or forced to balance.", example="natural", default=None
    )
    dtypes: Dtypes | None = field(
        "Number formats.", example={"weights": "bf16", "master": "fp32"}, default=None
    )
    effective_recompute: EffectiveRecompute | None = field(
        "What was really recomputed.", example={"granularity": "none"}, default=None
    )
    gpu_hours: float | None = field(
        "GPUs x (admission to finish), start-up included.",
        unit="GPU-hours",
        example=1.2,
        default=None,
        gt=0,
    )
    gpu_hours_note: str | None = field(
        "What the GPU-hours cover.", example="scheduler admission to finish", default=None
    )
