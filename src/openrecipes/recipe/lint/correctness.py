"""Lint rules about the correctness block: verdicts that follow from their own figures."""

from __future__ import annotations

from collections.abc import Iterator

from openrecipes.errors import InputError
from openrecipes.flags.table import classify
from openrecipes.metrics.convergence import PIPELINE
from openrecipes.recipe.flags import typed_value
from openrecipes.recipe.lint.context import Context
from openrecipes.recipe.lint.finding import Broken, LintRule

#: Classes whose differences fail, whatever a review says.
_FAILING = ("numerics", "workload")


def _verdict(context: Context) -> Iterator[Broken]:
    correctness = context.recipe.correctness
    if correctness is None:
        return
    parts = {"configuration": correctness.configuration}
    if correctness.convergence is not None:
        parts["convergence.result"] = correctness.convergence.result
    for index, test in enumerate(correctness.component_tests or ()):
        parts[f"component_tests.{index}.result"] = test.result
    if correctness.result == "pass":
        for name, verdict in parts.items():
            if verdict not in ("pass", None):
                message = f"a check passes only where {name} does"
                yield Broken("correctness.result", "pass", verdict, message)
    elif correctness.result == "fail" and set(parts.values()) <= {"pass"}:
        message = "every part of the check passes"
        yield Broken("correctness.result", correctness.result, "pass", message)
    if context.recipe.status == "verified":
        if correctness.result != "pass":
            message = "a verified recipe has passed its check"
            yield Broken("correctness.result", correctness.result, "pass", message)
        if correctness.convergence is None:
            message = "a verified recipe tells its convergence check"
            yield Broken("correctness.convergence", None, "a block", message)


def _convergence(context: Context) -> Iterator[Broken]:
    correctness = context.recipe.correctness
    check = None if correctness is None else correctness.convergence
    if check is None:
        return
    base = "correctness.convergence"
    allowed = PIPELINE.pointwise_fraction * check.steps
    low, far = PIPELINE.correlation, PIPELINE.final_loss
    figures = {
        "correlation": check.correlation,
        "final_loss_difference": check.final_loss_difference,
        "pointwise_failures": check.pointwise_failures,
    }
    over: list[tuple[str, float, str]] = []
    if check.correlation is not None and check.correlation < low:
        over.append(("correlation", check.correlation, f"at least {low}"))
    for name, limit in (("final_loss_difference", far), ("pointwise_failures", allowed)):
        value = figures[name]
        if value is not None and value > limit:
            over.append((name, value, f"at most {limit:g}"))
    if check.result == "pass":
        for name, value, text in over:
            yield Broken(f"{base}.{name}", value, text, "beyond the threshold of a pass")
    elif check.result == "fail" and not over and None not in figures.values():
        yield Broken(f"{base}.result", check.result, "pass", "every figure is within its threshold")
    if check.pointwise_failures is not None and check.pointwise_failures > check.steps:
        found = check.pointwise_failures
        yield Broken(
            f"{base}.pointwise_failures", found, f"at most {check.steps}", "more than steps"
        )


def _steps(context: Context) -> Iterator[Broken]:
    correctness, result = context.recipe.correctness, context.recipe.result
    check = None if correctness is None else correctness.convergence
    if check is None or result is None or result.steps_per_run is None:
        return
    if context.candidate_was_measured and check.steps != result.steps_per_run:
        message = "the measured run is the candidate; candidate_run names another where it is not"
        found, expected = check.steps, result.steps_per_run
        yield Broken("correctness.convergence.steps", found, expected, message)


def _components(context: Context) -> Iterator[Broken]:
    correctness = context.recipe.correctness
    for index, test in enumerate((correctness and correctness.component_tests) or ()):
        passes = test.relative_error <= test.bound
        if passes != (test.result == "pass"):
            message = f"error {test.relative_error:g} against a bound of {test.bound:g}"
            field = f"correctness.component_tests.{index}.result"
            yield Broken(field, test.result, "pass" if passes else "fail", message)


def _summary(context: Context) -> Iterator[Broken]:
    correctness = context.recipe.correctness
    if correctness is None or correctness.summary is None:
        return
    words = correctness.summary.lower()
    said = {
        verdict
        for verdict, word in (("pass", "passed"), ("fail", "failed"), ("review", "needs review"))
        if words.startswith(word)
    }
    if said and correctness.result not in said:
        message = "the summary begins with another verdict"
        yield Broken("correctness.summary", said.pop(), correctness.result, message)


def _reviews(context: Context) -> Iterator[Broken]:
    correctness = context.recipe.correctness
    for index, review in enumerate((correctness and correctness.reviews) or ()):
        field = f"correctness.reviews.{index}"
        if correctness and correctness.result == "pass" and review.class_ in _FAILING:
            message = f"a difference of class {review.class_} fails the check"
            yield Broken(f"{field}.class", review.class_, "a class that passes", message)
        if review.class_ == "unknown":
            yield Broken(f"{field}.class", "unknown", "a class", "a review gives a class")
        ours = context.flags.get(review.flag)
        if review.candidate is not None and ours is not None:
            try:
                same = typed_value(review.flag, review.candidate) == ours
            except InputError:
                same = False
            if not same:
                message = f"the recipe's --{review.flag} is another"
                yield Broken(f"{field}.candidate", review.candidate, str(ours), message)
        known, _ = classify(review.flag, review.candidate, review.reference)
        if known not in ("unknown", review.class_):
            message = f"the table of flags classes --{review.flag} as {known}"
            yield Broken(f"{field}.class", review.class_, known, message, "warning")


CORRECTNESS_RULES = (
    LintRule(
        "verdict",
        "error",
        "correctness passes where configuration, component tests and convergence pass; a verified "
        "recipe's passes",
        _verdict,
    ),
    LintRule(
        "convergence",
        "error",
        f"pass: correlation >= {PIPELINE.correlation}, final_loss_difference <= "
        f"{PIPELINE.final_loss}, pointwise_failures <= {PIPELINE.pointwise_fraction:.0%} of steps",
        _convergence,
    ),
    LintRule(
        "convergence-steps",
        "error",
        "convergence.steps = steps_per_run where the measured run is the candidate: candidate_run "
        "is absent or in runs_detail",
        _steps,
    ),
    LintRule(
        "component-tests", "error", "a test passes where relative_error <= bound", _components
    ),
    LintRule("verdict-summary", "error", "correctness.summary begins with the verdict", _summary),
    LintRule(
        "reviews",
        "error",
        "a review gives a class that passes, for the recipe's own value; the table's class where "
        "it has one (else a warning)",
        _reviews,
    ),
)
