"""What a recipe comes to on this machine: flags, ranks and environment, checked."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrecipes.engine.job import Job, prepare
from openrecipes.errors import InputError
from openrecipes.flags.table import Value, table
from openrecipes.launch.local import rank_words
from openrecipes.recipe.document import Document
from openrecipes.recipe.flags import recipe_flags
from openrecipes.recipe.schema import Recipe
from openrecipes.runs.stack import nvidia_smi

_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
_STEP_FLAGS = ("steps", "train-iters", "num-rollout", "num-epoch")


@dataclass(frozen=True)
class Plan:
    """A recipe ready to run.

    Args:
        job: what is trained, checked.
        env: environment variables of the ranks.
        model_name: the recipe's model.
    """

    job: Job
    env: dict[str, str]
    model_name: str

    def text(self) -> str:
        """The same run as a command that a person can type."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.env.items()]
        output = Path(str(self.job.flags["output"]))
        words = ["openrecipes", *rank_words(self.job, output)]
        words += ["--nproc-per-node", str(self.job.world_size)]
        return "\n".join([*exports, shlex.join(words)])

    def as_json(self) -> dict[str, Any]:
        """The same for ``--json``."""
        return {
            "command": self.text(),
            "engine": "native",
            "launcher": "local",
            "world_size": self.job.world_size,
            "env": self.env,
            "flags": self.job.flags,
            "layout": self.job.layout.model_dump(mode="json"),
            "ineffective_flags": self.job.ineffective,
        }


def plan_run(
    document: Document, overrides: Mapping[str, Any], engine: str | None, launcher: str
) -> Plan:
    """Check a recipe against this machine, before any process starts.

    Args:
        document: the recipe.
        overrides: flags that the command line gives; they go before the recipe's.
        engine: the engine asked for; None is the recipe's own, else native.
        launcher: the launcher asked for.

    Raises:
        InputError: an engine or launcher that is not there, an unset variable, too few GPUs, or
            anything that `prepare` refuses.
    """
    recipe = document.recipe
    chosen = engine or recipe.engine or "native"
    if chosen != "native":
        raise InputError("give --engine native", field="--engine", found=chosen, expected="native")
    if launcher != "local":
        raise InputError(
            "give --launcher local", field="--launcher", found=launcher, expected="local"
        )
    _check_machine(recipe)
    flags = recipe_flags(recipe, "native")
    measured_steps = recipe.result.steps_per_run if recipe.result else None
    if "steps" in overrides:
        flags = {name: value for name, value in flags.items() if name not in _STEP_FLAGS}
    elif measured_steps and not any(name in flags for name in _STEP_FLAGS):
        flags["train-iters"] = measured_steps
    if "model-config" in overrides or "hf-checkpoint" in overrides:
        flags.pop("hf-checkpoint", None)
        flags.pop("model-config", None)
    flags |= {name: _plain(value) for name, value in overrides.items()}
    flags = {name: _filled(name, value) for name, value in flags.items()}
    env = {name: _expand(value, f"env.{name}") for name, value in (recipe.env or {}).items()}
    job = prepare(flags, recipe.gpu.count)
    if job.rows.row_tokens != recipe.workload.row_tokens:
        raise InputError(
            "give the recipe's rows, or rows of its length",
            file=job.rows.path,
            field="row_tokens",
            found=job.rows.row_tokens,
            expected=str(recipe.workload.row_tokens),
        )
    return Plan(job, env, recipe.model)


def _check_machine(recipe: Recipe) -> None:
    """The local launcher knows one machine, and a recipe for GPUs needs them there."""
    if recipe.gpu.type.upper() == "CPU":
        return
    there = len(nvidia_smi())
    if there < recipe.gpu.count:
        raise InputError(
            "run it where the GPUs are",
            field="gpu.count",
            found=f"{there} GPUs on this machine",
            expected=f"{recipe.gpu.count} x {recipe.gpu.type}",
        )


def _plain(value: Any) -> Value:
    return value if isinstance(value, int | float) else str(value)


def _filled(name: str, value: Any) -> Any:
    """A value with shell variables filled in, where our engine looks at the flag."""
    flag = table().get(name)
    ignored = flag is None or flag.support["native"].status == "ignored"
    return value if ignored or not isinstance(value, str) else _expand(value, f"--{name}")


def _expand(text: str, field: str) -> str:
    def fill(match: re.Match[str]) -> str:
        name = match[1].strip("{}")
        if name not in os.environ:
            raise InputError(
                f"set {name} in the environment, or give the option that replaces it",
                field=field,
                found=f"${name}, which is not set",
            )
        return os.environ[name]

    return _VARIABLE.sub(fill, text)
