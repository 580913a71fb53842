"""All lint rules by name, and running them over one recipe."""

from __future__ import annotations

from typing import Any

from openrecipes.recipe.lint.command import COMMAND_RULES
from openrecipes.recipe.lint.context import Context
from openrecipes.recipe.lint.correctness import CORRECTNESS_RULES
from openrecipes.recipe.lint.document import DOCUMENT_RULES
from openrecipes.recipe.lint.figures import FIGURE_RULES
from openrecipes.recipe.lint.finding import Finding, LintRule
from openrecipes.recipe.lint.hardware import HARDWARE_RULES
from openrecipes.recipe.lint.layout import LAYOUT_LINT_RULES, layout_findings
from openrecipes.recipe.lint.statements import STATEMENT_RULES
from openrecipes.recipe.validate import validate

#: What reading a file finds before there is a recipe that a rule could look at.
_READING = (
    LintRule(
        "schema",
        "error",
        "every field is the schema's, of its type and within its limits; the status has what it "
        "requires",
        lambda context: (),
    ),
    LintRule(
        "yaml-plain",
        "warning",
        "no plain scalar is one value in YAML 1.1 and another in 1.2 (`no`, `1e3`, `010`, `1:30`)",
        lambda context: (),
    ),
)
GROUPS: dict[str, tuple[LintRule, ...]] = {
    "Reading": _READING,
    "Machine and price": HARDWARE_RULES,
    "Layout": LAYOUT_LINT_RULES,
    "Command": (*COMMAND_RULES, *STATEMENT_RULES),
    "Figures": FIGURE_RULES,
    "Correctness": CORRECTNESS_RULES,
    "Document": DOCUMENT_RULES,
}
RULES: dict[str, LintRule] = {rule.name: rule for group in GROUPS.values() for rule in group}
_ORDER = {"error": 0, "warning": 1, "note": 2}


def lint_recipe(context: Context) -> list[Finding]:
    """All findings in a recipe, errors first, in the rules' order."""
    findings = layout_findings(context)
    for rule in RULES.values():
        findings += rule.findings(context)
    return sorted(findings, key=lambda finding: _ORDER[finding.severity])


def lint_data(data: Any, **context: Any) -> list[Finding]:
    """Findings in plain data: faults of the schema (rule ``schema``), else those of the rules.

    Args:
        data: plain Python data of a recipe.
        context: further fields of ``Context``.
    """
    recipe, faults = validate(data)
    if recipe is None:
        return [
            Finding("schema", "error", fault.field, fault.found, fault.expected, fault.message)
            for fault in faults
        ]
    return lint_recipe(Context(recipe, **context))


def rules_table() -> str:
    """The rules as Markdown tables, a table per group, for the documentation."""
    parts = []
    for title, rules in GROUPS.items():
        rows = [f"| `{rule.name}` | {rule.severity} | {rule.formula} |" for rule in rules]
        head = ["| Rule | Severity | What must hold |", "|---|---|---|"]
        parts.append("\n".join([f"### {title}", "", *head, *rows]))
    return "\n\n".join(parts)
