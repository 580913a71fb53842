"""Lint rules about the layout: the layout rules, and the texts made from its numbers."""

from __future__ import annotations

from collections.abc import Iterator

from openrecipes.layouts.describe import misreadings, read_label, read_text
from openrecipes.layouts.rules import check
from openrecipes.recipe.lint.context import Context
from openrecipes.recipe.lint.finding import Broken, Finding, LintRule


def layout_findings(context: Context) -> list[Finding]:
    """The layout rules (room ``layouts``) that the recipe breaks, as findings."""
    recipe = context.recipe
    violations = check(
        context.layout,
        engine=context.engine,
        world_size=recipe.gpu.count,
        model=context.model,
        global_batch=recipe.workload.global_batch,
        row_tokens=recipe.workload.row_tokens,
        flags=context.flags,
        env=recipe.env,
        gpu=recipe.gpu.type,
        framework=recipe.stack.framework if recipe.stack else None,
    )
    return [
        Finding(
            violation.rule,
            "error",
            violation.field,
            violation.found,
            violation.expected,
            violation.message,
            violation.engine,
            violation.nearest,
        )
        for violation in violations
    ]


def _label(context: Context) -> Iterator[Broken]:
    label = context.recipe.layout.label
    if label is None:
        return
    for found, expected in read_label(label, context.layout):
        yield Broken("layout.label", found, expected, "the label says another layout")


def _texts(context: Context) -> Iterator[Broken]:
    layout = context.recipe.layout
    row_tokens = context.recipe.workload.row_tokens
    for name, complete in (("summary", True), ("highlights", False)):
        text = getattr(layout, name)
        if text is None:
            continue
        said = read_text(text)
        for found, expected in misreadings(said, context.layout, row_tokens, complete=complete):
            yield Broken(f"layout.{name}", found, expected, f"the {name} says another layout")


def _trials(context: Context) -> Iterator[Broken]:
    recipe, result = context.recipe, context.recipe.result
    steps = result.steps_per_run if result else None
    for index, trial in enumerate(recipe.trials or ()):
        field = f"trials.{index}"
        broken = check(
            trial.layout,
            engine=context.engine,
            world_size=recipe.gpu.count,
            model=context.model,
            row_tokens=recipe.workload.row_tokens,
        )
        if trial.outcome != "ok":  # it may have failed because of a rule: that is why it is told
            broken = [violation for violation in broken if violation.rule == "world-divides"]
        for violation in broken:
            place = f"{field}.{violation.field}"
            yield Broken(place, violation.found, violation.expected, violation.message)
        if trial.rank is not None and trial.rank >= recipe.gpu.count:
            message = "there is no such rank"
            yield Broken(f"{field}.rank", trial.rank, f"below {recipe.gpu.count}", message)
        if trial.step is not None and steps is not None and trial.step >= steps:
            message = "there is no such step"
            yield Broken(f"{field}.step", trial.step, f"below {steps}", message)
        if trial.outcome == "ok" and (trial.step is not None or trial.rank is not None):
            message = "a trial that went well failed at no step"
            yield Broken(f"{field}.step", trial.step, None, message)


LAYOUT_LINT_RULES = (
    LintRule(
        "layout-label",
        "error",
        "label = TP PP EP DP always, VPP CP ETP when above 1, with the layout's numbers",
        _label,
    ),
    LintRule(
        "layout-text",
        "error",
        "each number and each option that summary and highlights name is the layout's; the "
        "summary leaves no option out",
        _texts,
    ),
    LintRule(
        "trials",
        "warning",
        "trials are for the recipe's GPUs; one that went well breaks no layout rule and failed at "
        "no step; step and rank exist",
        _trials,
    ),
)
