"""Every layout rule once. Lint, train, rehearse, plan and tune call ``check`` and nothing else.

The rules stand in three groups: how ranks are counted (``rules_ranks``), what the model's sizes
allow (``rules_model``), and what one engine or its memory options ask for (``rules_engine``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.layouts.layout import Layout
from openrecipes.layouts.rule import Case, Rule, Violation
from openrecipes.layouts.rules_engine import ENGINE_RULES
from openrecipes.layouts.rules_model import MODEL_RULES
from openrecipes.layouts.rules_ranks import RANK_RULES

#: All rules by name, in the order in which they are checked and printed.
RULES: dict[str, Rule] = {rule.name: rule for rule in (*RANK_RULES, *MODEL_RULES, *ENGINE_RULES)}


def check(
    layout: Layout,
    *,
    engine: str,
    world_size: int,
    model: NemotronHConfig | None = None,
    global_batch: int | None = None,
    row_tokens: int | None = None,
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    gpu: str | None = None,
    framework: str | None = None,
) -> list[Violation]:
    """The rules that a layout breaks; a rule whose inputs are not given does not speak.

    Args:
        layout: the layout.
        engine: ``native``, ``miles`` or ``automodel``: the engine that would run it.
        world_size: GPUs of the job.
        model: the model's config.
        global_batch: rows per step.
        row_tokens: row length.
        flags: typed arguments by name, for the rules about arguments outside the layout.
        env: environment variables of the run.
        gpu: GPU type, such as ``H200``.
        framework: the engine's name and version, such as ``nemo_automodel 0.7.0``.
    """
    case = Case(
        *(layout, engine, world_size, model, global_batch, row_tokens, flags or {}, env, gpu),
        framework=framework,
    )
    violations = (rule.violation(case) for rule in RULES.values())
    return [violation for violation in violations if violation is not None]


def rules_table() -> str:
    """The rules as a Markdown table, for the documentation."""
    rows = [
        f"| `{rule.name}` | {', '.join(rule.engines)} | {rule.formula} | {rule.why} |"
        for rule in RULES.values()
    ]
    return "\n".join(["| Rule | Engines | What must hold | Why |", "|---|---|---|---|", *rows])
