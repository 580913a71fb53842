"""A small site, built once for all tests that only read it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import make

from openrecipes.site.build import build


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seed, its reference, and a demo recipe with its runs."""
    root = tmp_path_factory.mktemp("site")
    recipes = root / "recipes"
    demo = make.recipe()
    make.write(recipes, "nemotron-3-demo-5m/cpu/demo.yaml", demo)
    seed = recipes / make.SEED_PATH
    seed.parent.mkdir(parents=True)
    shutil.copy(make.SEED, seed)
    make.write(recipes, make.REFERENCE_PATH, make.reference())
    linked = make.seed()
    linked["correctness"]["reference_recipe"] = {"path": f"recipes/{make.REFERENCE_PATH}"}
    make.write(recipes, "nemotron-3-nano-30b-a3b/h200/linked.yaml", linked)
    make.evidence(root / "runs")
    build(recipes, root / "site", root / "runs")
    return root / "site"
