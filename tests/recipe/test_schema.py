import json
import random

import jsonschema
import pytest

from openrecipes.layouts.block import Block
from openrecipes.recipe.jsonschema import json_schema, schema_text
from openrecipes.recipe.lint.relations import numeric_fields
from openrecipes.recipe.schema import REQUIRED, Recipe
from openrecipes.recipe.validate import validate

from .mutants import leaves, put
from .recipes import ALL, ROOT, complete, data


def blocks(block=Recipe, seen=None):
    """Every block of the schema."""
    seen = {} if seen is None else seen
    if block in seen:
        return seen
    seen[block] = True

    def visit(kind):
        if isinstance(kind, type) and issubclass(kind, Block):
            blocks(kind, seen)
        for part in getattr(kind, "__args__", ()):
            visit(part)

    for info in block.model_fields.values():
        visit(info.annotation)
    return seen


def as_json(value):
    return json.loads(json.dumps(value, default=str))


def test_the_exported_schema_is_current():
    current = (ROOT / "schema/recipe.schema.yaml").read_text(encoding="utf-8")
    assert current == schema_text(), "run: openrecipes schema -o schema/recipe.schema.yaml --force"


def test_it_is_a_json_schema():
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("block", list(blocks()))
def test_every_field_is_explained(block):
    numeric = {path.removesuffix("[]") for path in numeric_fields(block)}
    assert block.__doc__
    for name, info in block.model_fields.items():
        assert info.description and info.description.endswith("."), name
        assert info.examples, name
        if name in numeric:
            assert (info.json_schema_extra or {}).get("unit"), name


def test_every_example_is_valid():
    schema = json_schema()
    parts = {"Recipe": schema, **schema["$defs"]}
    for block, part in parts.items():
        for name, field in part["properties"].items():
            validator = jsonschema.Draft202012Validator({**field, "$defs": schema["$defs"]})
            for example in field["examples"]:
                faults = [fault.message for fault in validator.iter_errors(as_json(example))]
                assert not faults, (block, name, faults)


@pytest.mark.parametrize("path", ALL)
def test_recipes_are_valid_json_schema_instances(path):
    jsonschema.Draft202012Validator(json_schema()).validate(as_json(data(path)))


@pytest.mark.parametrize("status", [status for status, paths in REQUIRED.items() if paths])
def test_the_rules_of_status_are_in_the_schema(status):
    validator = jsonschema.Draft202012Validator(json_schema())
    recipe = as_json(complete()) | {"status": status, "superseded_by": "recipes/a/b/c.yaml"}
    validator.validate(recipe)
    for path in REQUIRED[status]:
        block, _, name = path.partition(".")
        for missing in (None, ...):
            if name:
                rest = {k: v for k, v in recipe[block].items() if k != name}
                part = rest if missing is ... else {**rest, name: None}
                broken = {**recipe, block: part}
            else:
                broken = {k: v for k, v in recipe.items() if k != block}
                broken = broken if missing is ... else {**broken, block: None}
            assert not validator.is_valid(broken), (path, missing)


def test_schema_and_models_agree_on_broken_recipes():
    """An editor that uses the schema marks what lint finds."""
    validator = jsonschema.Draft202012Validator(json_schema())
    recipe = complete()
    chance = random.Random(20261015)
    values = [None, "text", -1, 0, 3.5, True, [], ["x"], {}, {"x": 1}]
    for path, _ in leaves(recipe):
        value = chance.choice(values)
        broken = put(recipe, path, value)
        ours = validate(broken)[0] is not None
        theirs = validator.is_valid(as_json(broken))
        assert ours == theirs, (path, value)
