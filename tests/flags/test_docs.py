"""The documentation lists the flags as the table has them."""

from pathlib import Path

from openrecipes.flags.markdown import fill, flag_table, restricted_table

DOCS = Path(__file__).parents[2] / "docs" / "train.md"


def test_the_documentation_is_up_to_date() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert fill(text) == text, f"run: python -m openrecipes.flags.markdown {DOCS}"


def test_a_flag_is_in_one_of_the_tables() -> None:
    assert "| `--lr` |" in flag_table("native")
    assert "| `--fp16` | absent |" in restricted_table("native")
    assert "`--attention-backend`" not in flag_table("native") + restricted_table("native")
