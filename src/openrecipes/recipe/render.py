"""A recipe's ``run``: the command as one copies it, made from its flags and environment."""

from __future__ import annotations

import re

from openrecipes.architectures.configs import find
from openrecipes.errors import InputError
from openrecipes.flags.shell import Outline, quote, references, render_exports, render_words
from openrecipes.recipe.flags import recipe_arguments
from openrecipes.recipe.schema import Recipe

_BREAK = " \\\n  "


_ARGUMENTS = "miles/utils/external_utils/model_args_utils.py"


def model_script(outline: Outline) -> str | None:
    """The name that a miles command reads its model's arguments by; ``None`` where none stands."""
    for statement in outline.others:
        found = re.search(rf"\(python3 {re.escape(_ARGUMENTS)} ([\w.-]+)\)$", statement[-1])
        if found:
            return found[1]
    return None


def program_variables(recipe: Recipe) -> list[str]:
    """Shell variables that the engine's start itself looks up, beside flags and environment."""
    native = (recipe.engine or "native") == "native"
    return references(_torchrun(recipe)) if native else []


def render_run(recipe: Recipe, script: str | None = None) -> str:
    """Exports, then the training command with one flag per line.

    Args:
        recipe: the recipe.
        script: name of miles' arguments for a model that the table of names does not know.

    Raises:
        InputError: an engine without a command line, or a model that miles has no arguments for.
    """
    lines = render_exports(recipe.env or {})
    head = [*lines, ""] if lines else []
    words = render_words(recipe_arguments(recipe))
    engine = recipe.engine or "native"
    if engine == "native":
        return "\n".join([*head, _BREAK.join([_torchrun(recipe), *words])]) + "\n"
    if engine == "miles":
        return "\n".join([*head, *_miles(recipe, words, script)]) + "\n"
    raise InputError(
        "render it with openrecipes render",
        field="stack.engine",
        found=engine,
        expected="a command",
    )


def _torchrun(recipe: Recipe) -> str:
    gpu = recipe.gpu
    nodes = max(1, gpu.count // gpu.per_node)
    place = "--standalone" if nodes == 1 else f'--nnodes {nodes} --rdzv-endpoint "$MASTER"'
    per_node = min(gpu.per_node, gpu.count)
    return f"torchrun {place} --nproc-per-node {per_node} -m openrecipes train"


def _miles(recipe: Recipe, words: list[str], script: str | None) -> list[str]:
    model = find(recipe.model)
    name = script if model is None else model.miles
    if name is None:
        raise InputError(
            "choose a model that miles knows", field="model", found=recipe.model, expected="a model"
        )
    return [
        f'MODEL_ARGS_LINE="$(python3 {_ARGUMENTS} {quote(name)})"',
        'read -ra MODEL_ARGS <<< "$MODEL_ARGS_LINE"',
        _BREAK.join(["python3 train.py", '"${MODEL_ARGS[@]}"', *words]),
    ]
