"""What differs between two sides, by class, and what each difference means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from openrecipes.flags.table import Flag, classify, table
from openrecipes.gate import rules
from openrecipes.gate.plain import same
from openrecipes.gate.sides import Side

#: Verdicts of a difference, the gravest first.
_ORDER = ("fail", "review", "component", "pass")


@dataclass(frozen=True)
class Difference:
    """One difference and what it means.

    Attributes:
        flag: a flag's long name, ``env.NAME``, or the dotted name of another fact.
        candidate: the candidate's value.
        reference: the reference's value.
        kind: its class.
        verdict: pass, fail, component (a component test is required) or review.
        reason: one sentence.
        component: what to test, where the class is kernel.
        review: the review that gave the class, where one did.
    """

    flag: str
    candidate: Any
    reference: Any
    kind: str
    verdict: str
    reason: str
    component: str | None = None
    review: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The difference as a verdict holds it."""
        return {
            "flag": self.flag,
            "candidate": self.candidate,
            "reference": self.reference,
            "class": self.kind,
            "verdict": self.verdict,
            "reason": self.reason,
            **({"component": self.component} if self.component else {}),
            **({"review": dict(self.review)} if self.review else {}),
        }


@dataclass(frozen=True)
class Configuration:
    """All differences, the gravest first.

    ``not_compared`` names what only one side knows; ``compared`` counts what both know.
    """

    differences: tuple[Difference, ...]
    compared: int
    not_compared: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """fail, review, component or pass: the gravest verdict of a difference."""
        found = {difference.verdict for difference in self.differences}
        return next((verdict for verdict in _ORDER if verdict in found), "pass")

    def as_json(self) -> dict[str, Any]:
        """The configuration part of a verdict."""
        return {
            "verdict": self.verdict,
            "differences": [difference.as_json() for difference in self.differences],
            "compared": self.compared,
            "not_compared": list(self.not_compared),
        }


def compare(
    candidate: Side, reference: Side, reviews: Iterable[Mapping[str, Any]] = ()
) -> Configuration:
    """Compare flags, layout, environment, model, rows and stack of two sides.

    Args:
        candidate: what is checked.
        reference: what it must be the same training as.
        reviews: reviews of unknown names (``correctness.reviews`` of a recipe); those of two sides
            that are recipes count too.
    """
    reviews = [*reviews, *candidate.reviews, *reference.reviews]
    unlike: list[str] = []
    compared = 0
    found: list[Difference] = []
    for part in (_flags, _layout, _environment, _facts):
        names, differences = part(candidate, reference, unlike)
        compared += names
        found += differences
    found.extend(_rows_unknown(candidate, reference))
    found = [_reviewed(difference, reviews) for difference in found]
    found.sort(key=lambda d: (_ORDER.index(d.verdict), d.flag))
    return Configuration(tuple(found), compared, tuple(sorted(set(unlike))))


def _difference(
    flag: str, candidate: Any, reference: Any, ruling: rules.Ruling, verdict: str | None = None
) -> Difference:
    verdict = verdict or rules.verdict(ruling.kind)
    component = ruling.component or "all" if verdict == "component" else None
    return Difference(flag, candidate, reference, ruling.kind, verdict, ruling.reason, component)


def _flags(candidate: Side, reference: Side, unlike: list[str]) -> tuple[int, list[Difference]]:
    known = table()
    names = sorted(candidate.flags.keys() | reference.flags.keys())
    mixed = candidate.kind != reference.kind
    found = []
    for name in names:
        a, b = (_value(side, name, known) for side in (candidate, reference))
        if same(a, b):
            continue
        if mixed and any("$" in value for value in (a, b) if isinstance(value, str)):
            unlike.append(name)  # a recipe names a shell variable where a run holds its value
            continue
        kind, reason = classify(name, a, b)
        ruling = rules.Ruling(kind, reason, rules.component(name) if kind == "kernel" else None)
        idle = _without_effect(name, (candidate, a), (reference, b), known)
        if idle:
            ruling = rules.Ruling(kind, idle)
        found.append(_difference(name, a, b, ruling, "pass" if idle else None))
    return len(names), found


def _value(side: Side, name: str, known: Mapping[str, Flag]) -> Any:
    """The flag's value; where the side does not hold it, its default in the side's engine."""
    if name in side.flags:
        return side.flags[name]
    return _default(known[name], side.engine) if name in known else None


def _default(flag: Flag, engine: str | None) -> Any:
    support = flag.support.get(engine or "")
    return flag.default if support is None else support.default


def _without_effect(
    name: str, one: tuple[Side, Any], other: tuple[Side, Any], known: Mapping[str, Flag]
) -> str | None:
    """Why a difference in this flag did nothing on either side; None where it may have."""
    engine = one[0].engine
    if engine is None or engine != other[0].engine or name not in known:
        return None
    flag = known[name]
    support = flag.support.get(engine)
    if support is not None and support.status == "ignored":
        return f"The {engine} engine ignores it: {support.note or 'it has no counterpart'}."
    default = _default(flag, engine)
    idle = (name in side.ineffective or same(value, default) for side, value in (one, other))
    if one[0].kind == other[0].kind == "run" and all(idle):
        return "Both runs record that it had no effect."
    return None


def _layout(candidate: Side, reference: Side, unlike: list[str]) -> tuple[int, list[Difference]]:
    """What a layout block says that no flag does; the rest is compared flag by flag."""
    if candidate.layout is None or reference.layout is None:
        if candidate.layout is not reference.layout:
            unlike.append("layout")
        return 0, []
    held_by_flags = {flag.field for flag in table().values()}
    names = sorted((candidate.layout.keys() | reference.layout.keys()) - held_by_flags)
    found = []
    for name in names:
        a, b = candidate.layout.get(name), reference.layout.get(name)
        if not same(a, b):
            found.append(_difference(name, a, b, rules.fact(name)))
    return len(names), found


def _environment(
    candidate: Side, reference: Side, unlike: list[str]
) -> tuple[int, list[Difference]]:
    names = candidate.env.keys() | reference.env.keys()
    for one, other in ((candidate, reference), (reference, candidate)):
        if one.kind == "recipe" and other.kind == "run":
            # A recipe holds only what matters to it; what else a run had is not in question.
            names &= one.env.keys()
    found = []
    for name in sorted(names):
        a, b = candidate.env.get(name), reference.env.get(name)
        if not same(a, b):
            found.append(_difference(f"env.{name}", a, b, rules.environment(name)))
    return len(names), found


def _facts(candidate: Side, reference: Side, unlike: list[str]) -> tuple[int, list[Difference]]:
    both = candidate.facts.keys() & reference.facts.keys()
    unlike += (candidate.facts.keys() | reference.facts.keys()) - both - {"rows.rows_sha256"}
    settled = _same_model(candidate, reference)
    found = []
    for name in sorted(both):
        a, b = candidate.facts[name], reference.facts[name]
        if same(a, b):
            continue
        ruling, verdict = rules.fact(name), None
        if name in ("model.source", "model.name"):
            if settled:
                reason = "Another name for the same model: configuration and revision are equal."
                ruling = rules.Ruling("io", reason)
            elif _equal(candidate, reference, "model.config_sha256"):
                reason = "The configuration is the same; nothing tells that the weights are."
                ruling, verdict = rules.Ruling("workload", reason), "review"
        found.append(_difference(name, a, b, ruling, verdict))
    return len(both), found


def _equal(candidate: Side, reference: Side, name: str) -> bool:
    a, b = candidate.facts.get(name), reference.facts.get(name)
    return a is not None and same(a, b)


def _same_model(candidate: Side, reference: Side) -> bool:
    names = ("model.config_sha256", "model.revision")
    return all(_equal(candidate, reference, name) for name in names)


def _rows_unknown(candidate: Side, reference: Side) -> Iterator[Difference]:
    """Equal rows have to be shown: a hash that one side lacks is no equality."""
    name = "rows.rows_sha256"
    a, b = candidate.facts.get(name), reference.facts.get(name)
    if a is None or b is None:
        reason = "Nothing tells that both sides train on the same rows: a hash of them is missing."
        yield _difference(name, a, b, rules.Ruling("workload", reason), "review")


def _reviewed(difference: Difference, reviews: Iterable[Mapping[str, Any]]) -> Difference:
    """Give an unknown difference the class of the review that fits its values, if there is one."""
    if difference.kind != "unknown":
        return difference
    for review in reviews:
        if _fits(review, difference):
            kind = str(review["class"])
            reason = f"Reviewed by {review.get('by') or 'an unnamed person'}: {review['reason']}"
            verdict = rules.verdict(kind)
            component = rules.component(difference.flag) if verdict == "component" else None
            return replace(
                difference,
                kind=kind,
                verdict=verdict,
                reason=reason,
                component=component,
                review=dict(review),
            )
    return difference


def _fits(review: Mapping[str, Any], difference: Difference) -> bool:
    """Whether a review is whole and speaks of these two values; a null value speaks of any."""
    if str(review.get("flag", "")).lstrip("-") != difference.flag:
        return False
    if review.get("class") not in rules.REVIEWABLE or not review.get("reason"):
        return False
    return all(
        review.get(side) is None or same(_typed(review[side]), _typed(value))
        for side, value in (
            ("candidate", difference.candidate),
            ("reference", difference.reference),
        )
    )


def _typed(value: Any) -> Any:
    """A value as it was typed: a review holds text where a record holds a number."""
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    try:
        return float(text)
    except ValueError:
        return text.lower() if text.lower() in ("true", "false") else text
