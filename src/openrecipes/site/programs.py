"""The site for programs: ``index.json``, a JSON document per recipe, and their schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from openrecipes.recipe.schema import Recipe
from openrecipes.site.summary import Summary


class Index(BaseModel):
    """``index.json``: every recipe of the site."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = Field(description="Version of this document.")
    recipes: list[Summary] = Field(description="All recipes, by path.")


class RecipeFile(BaseModel):
    """``recipes/.../NAME.json``: one recipe, whole, and its line in the index."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = Field(description="Version of this document.")
    summary: Summary = Field(description="The recipe's line in the index.")
    recipe: Recipe = Field(description="The recipe's document, key by key.")


def recipe_json(recipe: Recipe, brief: Summary) -> str:
    """A recipe's JSON document as text."""
    return _text(
        {
            "format": 1,
            "summary": brief.model_dump(mode="json", by_alias=True),
            "recipe": recipe.model_dump(mode="json", by_alias=True, exclude_unset=True),
        }
    )


def index_json(summaries: Sequence[Summary]) -> str:
    """``index.json`` as text."""
    return _text(
        {"format": 1, "recipes": [s.model_dump(mode="json", by_alias=True) for s in summaries]}
    )


@cache
def schemas() -> tuple[tuple[str, str], ...]:
    """Addresses and texts of the JSON Schemas of both documents."""
    found = []
    for name, model in (("index", Index), ("recipe", RecipeFile)):
        schema = model.model_json_schema(by_alias=True)
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        found.append((f"schema/{name}.schema.json", _text(schema, indent=2)))
    return tuple(found)


def _text(item: Any, indent: int | None = None) -> str:
    separators = None if indent else (",", ":")
    return (
        json.dumps(item, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
        + "\n"
    )
