"""The ``correctness`` block: the proof that a recipe trains the same model as its reference."""

from __future__ import annotations

from datetime import date as Day
from typing import Annotated, Literal

from pydantic import Strict

from openrecipes.layouts.block import Block, field

Verdict = Literal["pass", "fail", "review"]
ArgumentClass = Literal[
    "placement", "layout", "memory", "kernel", "numerics", "workload", "io", "unknown"
]


class ReferenceRecipe(Block):
    """The reference as a document."""

    path: str = field(
        "Path of the reference recipe.",
        example="recipes/nemotron-3-nano-30b-a3b/h200/miles-tp2-pp2-ep2.yaml",
        min_length=1,
    )
    sha256: str | None = field("sha256 of the file.", example="0f" * 32, default=None)


class ComponentTest(Block):
    """A comparison of two implementations of one function."""

    component: str = field("What was compared.", example="attention backend", min_length=1)
    flag: str = field("The argument that differs.", example="attention-backend", min_length=1)
    precision: str = field("Number format of the test.", example="bf16", min_length=1)
    relative_error: float = field("Greatest relative difference.", unit="1", example=0.0031, ge=0)
    bound: float = field("Greatest difference that passes.", unit="1", example=0.01, gt=0)
    result: Literal["pass", "fail"] = field("Verdict.", example="pass")


class Convergence(Block):
    """Losses of the candidate's and the reference's run, step by step."""

    steps: int = field("Steps compared.", unit="steps", example=20, ge=1)
    result: Verdict = field("Verdict.", example="pass")
    correlation: float | None = field(
        "Pearson correlation of the losses; null where a curve is constant.",
        unit="1",
        example=0.9999997,
        default=None,
        ge=-1,
        le=1,
    )
    final_loss_difference: float | None = field(
        "Relative difference of the last losses.", unit="1", example=4.3e-05, default=None, ge=0
    )
    pointwise_failures: int | None = field(
        "Steps whose losses differ by more than the tolerance.",
        unit="steps",
        example=0,
        default=None,
        ge=0,
    )
    note: str | None = field(
        "What the two runs were.", example="the measured run against the reference", default=None
    )
    parity_probe: bool | None = field("The parity probe was on.", example=False, default=None)
    candidate_run: str | None = field(
        "Run record of the candidate.", example="20261015-nano-a", default=None
    )
    reference_run: str | None = field(
        "Run record of the reference.", example="20261015-nano-ref", default=None
    )


class Review(Block):
    """A person's decision on an argument that the class list does not know."""

    flag: str = field("The argument.", example="optimizer-offload-fraction", min_length=1)
    candidate: str | None = field("The candidate's value.", example="0.55", default=None)
    reference: str | None = field("The reference's value.", example="1.0", default=None)
    class_: ArgumentClass = field("The class given.", example="placement", alias="class")
    reason: str = field(
        "Why.", example="moves optimizer state, changes no arithmetic", min_length=1
    )
    by: str | None = field("Who decided.", example="ATTUNE", default=None)
    date: Day | None = field("When.", example="2026-10-21", default=None)


class Correctness(Block):
    """Is it the same training?"""

    result: Verdict = field("Verdict of the whole check.", example="pass")
    summary: str | None = field("The verdict in a sentence.", example="passed", default=None)
    reference: str | None = field(
        "What the recipe was compared with.",
        example="miles' own launcher for this model",
        default=None,
    )
    reference_recipe: ReferenceRecipe | None = field(
        "The reference as a document.",
        example={"path": "recipes/nemotron-3-nano-30b-a3b/h200/miles-tp2-pp2-ep2.yaml"},
        default=None,
    )
    configuration: Verdict | None = field(
        "Verdict on the differences of the arguments.", example="pass", default=None
    )
    component_tests: Annotated[tuple[ComponentTest, ...], Strict(False)] | None = field(
        "Tests of changed kernels.", example=[], default=None
    )
    convergence: Convergence | None = field(
        "Verdict on the losses.", example={"steps": 20, "result": "pass"}, default=None
    )
    rules: str | None = field(
        "Class list and thresholds, with their versions.",
        example="openrecipes argument classes 1; Megatron-Bridge pipeline thresholds",
        default=None,
    )
    reviews: Annotated[tuple[Review, ...], Strict(False)] | None = field(
        "Decisions on unknown arguments.", example=[], default=None
    )
