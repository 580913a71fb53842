"""How OpenRecipes itself starts a recipe: a line for each engine and launcher that can."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath

from openrecipes.recipe.schema import Recipe

_USED = re.compile(r"\$\{?([A-Za-z_]\w*)")
_SET = re.compile(r"(?:^|\s|;)(?:export\s+)?([A-Za-z_]\w*)=|read\s+(?:-\w+\s+)*(\w+)", re.MULTILINE)


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
    output = shlex.quote(f"runs/{PurePosixPath(name).stem}")
    line = f"{shlex.join(words)} \\\n  --output {output}"
    return [
        Command("Native engine, processes of one machine", line),
        Command("The same, only shown: flags, ranks and environment", f"{line} --dry-run"),
    ]


def variables(recipe: Recipe) -> list[str]:
    """Shell variables that a reader has to set: the recipe's inputs, else those of its command."""
    if recipe.inputs:
        return list(recipe.inputs)
    text = recipe.run or ""
    known = {name for match in _SET.finditer(text) for name in match.groups() if name}
    used = dict.fromkeys(match[1] for match in _USED.finditer(text))
    return [name for name in used if name not in known]
