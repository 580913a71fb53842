"""Foreign recipes and bare launch scripts brought in: their flags become ``arguments``.

Nothing in them is executed. What a script does not say is not invented: it becomes a planned
recipe, which needs no figures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from openrecipes.architectures import configs
from openrecipes.errors import InputError, one_line
from openrecipes.files import read_text
from openrecipes.flags.shell import Script, Typed, parse_script, references
from openrecipes.flags.words import shown, told
from openrecipes.layouts.describe import described
from openrecipes.layouts.layout import Layout
from openrecipes.recipe import document, yaml
from openrecipes.recipe.document import Document
from openrecipes.recipe.flags import (
    RUN_MEANING,
    RUN_VARIABLE,
    field_flags,
    left_open,
    own_arguments,
    recipe_arguments,
    typed_value,
)
from openrecipes.recipe.model import nemotron_config
from openrecipes.recipe.render import program_variables, render_run
from openrecipes.recipe.schema import Recipe
from openrecipes.recipe.validate import validate

#: What the variables of known stacks mean.
KNOWN_INPUTS = {
    "HF_CKPT": "folder of the Hugging Face checkpoint to train from",
    "SFT_DATA": "parquet file with the packed rows",
    "KERNEL_CACHE": "folder in which compiled kernels are kept",
    "MASTER": "address of the first machine",
    "MODEL_CONFIG": "config.json of the model, trained from random weights",
    RUN_VARIABLE: RUN_MEANING,
}
_DEFAULT_BATCH = 1


def import_file(
    path: Path,
    *,
    model: str | None = None,
    gpu: str = "H200",
    row_tokens: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Document:
    """A recipe with ``arguments`` from a recipe or a launch script.

    Args:
        path: the file.
        model: the model, where a script does not name it.
        gpu: GPU type, for a script.
        row_tokens: row length, for a script that does not give ``--seq-length``.
        tell: told each thing in a script that the recipe does not keep.

    Raises:
        InputError: neither a recipe nor a launch script, or a fact that is needed is missing.
    """
    text = read_text(path, yaml.MAX_BYTES)
    if _is_recipe(text):
        return import_recipe(document.parse(text, path))
    try:
        script = parse_script(text)
    except InputError as error:
        raise InputError(
            "give a recipe (YAML) or a launch script", file=path, found=error.found or error.action
        ) from None
    recipe = script_recipe(script, model=model, gpu=gpu, row_tokens=row_tokens)
    for text in left_out(script, recipe):
        tell(text)
    return document.parse(document.dump(recipe), path)


def _is_recipe(text: str) -> bool:
    """Whether a file is meant as a recipe: a map key of ours at the beginning of a line."""
    return re.search(r"^(schema_version|layout|workload):", text, re.MULTILINE) is not None


def import_recipe(source: Document) -> Document:
    """The document with its flags in ``arguments`` and its variables in ``inputs``."""
    recipe, data = source.recipe, source.data
    if recipe.arguments is None:
        arguments = bare_arguments(recipe, own_arguments(recipe))
        data.insert(_place(data, "layout"), "arguments", dict(arguments))
    if recipe.inputs is None:
        inputs = needed_inputs(recipe)
        if inputs:
            data.insert(_place(data, "arguments"), "inputs", inputs)
    text = document.for_editors(document.dump(Document(recipe, data)))
    return document.parse(text, source.path)


def _place(data: Any, before: str) -> int:
    return list(data).index(before) + 1


def bare_arguments(recipe: Recipe, flags: dict[str, Typed]) -> dict[str, Typed]:
    """The flags that no field of the recipe says."""
    engine = recipe.engine or "native"
    fields = field_flags(recipe, engine)
    kept = left_open(recipe)
    derived = str(recipe.workload.global_batch) if engine == "miles" else None
    return {
        name: value
        for name, value in flags.items()
        if (name not in fields or name in kept)
        and not (name == "rollout-batch-size" and value == derived)
    }


def needed_inputs(recipe: Recipe) -> dict[str, str]:
    """The shell variables that the recipe's command and environment look up."""
    values: list[str] = list((recipe.env or {}).values())
    for value in recipe_arguments(recipe).values():
        values += value if isinstance(value, list) else [value] if isinstance(value, str) else []
    found = [name for value in values for name in references(value)]
    names = dict.fromkeys([*found, *program_variables(recipe)])
    return {
        name: KNOWN_INPUTS.get(name, "set it before the run")
        for name in names
        if name not in (recipe.env or {})
    }


def script_recipe(script: Script, *, model: str | None, gpu: str, row_tokens: int | None) -> Recipe:
    """A planned recipe from a launch script's exports and flags."""
    typed = script.typed()
    flags = {name: typed_value(name, value) for name, value in typed.items()}
    engine = "miles" if any(word.endswith("train.py") for word in script.program) else "native"
    name = model or _model_of(script)
    count, per_node = _gpus(script, flags)
    row = row_tokens or flags.get("seq-length")
    if not isinstance(row, int):
        raise InputError(
            "give --row-tokens", field="--row-tokens", found="nothing", expected="a row length"
        )
    known = configs.find(name)
    config = nemotron_config(name)
    layers = None if config is None else config.num_hidden_layers
    layout = Layout.from_flags(flags, count, row_tokens=row, layers=layers)
    values: dict[str, Any] = {
        "schema_version": 1,
        "model": known.name if known else name,
        "gpu": {"type": gpu, "count": count, "per_node": per_node},
        "status": "planned",
        "stack": {"engine": engine},
        "workload": {
            "row_tokens": row,
            "global_batch": flags.get("global-batch-size", _DEFAULT_BATCH),
            "precision": _precision(flags, engine),
        },
        "layout": described(layout, row).block(),
        "env": dict(script.exports),
    }
    bare = _recipe(values)
    arguments = bare_arguments(bare, typed)
    with_arguments = _recipe({**values, "arguments": arguments})
    inputs = needed_inputs(with_arguments)
    order = (*list(values)[:-1], "arguments", "inputs", "env", "run")
    complete = {**values, "arguments": arguments, "run": render_run(with_arguments)}
    complete |= {"inputs": inputs} if inputs else {}
    return _recipe({key: complete[key] for key in order if key in complete})


def left_out(script: Script, recipe: Recipe) -> Iterator[str]:
    """What a launch script does that the recipe made from it does not."""
    found, kept = script.outline, parse_script(recipe.run or "").outline
    statements = Counter((*found.others, *found.behind)) - Counter(kept.others)
    for statement in statements.elements():
        yield f"left out: {one_line(told(statement))}"
    for array in Counter(found.expansions) - Counter(kept.expansions):
        yield f"left out: {one_line(shown(array))}"
    if found.program != kept.program:
        ours, theirs = one_line(told(kept.program)), one_line(told(found.program))
        yield f"started by {ours} instead of {theirs}"
    for name in script.doubled():
        yield f"--{one_line(name)} stands twice: the last one counts"


def _recipe(values: dict[str, Any]) -> Recipe:
    recipe, faults = validate(values)
    if recipe is None:
        fault = faults[0]
        raise InputError(
            "mend the script", field=fault.field, found=fault.found, expected=fault.expected
        )
    return recipe


def _model_of(script: Script) -> str:
    """The model that the script names: its arguments' name in miles, or its checkpoint's folder."""
    words = [word for value in script.assignments.values() for word in re.split(r"[\s()]+", value)]
    checkpoint = script.typed().get("hf-checkpoint")
    if isinstance(checkpoint, str) and "$" not in checkpoint:
        words += [checkpoint.rstrip("/").rpartition("/")[2], checkpoint]
    for word in words:
        known = configs.find(word) if word else None
        if known is not None:
            return known.name
    raise InputError(
        "give --model", field="--model", found="no known model in the script", expected="its name"
    )


def _gpus(script: Script, flags: dict[str, Any]) -> tuple[int, int]:
    """GPUs of the job and of one machine, from miles' flags or torchrun's."""
    per_node = flags.get("actor-num-gpus-per-node")
    nodes = flags.get("actor-num-nodes", 1)
    if per_node is None:
        words = " ".join(script.program)
        found = {
            name: re.search(rf"--{name.replace('-', '[-_]')}[ =](\d{{1,5}})\b", words)
            for name in ("nproc-per-node", "nnodes")
        }
        own = flags.get("nproc-per-node")
        per_node = int(found["nproc-per-node"][1]) if found["nproc-per-node"] else own
        nodes = int(found["nnodes"][1]) if found["nnodes"] else 1
    if not isinstance(per_node, int) or not isinstance(nodes, int) or per_node < 1 or nodes < 1:
        raise InputError(
            "say how many GPUs in the script",
            field="--nproc-per-node",
            found=per_node,
            expected="--actor-num-gpus-per-node or torchrun's --nproc-per-node",
        )
    return nodes * per_node, per_node


def _precision(flags: dict[str, Any], engine: str) -> str:
    if flags.get("fp16"):
        return "fp16"
    return "bf16" if engine == "miles" or flags.get("bf16") else "fp32"
