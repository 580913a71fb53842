"""Lint rules about the document itself: hashes, dates, addresses, names, status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from difflib import get_close_matches
from typing import Any

from openrecipes.architectures.configs import find, models
from openrecipes.hardware.catalogue import CPU
from openrecipes.recipe.lint.context import Context
from openrecipes.recipe.lint.finding import Broken, LintRule, Severity
from openrecipes.recipe.names import path_faults

_FIRST_DAY = date(2020, 1, 1)
_HEX = re.compile(r"[0-9a-f]+")
_PLACE = re.compile(r"recipes(/(?!\.)[a-z0-9._-]+){1,3}\.yaml")


def _model_known(context: Context) -> Iterator[Broken]:
    name = context.recipe.model
    if find(name) is not None:
        return
    known = {model.name.lower(): model.name for model in models()}
    near = get_close_matches(name[:100].lower(), known, n=1, cutoff=0.8)
    hint = f"did you mean {known[near[0]]}?" if near else "give active_params with its source"
    message = f"N, layers and heads are not known, so what depends on them is not checked: {hint}"
    severity: Severity = "note" if context.recipe.gpu.type == CPU else "warning"
    expected = known[near[0]] if near else ", ".join(known.values())
    yield Broken("model", name, expected, message, severity)


def _hashes(context: Context) -> Iterator[Broken]:
    for path, value in _strings(context.recipe.block()):
        name = path.rpartition(".")[2]
        if name.endswith("sha256"):
            yield from _hash(path, value, 64)
        elif name == "digest":
            if not value.startswith("sha256:"):
                yield Broken(path, value, "sha256:...", "an image's digest names its algorithm")
            yield from _hash(path, value.removeprefix("sha256:"), 64)
        elif name == "revision" and _HEX.fullmatch(value) and len(value) != 40:
            yield Broken(path, value, "40 hexadecimal digits", "a revision is a whole commit hash")
        elif name == "revision" and len(value) >= 32:
            yield from _hash(path, value, 40)
        else:
            for match in re.finditer(r"\bsha256[: ]+([0-9A-Za-z]{16,})", value):
                yield from _hash(path, match[1], 64)
            for match in re.finditer(r"\brevision ([0-9A-Za-z]{32,})\b", value):
                yield from _hash(path, match[1], 40)


def _hash(path: str, value: str, length: int) -> Iterator[Broken]:
    if len(value) != length or not _HEX.fullmatch(value) or len(set(value)) == 1:
        found = f"{value[:12]}... ({len(value)} characters)"
        expected = f"{length} hexadecimal digits, lower case"
        yield Broken(path, found, expected, "not a hash of that kind")


def _strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("run", "notes", "arguments"):
                yield from _strings(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, f"{path}.{index}")
    elif isinstance(value, str):
        yield path, value


def _identical(context: Context) -> Iterator[Broken]:
    dataset = context.recipe.workload.dataset
    build = dataset.build if dataset else None
    if dataset is None or build is None or build.identical_to is None:
        return
    field = "workload.dataset.build.identical_to"
    name = re.split(r"[,\s]", build.identical_to, maxsplit=1)[0]
    if name == build.name:
        yield Broken(
            field, name, "the name of other rows", "these rows are named as their own twin"
        )
        return
    other = context.rows(name)
    if other is None:
        return
    pairs = [("rows_sha256", dataset.rows_sha256, other[0])]
    if "byte for byte" in build.identical_to:
        pairs.append(("parquet_sha256", build.parquet_sha256, other[1]))
    for key, ours, theirs in pairs:
        if ours is not None and theirs is not None and ours != theirs:
            yield Broken(
                field, f"{key} {ours[:12]}...", f"{theirs[:12]}...", f"{name} has another {key}"
            )


def _texts(context: Context) -> Iterator[Broken]:
    workload = context.recipe.workload
    build = workload.dataset.build if workload.dataset else None
    if build is None:
        return
    for name in ("packing", "builder", "name"):
        text = getattr(build, name) or ""
        field = f"workload.dataset.build.{name}"
        for match in re.finditer(r"([\d,]{1,12})-token rows?|fixed(\d{1,9})\b", text):
            said = int((match[1] or match[2]).replace(",", "") or 0)
            if said != workload.row_tokens:
                yield Broken(field, said, workload.row_tokens, "the text names another row length")
        mask = re.search(r"--loss-mask(?:-type)?[ =](\w+)", text)
        if mask and build.loss_mask is not None and mask[1] != build.loss_mask:
            yield Broken(field, mask[1], build.loss_mask, "the text names another loss mask")


def _dates(context: Context) -> Iterator[Broken]:
    recipe = context.recipe
    result, correctness = recipe.result, recipe.correctness
    days = {}
    if result is not None:
        days["result.measured"] = result.measured
        days["result.price.date"] = result.price.date if result.price else None
    for index, review in enumerate((correctness and correctness.reviews) or ()):
        days[f"correctness.reviews.{index}.date"] = review.date
    for field, day in days.items():
        if day is not None and not _FIRST_DAY <= day <= context.today:
            expected = f"{_FIRST_DAY} to {context.today}"
            yield Broken(field, str(day), expected, "not a day on which this can have happened")
    measured = days.get("result.measured")
    if measured is None:
        return
    for field, day in days.items():
        if day is None or field == "result.measured":
            continue
        price = field == "result.price.date"
        if day > measured if price else day < measured:
            expected = f"{'at most' if price else 'at least'} {measured}"
            message = "a price is known before the run, a review is written after it"
            yield Broken(field, str(day), expected, message)


def _addresses(context: Context) -> Iterator[Broken]:
    recipe = context.recipe
    found = {
        "author.url": recipe.author.url if recipe.author else None,
        "evidence.url": recipe.evidence.url if recipe.evidence else None,
    }
    for field, url in found.items():
        if url is not None and not re.fullmatch(r"https?://[^\s<>\"'`\\]+", url):
            yield Broken(field, url, "https://...", "not a web address")
    if recipe.evidence is not None:
        if recipe.evidence.path is None and recipe.evidence.url is None:
            yield Broken("evidence", None, "path or url", "evidence lies somewhere")
        path = recipe.evidence.path or ""
        if path.startswith(("/", "~")) or ".." in path.replace("\\", "/").split("/"):
            message = "evidence lies beside the recipe"
            yield Broken("evidence.path", path, "a path inside the recipe's folder", message)


def _others(context: Context) -> Iterator[Broken]:
    recipe = context.recipe
    reference = recipe.correctness.reference_recipe if recipe.correctness else None
    named = {
        "superseded_by": recipe.superseded_by,
        "correctness.reference_recipe.path": reference.path if reference else None,
    }
    for field, place in named.items():
        if place is not None and not _PLACE.fullmatch(place):
            expected = "recipes/MODEL/GPU/NAME.yaml"
            yield Broken(field, place, expected, "not a place in a registry", "warning")
    if reference is None or reference.sha256 is None or not _PLACE.fullmatch(reference.path):
        return
    found = context.neighbours(reference.path)
    if found is not None and found != reference.sha256:
        field = "correctness.reference_recipe.sha256"
        message = f"{reference.path} has changed since the check"
        yield Broken(field, f"{reference.sha256[:12]}...", f"{found[:12]}...", message)


def _status(context: Context) -> Iterator[Broken]:
    recipe = context.recipe
    result = recipe.result
    if (
        recipe.status == "planned"
        and result is not None
        and result.tokens_per_s_per_gpu is not None
    ):
        message = "a planned recipe has not been measured"
        yield Broken("status", "planned", "measured", message)
    if recipe.status == "withdrawn" and recipe.superseded_by is None:
        yield Broken("superseded_by", None, "a path", "a withdrawn recipe names its successor")
    stack = recipe.stack
    clean = "no local changes"
    if recipe.patches and stack is not None:
        for name in ("framework", "megatron_lm"):
            if clean in (getattr(stack, name) or ""):
                message = "patches are local changes"
                yield Broken(f"stack.{name}", clean, "the changes", message)
                break


def _names(context: Context) -> Iterator[Broken]:
    for found, expected, message in path_faults(context.recipe, context.path, context.header):
        yield Broken("path", found, expected, message)


DOCUMENT_RULES = (
    LintRule(
        "model-known",
        "warning",
        "model is in the table of names (on CPU, where anything small is tried: a note)",
        _model_known,
    ),
    LintRule(
        "hashes",
        "error",
        "a sha256 has 64 hexadecimal digits, a revision 40, also inside texts",
        _hashes,
    ),
    LintRule(
        "identical-to",
        "error",
        "identical_to names other rows with the same rows_sha256 (byte for byte: parquet_sha256)",
        _identical,
    ),
    LintRule(
        "rows-texts",
        "error",
        "row length and loss mask in name, packing and builder are the workload's",
        _texts,
    ),
    LintRule(
        "dates",
        "error",
        "2020 <= price.date <= measured <= review dates <= today",
        _dates,
    ),
    LintRule(
        "addresses", "error", "addresses are http(s); evidence lies beside the recipe", _addresses
    ),
    LintRule(
        "other-recipes",
        "error",
        "a recipe that is named lies in a registry (else a warning); the reference recipe's file "
        "still has its sha256",
        _others,
    ),
    LintRule(
        "status",
        "error",
        "planned has no rate, withdrawn has a successor, patches and no local changes exclude "
        "each other",
        _status,
    ),
    LintRule(
        "path",
        "error",
        "recipes/MODEL/GPU/AUTHOR-LAYOUT[-mtNk].yaml, lower case, in the first comment and where "
        "the file lies in a registry: model, GPU, author, axes and tokens agree",
        _names,
    ),
)
