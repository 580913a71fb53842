"""Older recipes brought forward to this version's schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ruamel.yaml.comments import CommentedMap

from openrecipes.errors import InputError
from openrecipes.files import read_text
from openrecipes.recipe import document, yaml
from openrecipes.recipe.schema import SCHEMA_VERSION


def _number(data: CommentedMap) -> None:
    """Version 0 had no number yet."""
    data.pop("schema_version", None)
    data.insert(0, "schema_version", 1)


#: From a version to the next.
STEPS: dict[int, Callable[[CommentedMap], None]] = {0: _number}


def migrate_text(path: Path) -> tuple[str, int, int]:
    """The text of a recipe in this version's form; comments and order are kept.

    Returns:
        The text, the version it had, and the version it has.

    Raises:
        InputError: not a recipe, or one of a later version.
    """
    data = yaml.parse(read_text(path, yaml.MAX_BYTES), str(path))
    version = yaml.plain(data.get("schema_version", 0))
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise InputError(
            "mend it", file=path, field="schema_version", found=version, expected="a version"
        )
    if version > SCHEMA_VERSION:
        raise InputError(
            "update OpenRecipes",
            file=path,
            field="schema_version",
            found=version,
            expected=f"at most {SCHEMA_VERSION}",
        )
    for step in range(version, SCHEMA_VERSION):
        STEPS[step](data)
    text = yaml.write(data)
    document.parse(text, path)
    return text, version, SCHEMA_VERSION
