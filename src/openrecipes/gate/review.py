"""A person's decision on a difference that the class list does not know, kept in the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from openrecipes.errors import InputError
from openrecipes.files import write_text
from openrecipes.flags.table import table
from openrecipes.gate import rules
from openrecipes.recipe.correctness import Review
from openrecipes.recipe.document import dump, load, parse


def read_reviews(path: str | Path) -> list[dict[str, Any]]:
    """The reviews in a recipe's ``correctness`` block; raises InputError as ``load`` does."""
    correctness = load(path).recipe.correctness
    reviews = correctness.reviews if correctness is not None else None
    return [review.block() for review in reviews or ()]


def review(
    path: str | Path,
    flag: str,
    *,
    class_: str,
    reason: str,
    by: str,
    candidate: str | None = None,
    reference: str | None = None,
    day: date,
) -> dict[str, Any]:
    """Record a decision in the recipe ``path`` and return it; it replaces an earlier one.

    Args:
        path: the candidate's recipe.
        flag: the argument, ``env.NAME`` for an environment variable, or another fact's name.
        class_: the class given.
        reason: why, for the next reader.
        by: who decides.
        candidate: the candidate's value that was looked at; None: any.
        reference: the reference's value that was looked at; None: any.
        day: the date of the decision.

    Raises:
        InputError: a class that is none, an empty reason or name, a flag that the class list knows,
            or a recipe that cannot be read.
    """
    path = Path(path)
    flag = flag.lstrip("-")
    _refuse_wrong(flag, class_=class_, reason=reason, by=by)
    document = load(path)
    decision = Review.model_validate(
        {
            "flag": flag,
            **({} if candidate is None else {"candidate": candidate}),
            **({} if reference is None else {"reference": reference}),
            "class": class_,
            "reason": reason.strip(),
            "by": by.strip(),
            "date": day,
        }
    ).block()
    correctness = document.data.get("correctness")
    if correctness is None:
        correctness = document.data["correctness"] = {"result": "review"}
    others = [old for old in correctness.get("reviews") or [] if not _replaces(decision, old)]
    correctness["reviews"] = [*others, decision]
    text = dump(document)
    parse(text, path)  # what was written must load again
    write_text(path, text)
    return decision


def _replaces(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    return all(new.get(key) == old.get(key) for key in ("flag", "candidate", "reference"))


def _refuse_wrong(flag: str, *, class_: str, reason: str, by: str) -> None:
    if class_ not in rules.REVIEWABLE:
        raise InputError(
            "give one of the classes",
            field="--class",
            found=class_,
            expected=" | ".join(rules.REVIEWABLE),
        )
    for option, text in (("--reason", reason), ("--by", by)):
        if not text.strip():
            raise InputError("say it", field=option, found="nothing", expected="a few words")
    kind, told = _known(flag)
    if kind != "unknown":
        raise InputError(
            "reviews are for what the class list does not know",
            field="FLAG",
            found=f"{flag} has class {kind}: {told}",
            expected="an unknown flag",
        )


def _known(flag: str) -> tuple[str, str]:
    """Class and reason that the class list gives a name already; ``unknown`` where it has none."""
    if flag in table():
        return table()[flag].class_, table()[flag].reason
    name = flag.removeprefix("env.")
    ruling = rules.environment(name) if name != flag else rules.fact(flag)
    return ruling.kind, ruling.reason
