"""The guides' tables are those of the code, and what they name exists."""

import importlib.util
import re

import pytest

from openrecipes.cli.main import run
from openrecipes.recipe import yaml

from .recipes import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", DOCS / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["layouts.md", "lint.md"])
def test_the_tables_are_current(tables, name):
    text = (DOCS / name).read_text(encoding="utf-8")
    assert tables.with_tables(text, tables.tables()[name]) == text, "run: python docs/tables.py"


@pytest.mark.parametrize("name", ["layouts.md", "lint.md", "recipe.md"])
def test_commands_and_links_exist(name, capsys):
    text = (DOCS / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([\w-]+\.md)\)", text):
        assert (DOCS / link).is_file(), link
    for command in set(re.findall(r"^    openrecipes (\w+)", text, re.MULTILINE)):
        assert run([command, "--help"]) == 0, command


def test_the_hook_and_the_workflow_call_lint():
    hooks = yaml.parse("hooks:\n" + (ROOT / ".pre-commit-hooks.yaml").read_text())["hooks"]
    assert hooks[0]["entry"] == "openrecipes lint"
    assert re.search(hooks[0]["files"], "recipes/model/gpu/name.yaml")
    workflow = yaml.parse((DOCS / "examples/recipes.yml").read_text())
    steps = [step.get("run", "") for step in workflow["jobs"]["lint"]["steps"]]
    assert any("openrecipes lint --strict --format github" in step for step in steps)
