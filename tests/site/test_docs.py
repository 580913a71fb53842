from __future__ import annotations

from pathlib import Path

from openrecipes.flags.table import table
from openrecipes.layouts.rules import RULES as LAYOUT_RULES
from openrecipes.recipe.lint.rules import RULES as LINT_RULES
from tests.site.html_page import Page


def test_every_guide_of_the_repository_is_a_page(site: Path) -> None:
    guides = Path(__file__).parents[2] / "docs"
    listed = Page.of(site / "docs/index.html").links()
    for guide in guides.glob("*.md"):
        assert f"../docs/{guide.stem}.html" in listed
        assert Page.of(site / "docs" / f"{guide.stem}.html").words().count(" ") > 50


def test_flags_are_listed_with_class_and_engines(site: Path) -> None:
    seen = Page.of(site / "docs/reference/flags.html")
    assert set(table()) <= set(seen.ids)
    assert "placement" in seen.words("optimizer-offload-fraction")


def test_every_rule_is_listed(site: Path) -> None:
    lint = Page.of(site / "docs/reference/lint-rules.html").words()
    assert not [name for name in LINT_RULES if name not in lint]
    layouts = Page.of(site / "docs/reference/layout-rules.html").words()
    assert not [name for name in LAYOUT_RULES if name not in layouts]


def test_every_field_of_the_schema_is_told(site: Path) -> None:
    seen = Page.of(site / "docs/reference/schema.html")
    assert {"recipe", "gpu", "layout", "layout.recompute", "result.price"} <= set(seen.ids)
    words = seen.words()
    assert "tokens_per_s_per_gpu" in words and "Unit: tokens/s/GPU." in words
    assert "pointwise_failures" in words


def test_figures_have_their_formulas(site: Path) -> None:
    seen = Page.of(site / "docs/reference/figures.html")
    assert "6 x N x tokens/s per GPU / dense peak of the GPU" in seen.words("mfu")
    assert "result.tokens_per_s_per_gpu" in seen.words()
