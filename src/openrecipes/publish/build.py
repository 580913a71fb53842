"""From run records to a recipe: every field from evidence, none from a person's memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from openrecipes.errors import InputError
from openrecipes.flags.shell import references
from openrecipes.flags.table import Flag, table
from openrecipes.hardware.catalogue import gpu
from openrecipes.layouts.describe import described
from openrecipes.layouts.layout import Layout
from openrecipes.publish.correctness import correctness
from openrecipes.publish.options import Options
from openrecipes.recipe.flags import RUN_MEANING, RUN_VARIABLE, as_text, decided_flags
from openrecipes.recipe.render import render_run
from openrecipes.recipe.schema import Recipe
from openrecipes.recipe.stack import Stack
from openrecipes.recipe.validate import validate
from openrecipes.recipe.workload import Build, Dataset
from openrecipes.runs.measure import PriceGiven, measure
from openrecipes.runs.record import Manifest, RunRecord
from openrecipes.runs.settings import global_batch, precision, slowed

#: Files that a recipe's reader has to bring: the flag, the shell variable, what it is.
INPUTS: dict[str, tuple[str, str]] = {
    "hf-checkpoint": ("HF_CKPT", "folder of the Hugging Face checkpoint to train from"),
    "ref-load": ("HF_CKPT", "folder of the Hugging Face checkpoint to train from"),
    "model-config": ("MODEL_CONFIG", "config.json of the model, trained from random weights"),
    "prompt-data": ("SFT_DATA", "parquet file with the packed rows"),
    "valid-data": ("VALID_DATA", "parquet file with rows for validation"),
}

_VARIABLES = {"KERNEL_CACHE": "folder that compiled kernels are kept in"}
#: Flags of one start that a reader's own launcher decides.
_OF_A_START = frozenset({"nproc-per-node", "max-hours", "resume"})
#: Set by schedulers and launchers for one rank or one machine.
_ENV_OF_A_START = re.compile(
    r"(RAY|SLURM|TORCHELASTIC)_.*|CUDA_VISIBLE_DEVICES|CUDA_(HOME|PATH)|.*_HOST.*"
)


def build(
    records: Sequence[RunRecord],
    options: Options,
    verdict: Mapping[str, Any] | None = None,
    reference: Manifest | None = None,
    evidence: Mapping[str, str] | None = None,
) -> Recipe:
    """The recipe of one or several pooled runs.

    Args:
        records: the runs, with manifests as they may be published.
        options: what the person who publishes says.
        verdict: the gate's verdict on the first run, if it holds for these very records.
        reference: the reference's manifest as it may be published.
        evidence: the ``evidence`` block.

    Raises:
        InputError: a run that is not done, that gives no rate, or a fact that a recipe needs and
            the record lacks.
    """
    manifest = records[0].manifest
    for record in records:
        _check_publishable(record)
    result = figures(records, options)
    if result["tokens_per_s_per_gpu"] is None:
        raise InputError(
            "check the record; there is no rate to publish",
            file=records[0].path,
            field="tokens_per_s_per_gpu",
            found="a rate that rounds to 0",
        )
    proof = correctness(verdict, manifest, reference) if verdict else None
    verified = proof is not None and proof["result"] == "pass"
    layout, env = _layout(manifest), _environment(manifest.env)
    parts: dict[str, Any] = {
        "schema_version": 1,
        "model": _needed(manifest.model.name, "model.name"),
        "gpu": _gpu(manifest, options),
        "author": _author(options),
        "status": "verified" if verified else "measured",
        "stack": _stack(manifest),
        "workload": _workload(manifest),
        "layout": layout.block(),
        "arguments": _arguments(manifest),
        "inputs": _inputs(manifest, env) or None,
        "result": result,
        "correctness": proof,
        "env": env,
        "patches": [],
        "evidence": dict(evidence) if evidence else None,
    }
    parts = {key: value for key, value in parts.items() if value is not None}
    planned = _validated({**parts, "status": "planned"})
    parts["run"] = render_run(planned)
    return _validated(parts)


def _check_publishable(record: RunRecord) -> None:
    """Only a finished run at full speed has figures that a recipe can stand on."""
    manifest = record.manifest
    if manifest.state != "done":
        raise InputError(
            "publish a finished run",
            file=record.path,
            field="state",
            found=manifest.state,
            expected="done",
        )
    if slowed(manifest):
        raise InputError(
            "run it without profiler and parity probe; neither leaves a rate to publish",
            file=record.path,
            field="profiler" if manifest.profiler else "parity_probe",
            found=True,
            expected="false",
        )


def figures(records: Sequence[RunRecord], options: Options) -> dict[str, Any]:
    """The result block of the runs, with the options' window, instance and price."""
    given = options.price
    return measure(
        records,
        options.window,
        instance=options.instance,
        price_given=PriceGiven(given.usd_per_gpu_hour, given.source, given.date) if given else None,
    )


def _validated(parts: dict[str, Any]) -> Recipe:
    recipe, faults = validate(parts)
    if recipe is None:
        fault = faults[0]
        raise InputError(
            "complete the run record",
            field=fault.field,
            found=fault.found,
            expected=fault.expected,
        )
    return recipe


def _needed(value: Any, field: str) -> Any:
    if value in (None, ""):
        raise InputError("complete the run's manifest", field=field, found="nothing")
    return value


def _gpu(manifest: Manifest, options: Options) -> dict[str, Any]:
    machine = manifest.machine
    name = str(_needed(machine.gpu, "machine.gpu"))
    known = gpu(name)
    count = int(_needed(manifest.world_size or machine.count, "world_size"))
    instance = options.instance or (manifest.stack or {}).get("instance")
    block: dict[str, Any] = {"type": known.name if known else name}
    if known and known.label_gb:
        block["memory_gb"] = known.label_gb
    block |= {"count": count, "per_node": min(machine.per_node or count, count)}
    return {**block, "instance": instance} if instance else block


def _author(options: Options) -> dict[str, str] | None:
    if not options.author_name:
        return None
    author = {"name": options.author_name}
    return {**author, "url": options.author_url} if options.author_url else author


def _stack(manifest: Manifest) -> dict[str, Any]:
    stack = {"engine": manifest.engine, **_known(manifest.stack or {}, Stack)}
    stack.setdefault("framework", manifest.engine)
    for name in ("pytorch", "python"):
        _needed(stack.get(name), f"stack.{name}")
    return {name: stack[name] for name in Stack.model_fields if name in stack}


def _workload(manifest: Manifest) -> dict[str, Any]:
    rows = manifest.rows
    dataset = _known(rows.dataset or {}, Dataset)
    build_ = _known(dataset.pop("build", {}) or {}, Build)
    if build_:
        dataset["build"] = build_
    if rows.rows_sha256:
        dataset["rows_sha256"] = rows.rows_sha256
    if rows.parquet_sha256 and build_:
        build_["parquet_sha256"] = rows.parquet_sha256
    block = {
        "row_tokens": _needed(rows.row_tokens, "rows.row_tokens"),
        "rows": "SFT conversations",
        "global_batch": _needed(global_batch(manifest), "flags.global-batch-size"),
        "precision": precision(manifest),
    }
    return {**block, "dataset": dataset} if dataset else block


def _layout(manifest: Manifest) -> Layout:
    row_tokens = int(_needed(manifest.rows.row_tokens, "rows.row_tokens"))
    world_size = int(_needed(manifest.world_size, "world_size"))
    layers = len(manifest.effective.recompute.layers) if manifest.effective.recompute else None
    if manifest.layout is None:
        flags = manifest.flags
        layout = Layout.from_flags(flags, world_size, row_tokens=row_tokens, layers=layers)
    else:
        layout = Layout.model_validate(manifest.layout)
    return described(layout, row_tokens)


def _arguments(manifest: Manifest) -> dict[str, Any]:
    """Flags that no field holds and that are no default, as typed; files as shell variables."""
    engine: Any = manifest.engine
    decided = decided_flags(engine)
    known = table()
    arguments: dict[str, Any] = {}
    for name, value in manifest.flags.items():
        flag = known.get(name)
        if name in decided | _OF_A_START or value is None or value == []:
            continue
        if name in INPUTS:
            arguments[name] = f"${INPUTS[name][0]}"
        elif flag is None or (flag.type != "path" and not _is_default(flag, engine, value)):
            text = as_text(value)
            if text is not False:
                arguments[name] = text
    return arguments


def _is_default(flag: Flag, engine: str, value: Any) -> bool:
    """Whether both the engine and Megatron would take this value without being told."""
    support = flag.support.get(engine)
    return bool(value == flag.default and (support is None or value == support.default))


def _inputs(manifest: Manifest, env: Mapping[str, str]) -> dict[str, str]:
    """The shell variables of the command, each with a sentence."""
    used = [name for name in manifest.flags if name in INPUTS and manifest.flags[name]]
    inputs = dict(INPUTS[name] for name in used)
    if manifest.engine == "native":
        inputs[RUN_VARIABLE] = RUN_MEANING
    for value in env.values():
        for name in references(value):
            if name not in env:
                inputs.setdefault(name, _VARIABLES.get(name, "a value of your own machine"))
    return inputs


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that change what is computed or how fast; places on one machine are left out."""
    return {
        name: value
        for name, value in env.items()
        if not _ENV_OF_A_START.fullmatch(name) and not re.match(r"[/~]", value)
    }


def _known(values: Mapping[str, Any], block: Any) -> dict[str, Any]:
    """What the schema's block has a field for and the record knows."""
    return {
        name: value
        for name, value in values.items()
        if name in block.model_fields and value is not None
    }
