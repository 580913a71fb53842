"""What the lint rules look at: a recipe, and what follows from it, worked out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.errors import InputError
from openrecipes.flags.shell import Outline, Script, Typed, parse_script
from openrecipes.hardware import catalogue
from openrecipes.layouts.layout import Layout
from openrecipes.recipe.flags import own_arguments, recipe_arguments, typed_value
from openrecipes.recipe.model import active_parameters, nemotron_config
from openrecipes.recipe.render import model_script, render_run
from openrecipes.recipe.schema import Recipe

#: Names of rows to their hashes: (rows_sha256, parquet_sha256).
Lookup = Callable[[str], tuple[str | None, str | None] | None]
#: Places in a registry, from ``recipes/`` on, to the sha256 of the file there.
Neighbours = Callable[[str], str | None]


@dataclass(frozen=True)
class Context:
    """A recipe under lint.

    Args:
        recipe: the recipe.
        path: its file, where it came from one.
        header: its comment lines above the first key, without the ``#``.
        today: no date may lie after it.
        rows: finds the hashes of other rows by their name.
        neighbours: finds the hashes of other recipes by their place.
    """

    recipe: Recipe
    path: Path | None = None
    header: tuple[str, ...] = ()
    today: date = field(default_factory=date.today)
    rows: Lookup = lambda name: None
    neighbours: Neighbours = lambda place: None

    @cached_property
    def engine(self) -> str:
        """The recipe's engine; one that names none is planned for our own."""
        return self.recipe.engine or "native"

    @cached_property
    def script(self) -> Script | None:
        """The recipe's ``run``, read; ``None`` where there is none or it cannot be read."""
        return None if self.recipe.run is None else _script(self.recipe.run)[0]

    @cached_property
    def script_fault(self) -> InputError | None:
        """Why ``run`` cannot be read."""
        return None if self.recipe.run is None else _script(self.recipe.run)[1]

    @cached_property
    def outline(self) -> Outline | None:
        """``run`` statement by statement, where it can be read."""
        return None if self.script is None else self.script.outline

    @cached_property
    def derived_script(self) -> Script | None:
        """The command that the recipe's fields give; ``None`` where no engine's is known."""
        return self._derived[0]

    @cached_property
    def derived(self) -> Outline | None:
        """The same, statement by statement."""
        return None if self.derived_script is None else self.derived_script.outline

    @cached_property
    def derived_fault(self) -> InputError | None:
        """Why the recipe's fields give no command."""
        return self._derived[1]

    @cached_property
    def _derived(self) -> tuple[Script | None, InputError | None]:
        recipe, outline = self.recipe, self.outline
        named = recipe.stack is not None and recipe.stack.framework is not None
        if outline is None or self.engine == "automodel" or (recipe.engine is None and named):
            return None, None
        try:
            return _script(render_run(recipe, model_script(outline)))
        except InputError as error:
            return None, error

    @cached_property
    def readable(self) -> bool:
        """Whether the recipe's flags are known: given as ``arguments`` or readable in ``run``."""
        return self.recipe.arguments is not None or self.script_fault is None

    @cached_property
    def arguments(self) -> dict[str, Typed]:
        """The recipe's flags as typed: its own, overlaid by its fields."""
        return recipe_arguments(self.recipe) if self.readable else {}

    @cached_property
    def own(self) -> dict[str, Typed]:
        """The recipe's own flags, before the fields are laid over them."""
        return own_arguments(self.recipe) if self.readable else {}

    @cached_property
    def flags(self) -> dict[str, Any]:
        """The same, typed; values of the wrong type are left out (``flag-value`` reports them)."""
        flags = {}
        for name, value in self.arguments.items():
            try:
                flags[name] = typed_value(name, value)
            except InputError:
                continue
        return flags

    @cached_property
    def model(self) -> NemotronHConfig | None:
        """The model's config, where the table of names knows it."""
        return nemotron_config(self.recipe.model)

    @cached_property
    def active_parameters(self) -> int | None:
        """N of the model, where it is known."""
        return active_parameters(self.recipe.model)

    @property
    def candidate_was_measured(self) -> bool:
        """Whether the candidate of the convergence check is a run that the figures are from.

        A check that names no run is of the measured one; one that names a run, of those that
        ``runs_detail`` lists.
        """
        recipe = self.recipe
        check = recipe.correctness.convergence if recipe.correctness else None
        if check is None or check.candidate_run is None:
            return check is not None
        details = (recipe.result.runs_detail if recipe.result else None) or ()
        return check.candidate_run in {detail.run for detail in details}

    @property
    def n(self) -> int | None:
        """N: the model's, where the table of names knows it, else the one that the recipe gives."""
        told = self.recipe.result.active_params if self.recipe.result else None
        return self.active_parameters or (told.count if told else None)

    @property
    def peak(self) -> float | None:
        """Dense peak of one GPU in the recipe's precision, in FLOP/s."""
        return None if self.gpu is None else self.gpu.peak(self.recipe.workload.precision)

    @cached_property
    def gpu(self) -> catalogue.Gpu | None:
        """The GPU, where the catalogue knows it."""
        return catalogue.gpu(self.recipe.gpu.type)

    @cached_property
    def layout(self) -> Layout:
        """The layout with what its block leaves open filled in from the flags."""
        layout = self.recipe.layout
        recompute, offload = layout.recompute, layout.offload
        modules = self.flags.get("recompute-modules")
        if recompute is not None and recompute.modules is None and modules:
            recompute = recompute.model_copy(update={"modules": tuple(modules)})
        aware = self.flags.get("use-precision-aware-optimizer")
        if offload is not None and offload.precision_aware is None and aware is not None:
            offload = offload.model_copy(update={"precision_aware": bool(aware)})
        return layout.model_copy(update={"recompute": recompute, "offload": offload})

    @cached_property
    def steps(self) -> int | None:
        """Steps that the flags ask for; ``None`` where they do not say."""
        flags = self.flags
        for name in ("steps", "train-iters"):
            if isinstance(flags.get(name), int):
                return int(flags[name])
        rollouts, rows = flags.get("num-rollout"), flags.get("rollout-batch-size")
        if isinstance(rollouts, int):
            rows = rows if isinstance(rows, int) else self.recipe.workload.global_batch
            return rollouts * rows // self.recipe.workload.global_batch
        return None


@lru_cache(maxsize=64)
def _script(text: str) -> tuple[Script | None, InputError | None]:
    try:
        return parse_script(text), None
    except InputError as error:
        return None, error
