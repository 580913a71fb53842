"""How OpenRecipes itself starts a recipe: a line for each engine and launcher that can."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath

from openrecipes.recipe.schema import Recipe


@dataclass(frozen=True)
class Command:
    """A command line and what it does."""

    caption: str
    text: str


def commands(recipe: Recipe, name: str) -> list[Command]:
    """The lines for ``recipe``, whose path in its registry is ``name``.

    The local launcher knows one machine; a recipe for several has only its own command.
    """
    if recipe.gpu.count != recipe.gpu.per_node:
        return []
    words = ["openrecipes", "run", name, "--engine", "native", "--launcher", "local"]
    given = '--rows "$SFT_DATA" --hf-checkpoint "$HF_CKPT"'
    output = shlex.quote(f"runs/{PurePosixPath(name).stem}")
    line = f"{shlex.join(words)} \\\n  {given} --output {output}"
    return [
        Command("Native engine, processes of one machine", line),
        Command("The same, only shown: flags, ranks and environment", f"{line} --dry-run"),
    ]
