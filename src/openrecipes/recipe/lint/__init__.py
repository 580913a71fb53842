"""Lint: every relation that must hold between a recipe's fields, as a named rule.

``lint(path)`` reads one file; the rules stand in modules by subject, each with its formula.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from openrecipes.files import read_text, sha256_file
from openrecipes.recipe import yaml
from openrecipes.recipe.lint.context import Context, Lookup
from openrecipes.recipe.lint.finding import Finding, LintRule
from openrecipes.recipe.lint.rules import RULES, lint_data, lint_recipe, rules_table

__all__ = [
    "RULES",
    "Context",
    "Finding",
    "LintRule",
    "lint",
    "lint_data",
    "lint_recipe",
    "rules_table",
]


def lint(path: str | Path, *, rows: Lookup | None = None) -> list[Finding]:
    """Findings in a recipe file, errors first.

    Args:
        path: the file.
        rows: finds the hashes of other rows by name; unknown names are not checked.

    Raises:
        InputError: the file cannot be read, is not YAML or is too large.
    """
    path = Path(path)
    text = read_text(path, yaml.MAX_BYTES)
    data, ambiguous = yaml.parse_warned(text, str(path))
    findings = lint_data(
        yaml.plain(data),
        path=path.absolute(),
        header=header(text),
        rows=rows or (lambda name: None),
        neighbours=lambda place: _neighbour(path.absolute(), place),
    )
    placed = [replace(found, line=yaml.line_of(data, found.field)) for found in findings]
    return placed + [_ambiguous(line, value) for line, value in ambiguous]


def _neighbour(path: Path, place: str) -> str | None:
    """sha256 of the recipe at ``place`` in the registry that ``path`` lies in."""
    for folder in path.parents:
        if folder.name == "recipes":
            file = folder.parent / place
            return sha256_file(file) if file.is_file() else None
    return None


def header(text: str) -> tuple[str, ...]:
    """The comment lines above the first key, without their ``#``."""
    lines = []
    for line in text.split("\n"):
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#").strip())
    return tuple(lines)


def _ambiguous(line: int, value: str) -> Finding:
    return Finding(
        "yaml-plain",
        "warning",
        f"line {line}",
        value,
        "text in quotes, or a number that is one everywhere (1.0e-5)",
        "readers of YAML 1.1 and 1.2 take this for different values",
        line=line,
    )
