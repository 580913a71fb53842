"""The flags of a recipe: its arguments, overlaid by what its fields say.

A recipe's own ``arguments`` hold every flag that no field holds; a recipe without them is read
from its ``run``. Fields always win, so a changed ``layout.ep`` changes the command.
"""

from __future__ import annotations

from typing import Any

from openrecipes.errors import InputError
from openrecipes.flags.parse import check_value
from openrecipes.flags.shell import Script, Typed, parse_script
from openrecipes.flags.table import table
from openrecipes.layouts.layout import LAYOUT_FLAGS
from openrecipes.recipe.schema import Recipe
from openrecipes.recipe.stack import Engine

#: What miles' model script gives already, so that a recipe's command does not repeat it.
_MODEL_SCRIPT: dict[str, str] = {"moe-token-dispatcher-type": "alltoall"}

#: Shell variable that a native command names its run record by; `openrecipes run` gives its own.
RUN_VARIABLE = "RUN"
RUN_MEANING = "new folder for the record of the run"

#: Flags that fields outside the layout decide.
_FIELD_FLAGS = frozenset(
    {"global-batch-size", "actor-num-nodes", "actor-num-gpus-per-node", "num-gpus-per-node"}
)


def recipe_flags(recipe: Recipe, engine: Engine | None = None) -> dict[str, Any]:
    """All flags of a recipe, typed; flags that the table does not know stay as typed text.

    Args:
        recipe: the recipe.
        engine: for another engine than the recipe's own.

    Raises:
        InputError: a ``run`` that cannot be read, or a value of the wrong type.
    """
    return {
        name: typed_value(name, value) for name, value in recipe_arguments(recipe, engine).items()
    }


def recipe_arguments(recipe: Recipe, engine: Engine | None = None) -> dict[str, Typed]:
    """The same as ``recipe_flags`` with values as typed, which is what a command is made of."""
    engine = engine or recipe.engine or "native"
    given = own_arguments(recipe)
    fields = field_flags(recipe, engine)
    kept = left_open(recipe)
    arguments = {
        name: value
        for name, value in given.items()
        if name in fields or name in kept or name not in decided_flags(engine)
    }
    if engine == "miles":
        arguments.setdefault("rollout-batch-size", str(recipe.workload.global_batch))
    if engine == "native":
        arguments.setdefault("output", f"${RUN_VARIABLE}")
    for name, value in fields.items():
        if name not in arguments or not _same(name, arguments[name], value):
            arguments[name] = as_text(value)
    return arguments


def own_arguments(recipe: Recipe) -> dict[str, Typed]:
    """The recipe's ``arguments``, else the flags of its ``run``, else none."""
    if recipe.arguments is not None:
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in recipe.arguments.items()
        }
    script = run_script(recipe)
    return {} if script is None else script.typed()


def run_script(recipe: Recipe) -> Script | None:
    """The recipe's ``run``, read; ``None`` where there is none.

    Raises:
        InputError: it cannot be read.
    """
    if not recipe.run:
        return None
    try:
        return parse_script(recipe.run)
    except InputError as error:
        place = f"run, {error.field}" if error.field else "run"
        raise InputError(
            error.action, field=place, found=error.found, expected=error.expected
        ) from None


def field_flags(recipe: Recipe, engine: Engine) -> dict[str, Any]:
    """What the fields of ``gpu``, ``layout`` and ``workload`` say, as typed flags."""
    flags: dict[str, Any] = {}
    gpu, workload = recipe.gpu, recipe.workload
    if engine == "miles":
        flags["actor-num-nodes"] = max(1, gpu.count // gpu.per_node)
        flags["actor-num-gpus-per-node"] = gpu.per_node
        flags["num-gpus-per-node"] = gpu.per_node
    if engine == "automodel":
        flags["seq-length"] = workload.row_tokens
    flags["global-batch-size"] = workload.global_batch
    flags |= recipe.layout.flags()
    if engine == "miles":
        for name, value in _MODEL_SCRIPT.items():
            if flags.get(name) == value:
                del flags[name]
    if workload.precision == "fp16":
        flags["fp16"] = True
    elif workload.precision == "bf16" and engine != "miles":
        flags["bf16"] = True
    return flags


def decided_flags(engine: Engine) -> frozenset[str]:
    """Flags that the fields decide: given by one, or absent from the command."""
    decided = LAYOUT_FLAGS | _FIELD_FLAGS | {"fp16", "use-precision-aware-optimizer"}
    if engine == "miles":  # it computes in bf16 unless told otherwise; --bf16 changes nothing
        return decided - _MODEL_SCRIPT.keys()
    return decided | {"bf16"}


def left_open(recipe: Recipe) -> set[str]:
    """Decided flags that this recipe's fields do not tell, so that ``arguments`` may."""
    layout = recipe.layout
    kept = set()
    if layout.recompute is not None and layout.recompute.modules is None:
        kept.add("recompute-modules")
    if layout.offload is None or layout.offload.precision_aware is None:
        kept.add("use-precision-aware-optimizer")
    if layout.dispatcher is None:
        kept |= {"moe-token-dispatcher-type", "moe-flex-dispatcher-backend", "moe-enable-deepep"}
    return kept


def typed_value(name: str, value: Typed) -> Any:
    """A value as the flag's own type; unchanged for an unknown flag or a ``$VARIABLE``.

    Raises:
        InputError: a value of another type.
    """
    flag = table().get(name)
    if flag is None or (isinstance(value, str) and "$" in value):
        return value
    return check_value(flag, value)


def _same(name: str, text: Typed, value: Any) -> bool:
    try:
        return bool(typed_value(name, text) == value)
    except InputError:
        return False


def as_text(value: Any) -> Typed:
    """A typed value as it is typed on a command line."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return str(value)
