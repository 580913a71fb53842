"""Names of recipe files: ``recipes/MODEL/GPU/AUTHOR-LAYOUT[-mtNk].yaml``, lower case."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from openrecipes.recipe.schema import Recipe

_AXES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


def slug(text: str) -> str:
    """``text`` as a part of a path: lower case letters, digits, ``.``, ``_`` and dashes."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.") or "unnamed"


def file_name(recipe: Recipe) -> str:
    """The recipe's file name; tokens per GPU are named where a micro-batch holds several rows."""
    layout = recipe.layout
    shown = [n for n in _AXES if n in ("tp", "pp", "ep") or (n != "dp" and getattr(layout, n) > 1)]
    parts = [slug(recipe.author.name) if recipe.author else recipe.status]
    parts += [f"{name}{getattr(layout, name)}" for name in shown]
    tokens = layout.max_tokens_per_gpu
    if tokens is not None and layout.rows_per_microbatch > 1 and tokens % 1024 == 0:
        parts.append(f"mt{tokens // 1024}k")
    return "-".join(parts) + ".yaml"


def registry_path(recipe: Recipe) -> str:
    """Where the recipe lies in a registry, from ``recipes/`` on."""
    return f"recipes/{slug(recipe.model)}/{slug(recipe.gpu.type)}/{file_name(recipe)}"


def path_faults(
    recipe: Recipe, path: Path | None, header: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    """What a recipe's place says otherwise than the recipe: found, expected, message.

    Looked at are the first comment where it is such a path, and the file's own path where it
    lies in a folder ``recipes``.
    """
    places = [line for line in header[:1] if line.startswith("recipes/")]
    if path is not None:
        parts = path.parts
        at = len(parts) - 4
        if at >= 0 and parts[at] == "recipes":
            places.append("/".join(parts[at:]))
    for place in dict.fromkeys(places):
        yield from _faults(recipe, PurePosixPath(place))


def _faults(recipe: Recipe, place: PurePosixPath) -> Iterator[tuple[str, str, str]]:
    if len(place.parts) != 4 or place.suffix != ".yaml" or str(place) != str(place).lower():
        yield str(place), registry_path(recipe), "not a place of a recipe"
        return
    _, model, gpu, name = place.parts
    if model != slug(recipe.model):
        yield model, slug(recipe.model), "the folder is another model's"
    if gpu != slug(recipe.gpu.type):
        yield gpu, slug(recipe.gpu.type), "the folder is another GPU's"
    author = slug(recipe.author.name) if recipe.author else None
    if author is not None and not name.startswith(f"{author}-"):
        yield name, f"{author}-...", "the name begins with another author"
    layout = recipe.layout
    for part in place.stem.split("-"):
        axis = re.fullmatch(r"(tp|pp|vpp|cp|ep|etp|dp)(\d{1,6})", part)
        if axis and int(axis[2]) != getattr(layout, axis[1]):
            yield part, f"{axis[1]}{getattr(layout, axis[1])}", "the name says another layout"
        tokens = re.fullmatch(r"mt(\d{1,6})k", part)
        if tokens and int(tokens[1]) * 1024 != layout.max_tokens_per_gpu:
            yield part, str(layout.max_tokens_per_gpu), "the name says other tokens per GPU"
