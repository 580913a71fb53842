"""Write the tables that are made from the code into the guides: ``python docs/tables.py``."""

from __future__ import annotations

import re
from pathlib import Path

from openrecipes.layouts.rules import rules_table as layout_rules
from openrecipes.recipe.lint import rules_table as lint_rules
from openrecipes.recipe.lint.relations import relations_table

DOCS = Path(__file__).parent


def tables() -> dict[str, dict[str, str]]:
    """Per guide, the text under each heading that is made."""
    return {
        "layouts.md": {"All rules": layout_rules()},
        "lint.md": {"What fixes each number": relations_table(), "All rules": lint_rules()},
    }


def with_tables(text: str, made: dict[str, str]) -> str:
    """A guide's text with its made parts renewed, each from its heading to the next one."""
    for heading, table in made.items():
        part = re.compile(rf"(?ms)^(## {re.escape(heading)}\n).*?(?=^## |\Z)")
        text = part.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n", text)
    return text.rstrip("\n") + "\n"


def main() -> None:
    """Renew every guide."""
    for name, made in tables().items():
        path = DOCS / name
        path.write_text(with_tables(path.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
