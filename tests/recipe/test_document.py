import datetime
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrecipes.errors import InputError
from openrecipes.layouts.layout import Layout
from openrecipes.recipe import yaml
from openrecipes.recipe.document import dump, for_editors, load, parse
from openrecipes.recipe.schema import Recipe
from openrecipes.recipe.validate import validate

from .recipes import ALL, NANO, REGISTRY, ROOT, SUPER, data

FOLDED = """\
# recipes/nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4.yaml
# An OpenRecipes recipe; the fields are documented in schema/recipe.schema.yaml.
schema_version: 1  # the only one
model: Nemotron-3-Nano-30B-A3B
gpu: {type: H200, count: 8, per_node: 8}
status: planned

# what is trained on
workload:
  row_tokens: 8192
  global_batch: 128
  precision: bf16
layout:
  summary: TP 1, PP 2 (even split), CP 1, EP 4, ETP 1, DP 4; one 8,192-token row per
    microbatch (THD, max 8,192 tokens/GPU); full recompute (uniform, 1 layer)
  tp: 1
  pp: 2
  ep: 4
  etp: 1
  dp: 4
  layer_split: null
  offload: ~
notes: 'a
  b'
"""


@pytest.mark.parametrize("path", ALL)
def test_a_recipe_comes_back_as_it_was(path):
    text = path.read_text()
    document = load(path)
    written = dump(document)
    assert yaml.plain(yaml.parse(written)) == yaml.plain(document.data)
    assert written.splitlines()[:2] == text.splitlines()[:2]
    assert list(yaml.parse(written)) == list(yaml.parse(text))
    assert dump(parse(written)) == written


def test_comments_order_and_folded_text_survive():
    document = parse(FOLDED)
    written = dump(document)
    for comment in ("# the only one", "# what is trained on", "# An OpenRecipes recipe;"):
        assert comment in written
    assert parse(written).recipe == document.recipe
    assert list(yaml.parse(written)) == list(yaml.parse(FOLDED))
    assert dump(parse(written)) == written
    assert document.recipe.notes == "a b"


@pytest.mark.parametrize("path", ALL)
def test_a_recipe_made_by_a_program_reads_the_same(path):
    recipe = load(path).recipe
    text = dump(recipe, "recipes/a/b/c.yaml")
    assert parse(text).recipe == recipe
    assert text.startswith("# recipes/a/b/c.yaml\n# An OpenRecipes recipe;")
    assert dump(parse(text)) == text
    assert recipe.block() == data(path)


@pytest.mark.parametrize(
    "first, address",
    [
        ("# recipes/m/g/a.yaml\n# b\n", "../../../schema/recipe.schema.yaml"),
        ("# something else\n", "schema/recipe.schema.yaml"),
        ("", "schema/recipe.schema.yaml"),
    ],
)
def test_editors_are_told_the_schema_once(first, address):
    told = for_editors(f"{first}schema_version: 1\n# below\n")
    line = f"# yaml-language-server: $schema={address}\n"
    assert told == f"{first}{line}schema_version: 1\n# below\n"
    assert for_editors(told) == told


def test_the_address_leads_to_the_schema():
    text = dump(load(NANO).recipe, f"recipes/{NANO.relative_to(REGISTRY).as_posix()}")
    address = text.splitlines()[2].partition("$schema=")[2]
    assert (NANO.parent / address).resolve() == ROOT / "schema" / "recipe.schema.yaml"
    assert (NANO.parent / address).is_file()


def minimal(**more):
    values = {
        "schema_version": 1,
        "model": "m",
        "gpu": {"type": "CPU", "count": 2, "per_node": 2},
        "status": "planned",
        "workload": {"row_tokens": 128, "global_batch": 4, "precision": "fp32"},
        "layout": {"tp": 1, "pp": 1, "ep": 1, "etp": 1, "dp": 2},
    }
    return values | more


text = st.text(
    st.characters(
        blacklist_categories=("Cs", "Cc", "Cn"), blacklist_characters="\u2028\u2029\ufeff"
    )
    | st.sampled_from("\n\t :#-'\"|>&*!%@`{}[],?~=\\$"),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(text, st.dictionaries(text.filter(str.strip), text, max_size=3))
def test_any_text_survives_writing(notes, env):
    recipe = Recipe.model_validate(minimal(notes=notes, run=notes, env=env))
    try:
        again = parse(dump(recipe)).recipe
    except InputError as error:  # only characters that no recipe may hold
        assert str(error.found).startswith("U+")
        return
    assert again == recipe


@pytest.mark.parametrize("value", ["no", "1e-5", "010", "1:30", "~", "null", "2026-10-15", "1_0"])
def test_text_that_looks_like_something_else_is_quoted(value):
    written = dump(Recipe.model_validate(minimal(arguments={"lr": value})))
    assert re.search(r"lr: ['\"]", written)
    assert parse(written).recipe.arguments == {"lr": value}


@pytest.mark.parametrize(
    "change, field",
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"status": "done"}, "status"),
        ({"schema_version": 2}, "schema_version"),
        ({"schema_version": True}, "schema_version"),
        ({"surprise": 1}, "surprise"),
        ({"gpu": {"type": "H200", "count": "8", "per_node": 8}}, "gpu.count"),
        ({"gpu": {"type": "H200", "count": 0, "per_node": 8}}, "gpu.count"),
        ({"gpu": {"type": "H200", "count": 8.0, "per_node": 8}}, "gpu.count"),
        ({"gpu": ["H200"]}, "gpu"),
        ({"arguments": {"lr": 1e-5}}, "arguments.lr"),
        ({"arguments": {"bf16": False}}, "arguments.bf16"),
        ({"arguments": {"recompute-modules": ["moe", 1]}}, "arguments.recompute-modules.1"),
        ({"env": {"A": 1}}, "env.A"),
        ({"result": {"mfu": 15.3}}, "result.mfu"),
        ({"result": {"window": [5]}}, "result.window.1"),
        ({"result": {"tokens_per_s_per_gpu": float("nan")}}, "result.tokens_per_s_per_gpu"),
        ({"result": {"measured": "2026-10-15"}}, "result.measured"),
        ({"result": {"measured": datetime.datetime(2026, 1, 1, 10)}}, "result.measured"),
        ({"status": "measured"}, "stack.framework"),
        ({"status": "withdrawn"}, "superseded_by"),
        ({1: 2}, "1"),
        ({"trials": [{"layout": {"tp": 1}, "outcome": "ok"}]}, "trials.0.layout.pp"),
    ],
)
def test_faults_are_named_by_their_place(change, field):
    recipe, faults = validate(minimal(**{str(k): v for k, v in change.items()}) | change)
    assert recipe is None
    assert field in [fault.field for fault in faults]


def test_a_percentage_is_recognised():
    _, faults = validate(minimal(result={"mfu": 15.3}))
    assert "15.3 percent is 0.153" in faults[0].expected


@pytest.mark.parametrize(
    "gone",
    [
        "stack",
        "run",
        "env",
        "result",
        "correctness",
        "stack.framework",
        "result.tokens_per_s_per_gpu",
    ],
)
def test_a_verified_recipe_needs_its_proof(gone):
    values = data(NANO)
    block, _, name = gone.partition(".")
    if name:
        del values[block][name]
    else:
        del values[block]
    recipe, faults = validate(values)
    assert recipe is None
    assert all(fault.field.startswith(block) for fault in faults)


def test_unknown_figures_are_null():
    values = data(NANO)
    for name in values["result"]:
        if name != "tokens_per_s_per_gpu":
            values["result"][name] = None
    assert validate(values)[1] == []


def test_loading_tells_the_first_fault(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(NANO.read_text().replace("tp: 1", "tp: one", 1))
    with pytest.raises(InputError, match=r"r\.yaml: layout\.tp.*one") as error:
        load(file)
    assert error.value.expected


def test_engine_is_told_or_read_from_the_framework():
    assert load(SUPER).recipe.engine == "miles"
    assert Recipe.model_validate(minimal()).engine is None
    assert Recipe.model_validate(minimal(stack={"engine": "native"})).engine == "native"


def test_layouts_are_the_same_value_everywhere():
    layout = load(NANO).recipe.layout
    assert Layout.model_validate(layout.block()) == layout
