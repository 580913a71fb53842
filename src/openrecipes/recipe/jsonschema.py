"""The JSON Schema of a recipe, made from the models; ``schema/recipe.schema.yaml`` is this text."""

from __future__ import annotations

from typing import Any

from openrecipes.recipe import yaml
from openrecipes.recipe.schema import REQUIRED, Recipe

_TITLE = "OpenRecipes recipe, schema version 1"


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) with descriptions, units, examples and the rules of status."""
    schema = _without_titles(Recipe.model_json_schema(by_alias=True))
    schema["properties"] = {name: schema["properties"][name] for name in Recipe.model_fields}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": _TITLE,
        **schema,
        "allOf": [_status_rule(status, paths) for status, paths in REQUIRED.items() if paths],
    }


def schema_text() -> str:
    """The schema as YAML."""
    comment = (
        "# JSON Schema of a recipe, made by `openrecipes schema`: do not edit.\n"
        "# Editors use it where a recipe begins with\n"
        "# yaml-language-server: $schema=../../../schema/recipe.schema.yaml\n"
    )
    return comment + yaml.write(json_schema())


def _status_rule(status: str, paths: tuple[str, ...]) -> dict[str, Any]:
    then: dict[str, Any] = {"required": [], "properties": {}}
    for path in paths:
        block, _, name = path.partition(".")
        if block not in then["required"]:
            then["required"].append(block)
        if not name:
            then["properties"][block] = {"not": {"type": "null"}}
            continue
        rule = then["properties"].setdefault(
            block, {"type": "object", "required": [], "properties": {}}
        )
        rule["required"].append(name)
        rule["properties"][name] = {"not": {"type": "null"}}
    return {
        "if": {"properties": {"status": {"const": status}}, "required": ["status"]},
        "then": then,
    }


def _without_titles(value: Any, named: bool = False) -> Any:
    """The schema without pydantic's titles, which only repeat the names.

    Args:
        value: a part of the schema.
        named: the keys are names of fields, so that a field called title stays.
    """
    if isinstance(value, dict):
        return {
            key: _without_titles(item, named=key in ("properties", "$defs") and not named)
            for key, item in value.items()
            if named or key != "title"
        }
    if isinstance(value, list):
        return [_without_titles(item) for item in value]
    return value
