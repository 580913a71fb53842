"""A recipe file: loaded with everything that a person wrote into it, and written back.

``load`` keeps comments, key order and styles beside the validated recipe, so that ``dump``
loses nothing; a recipe made by a program is dumped in the schema's order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import LiteralScalarString, SingleQuotedScalarString

from openrecipes.errors import InputError
from openrecipes.files import read_text
from openrecipes.recipe import yaml
from openrecipes.recipe.schema import Recipe
from openrecipes.recipe.validate import validate

_SCHEMA = "schema/recipe.schema.yaml"
_HEADER = f"An OpenRecipes recipe; the fields are documented in {_SCHEMA}."
_FOR_EDITORS = "# yaml-language-server: $schema="


@dataclass(frozen=True)
class Document:
    """A recipe and the text it came from.

    Args:
        recipe: the validated recipe.
        data: the same with comments, order and styles; belongs to this document alone.
        path: the file, where it came from one.
    """

    recipe: Recipe
    data: CommentedMap
    path: Path | None = None


def load(path: str | Path) -> Document:
    """Read a recipe file.

    Raises:
        InputError: unreadable, not YAML, or not a recipe of this schema; names the first fault.
    """
    path = Path(path)
    return parse(read_text(path, yaml.MAX_BYTES), path)


def parse(text: str, path: Path | None = None) -> Document:
    """Read a recipe's text; ``path`` is its name for messages. Raises as ``load`` does."""
    name = "recipe" if path is None else str(path)
    data = yaml.parse(text, name)
    recipe, faults = validate(yaml.plain(data))
    if recipe is None:
        fault = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InputError(
            f"openrecipes lint {name} lists all faults{more}",
            file=name,
            field=fault.field,
            found=fault.found,
            expected=fault.expected,
        )
    return Document(recipe, data, path)


def dump(source: Document | Recipe, path: str | None = None) -> str:
    """The YAML text of a recipe.

    Args:
        source: a document, written back as it was loaded; or a recipe, written in the order of
            the schema, with a line for editors.
        path: for a recipe, the file's place in its registry, named in the first line.
    """
    if isinstance(source, Document):
        return yaml.write(source.data)
    header = [line for line in (path, _HEADER) if line]
    comment = "".join(f"# {line}\n" for line in header)
    return for_editors(comment + yaml.write(_styled(source.block())))


def for_editors(text: str) -> str:
    """A recipe's text with a line below its first comments that tells editors its schema.

    The schema is looked for where the first comment says: a recipe at ``recipes/MODEL/GPU/``
    three folders up, any other one in ``schema/`` beside it.
    """
    lines = text.split("\n")
    end = next(index for index, line in enumerate([*lines, ""]) if not line.startswith("#"))
    if any(line.startswith(_FOR_EDITORS) for line in lines[:end]):
        return text
    place = lines[0].removeprefix("# ") if end else ""
    up = "../" * (place.count("/") if place.startswith("recipes/") else 0)
    return "\n".join([*lines[:end], f"{_FOR_EDITORS}{up}{_SCHEMA}", *lines[end:]])


def _styled(value: Any) -> Any:
    """Plain data with text in the YAML style that every reader takes for text."""
    if isinstance(value, dict):
        return {key: _styled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_styled(item) for item in value]
    if isinstance(value, str):
        if re.match(r"[^\s].*\n", value) and not re.search(r"[ \t]\n|\t|\r", value):
            return LiteralScalarString(value)
        if yaml.is_ambiguous(value):
            return SingleQuotedScalarString(value)
    return value
