"""A recipe's ``run``: the command as one copies it, made from its flags and environment."""

from __future__ import annotations

from openrecipes.architectures.configs import find
from openrecipes.errors import InputError
from openrecipes.flags.shell import quote, render_exports, render_words
from openrecipes.recipe.flags import recipe_arguments
from openrecipes.recipe.schema import Recipe

_BREAK = " \\\n  "


def render_run(recipe: Recipe) -> str:
    """Exports, then the training command with one flag per line.

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
        return "\n".join([*head, *_miles(recipe, words)]) + "\n"
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


def _miles(recipe: Recipe, words: list[str]) -> list[str]:
    model = find(recipe.model)
    if model is None or model.miles is None:
        raise InputError(
            "choose a model that miles knows", field="model", found=recipe.model, expected="a model"
        )
    script = f"python3 miles/utils/external_utils/model_args_utils.py {quote(model.miles)}"
    return [
        f'MODEL_ARGS_LINE="$({script})"',
        'read -ra MODEL_ARGS <<< "$MODEL_ARGS_LINE"',
        _BREAK.join(["python3 train.py", '"${MODEL_ARGS[@]}"', *words]),
    ]
