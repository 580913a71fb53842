"""A planned reference recipe for a user's own model, rows and GPUs: a safe start to be tuned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrecipes.architectures import configs
from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.errors import InputError
from openrecipes.files import read_json
from openrecipes.flags.table import table
from openrecipes.hardware import catalogue
from openrecipes.layouts.describe import described
from openrecipes.layouts.layout import Layout
from openrecipes.layouts.memory import Recompute
from openrecipes.layouts.rule import divisors
from openrecipes.layouts.rules import check
from openrecipes.recipe.importing import KNOWN_INPUTS, needed_inputs
from openrecipes.recipe.model import TRAINED, nemotron_config, trained_models
from openrecipes.recipe.render import render_run
from openrecipes.recipe.schema import Recipe
from openrecipes.recipe.validate import validate

#: A schedule and an optimizer that fine-tune safely; the same in both verified recipes.
_TRAINING: dict[str, Any] = {
    "calculate-per-token-loss": True,
    "attention-backend": "auto",
    "optimizer": "adam",
    "lr": "1e-5",
    "lr-decay-style": "cosine",
    "min-lr": "1e-6",
    "lr-warmup-fraction": "0.1",
    "weight-decay": "0.1",
    "adam-beta1": "0.9",
    "adam-beta2": "0.98",
    "attention-dropout": "0.0",
    "hidden-dropout": "0.0",
    "accumulate-allreduce-grads-in-fp32": True,
    "attention-softmax-in-fp32": True,
    "distributed-timeout-minutes": "30",
}
_MILES: dict[str, Any] = {
    "ref-load": "$HF_CKPT",
    "megatron-to-hf-mode": "bridge",
    "loss-type": "sft_loss",
    "disable-compute-advantages-and-returns": True,
    "debug-train-only": True,
    "rollout-function-path": "pretokenized_sft_rollout.generate_rollout",
    "input-key": "messages",
    "metadata-key": "metadata",
}
_NOTES = """\
- A planned reference: it breaks no layout rule, but nothing has been run and its memory is not
  estimated. Run it, then tune it.
"""
#: Experts are spread over one machine's GPUs at most: beyond it their tokens cross the network.
_MOST_EP = 8
#: Rows' length where neither rows nor --row-tokens say it.
_ROW_TOKENS = 8192
#: Steps of a run that measures, where neither --steps nor the rows say another number.
_STEPS = 20


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Args:
        model: a name that the table of names knows.
        hf_checkpoint: folder of a checkpoint, instead.
        gpu: GPU type, or ``CPU``.
        gpus: GPUs of the job.
        per_node: GPUs of one machine.
        engine: the engine; ``None`` is the native one.
        row_tokens: row length.
        global_batch: rows per step.
        steps: steps; ``None`` for as many as are usual and as the rows give.
        rows: the rows' ``workload.dataset`` block, their length and how many there are.
    """

    model: str | None
    hf_checkpoint: Path | None
    gpu: str
    gpus: int
    per_node: int | None
    engine: str | None
    row_tokens: int | None
    global_batch: int
    steps: int | None
    rows: dict[str, Any] | None = None


def planned_recipe(request: Request) -> Recipe:
    """A recipe that lints, with status planned.

    Raises:
        InputError: a model that no engine takes, an unknown GPU, or sizes that no layout fits.
    """
    name, config, in_table = _model(request)
    engine = request.engine or "native"
    if engine == "miles" and (in_table is None or in_table.miles is None):
        names = ", ".join(known for known in trained_models() if _miles_has(known))
        raise InputError(
            "use --engine native",
            field="--model",
            found=name,
            expected=f"one that miles has: {names}",
        )
    gpu = _gpu(request)
    row = (request.rows or {}).get("row_tokens") or request.row_tokens or _ROW_TOKENS
    layout = _layout(request, engine, config, int(row))
    steps = _steps(request)
    env = {} if gpu["type"] == catalogue.CPU else _environment(engine)
    workload = {
        "row_tokens": int(row),
        "rows": "SFT conversations",
        "global_batch": request.global_batch,
        "precision": "fp32" if gpu["type"] == catalogue.CPU else "bf16",
    }
    dataset = (request.rows or {}).get("dataset")
    values: dict[str, Any] = {
        "schema_version": 1,
        "model": name,
        "gpu": gpu,
        "status": "planned",
        "stack": {"engine": engine},
        "workload": workload | ({"dataset": dataset} if dataset else {}),
        "layout": described(layout, int(row)).block(),
        "arguments": _arguments(engine, steps),
        "inputs": {},
        "env": env,
        "run": None,
        "notes": _NOTES,
    }
    draft = _validated({k: v for k, v in values.items() if k not in ("run", "inputs")})
    values["inputs"] = needed_inputs(draft) or {"HF_CKPT": KNOWN_INPUTS["HF_CKPT"]}
    if engine == "automodel":
        del values["run"]
    else:
        values["run"] = render_run(draft)
    return _validated(values)


def _miles_has(name: str) -> bool:
    model = configs.find(name)
    return model is not None and model.miles is not None


def _validated(values: dict[str, Any]) -> Recipe:
    recipe, faults = validate(values)
    if recipe is None:
        fault = faults[0]
        raise InputError(
            "mend the option", field=fault.field, found=fault.found, expected=fault.expected
        )
    return recipe


def _model(request: Request) -> tuple[str, NemotronHConfig, configs.Model | None]:
    if (request.model is None) == (request.hf_checkpoint is None):
        raise InputError(
            "give one of them", field="--model, --hf-checkpoint", expected="a model or a checkpoint"
        )
    if request.model is not None:
        known = configs.find(request.model)
        config = None if known is None else nemotron_config(known.name)
        if known is None or config is None:
            raise InputError(
                "choose a model that an engine takes, or give --hf-checkpoint",
                field="--model",
                found=request.model,
                expected=" | ".join(trained_models()),
            )
        return known.name, config, known
    folder = Path(str(request.hf_checkpoint))
    document = read_json(folder / "config.json", 2**20)
    kind = document.get("model_type") if isinstance(document, dict) else None
    if kind != TRAINED:
        raise InputError(
            "choose a model that an engine takes",
            file=folder / "config.json",
            field="model_type",
            found=kind,
            expected=f"{TRAINED} ({', '.join(trained_models())})",
        )
    name = _own_name(document.get("_name_or_path")) or folder.resolve().name or "model"
    known = configs.find(name)
    return (known.name if known else name), NemotronHConfig.from_hf(document), known


def _own_name(given: Any) -> str | None:
    """The model's name in ``_name_or_path``, which is a hub's id or a folder, or nothing."""
    name = given.strip().rstrip("/").rpartition("/")[2] if isinstance(given, str) else ""
    return name if name.strip(".") and name.isprintable() else None


def _gpu(request: Request) -> dict[str, Any]:
    known = catalogue.gpu(request.gpu)
    if known is None and request.gpu.upper() != catalogue.CPU:
        raise InputError(
            "name a GPU of the catalogue, or CPU",
            field="--gpu",
            found=request.gpu,
            expected=", ".join(catalogue.catalogue().gpus),
        )
    per_node = request.per_node or min(8, request.gpus)
    if request.gpus > per_node and request.gpus % per_node:
        raise InputError(
            "fill whole machines",
            field="--gpus",
            found=request.gpus,
            expected=f"a multiple of {per_node} (--per-node)",
        )
    block: dict[str, Any] = {"type": known.name if known else catalogue.CPU}
    if known is not None and known.label_gb is not None:
        label = known.label_gb
        block["memory_gb"] = int(label) if label == int(label) else label
    return block | {"count": request.gpus, "per_node": per_node}


def _layout(request: Request, engine: str, config: NemotronHConfig, row: int) -> Layout:
    for layout in _candidates(request, engine, config, row):
        broken = check(
            layout,
            engine=engine,
            world_size=request.gpus,
            model=config,
            global_batch=request.global_batch,
            row_tokens=row,
        )
        if not broken and not _refused(layout, engine):
            return layout
    raise InputError(
        "change --gpus or --global-batch",
        field="layout",
        found=f"{request.gpus} GPUs, {request.global_batch} rows per step",
        expected="sizes that a layout of this model divides",
    )


def _refused(layout: Layout, engine: str) -> bool:
    """Whether the engine does not have one of the layout's flags, or not yet."""
    flags = layout.flags()
    return any(not table()[name].support[engine].takes(flags[name]) for name in flags)


def _candidates(
    request: Request, engine: str, config: NemotronHConfig, row: int
) -> Iterator[Layout]:
    """Layouts from the one that needs the least memory per GPU to the plainest."""
    cpu = request.gpu.upper() == catalogue.CPU
    world = request.gpus
    has_experts = "E" in config.pattern
    for recompute in [None] if cpu else [_recompute(engine, config), None]:
        for tp, pp in [(1, 1)] if cpu else [(t, p) for t in (4, 2, 1) for p in (2, 1)]:
            if world % (tp * pp):
                continue
            stage = world // pp
            experts = config.n_routed_experts if has_experts else 1
            fitting = [ep for ep in divisors(stage) if experts % ep == 0 and ep <= _MOST_EP]
            for ep in sorted(fitting, reverse=True):
                yield Layout(
                    tp=tp,
                    pp=pp,
                    vpp=1,
                    cp=1,
                    ep=ep,
                    etp=1,
                    dp=stage // tp,
                    sequence_parallel=tp > 1,
                    layer_split=None,
                    max_tokens_per_gpu=None if engine == "automodel" else row,
                    rows_per_microbatch=1,
                    recompute=recompute,
                    offload=None,
                    dispatcher="alltoall" if has_experts else None,
                )


def _recompute(engine: str, config: NemotronHConfig) -> Recompute:
    """The widest recompute that has an effect: miles' hybrid block knows only the selective one."""
    if engine == "miles" and "M" in config.pattern and "E" in config.pattern:
        return Recompute(granularity="selective", method=None, num_layers=None, modules=("moe",))
    return Recompute(granularity="full", method="uniform", num_layers=1)


def _environment(engine: str) -> dict[str, str]:
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if engine == "miles" else {}
    return env | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def _steps(request: Request) -> int:
    rows = (request.rows or {}).get("count")
    if rows is None:
        return request.steps or _STEPS
    most = rows // request.global_batch
    if most < (request.steps or 1):
        raise InputError(
            "choose fewer --steps, a smaller --global-batch or more rows",
            field="--rows",
            found=f"{rows} rows",
            expected=f"at least {(request.steps or 1) * request.global_batch}",
        )
    return request.steps or min(most, _STEPS)


def _arguments(engine: str, steps: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"hf-checkpoint": "$HF_CKPT"}
    if engine == "miles":
        arguments |= _MILES | {"num-rollout": str(steps)}
    else:
        arguments |= {"train-iters": str(steps)}
    arguments |= {"prompt-data": "$SFT_DATA"} | _TRAINING
    known = table()
    return {
        name: v for name, v in arguments.items() if known[name].support[engine].status != "ignored"
    }
