"""One side of a comparison: a run record or a recipe, brought to the same form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from openrecipes.errors import InputError
from openrecipes.files import sha256_file
from openrecipes.gate.plain import flatten, plain
from openrecipes.layouts.layout import Layout
from openrecipes.runs.record import MANIFEST, STEPS, Manifest, RunRecord, Step

#: Fields of a layout block that only describe it.
_PROSE = frozenset({"layout.label", "layout.summary", "layout.highlights"})
#: Recipe fields of ``stack`` that are no version of anything.
_STACK_PROSE = frozenset({"stack.engine"})


@dataclass(frozen=True)
class Side:
    """What one side of a comparison is made of.

    Attributes:
        path: as it was given.
        kind: a run (with steps) or a recipe (without).
        name: the run's id or the recipe's label, for people.
        engine: ``native``, ``miles``, ``automodel``; None where a recipe does not say.
        flags: flags by long name, typed; a run's are resolved, a recipe's absent ones are defaults.
        env: environment variables; a recipe holds only those that matter to it.
        facts: dotted names of everything else (``stack.pytorch``); unknown ones are absent.
        layout: the layout block's fields by dotted name; None where unknown as a whole.
        steps: the steps that count, ascending; None for a recipe.
        state: the run's state; None for a recipe.
        failure: the run's failure, as recorded.
        ineffective: flags that the run found to have no effect.
        reviews: the recipe's ``correctness.reviews``.
        hashes: sha256 by file name.
    """

    path: Path
    kind: Literal["run", "recipe"]
    name: str
    engine: str | None
    flags: Mapping[str, Any]
    env: Mapping[str, str]
    facts: Mapping[str, Any]
    layout: Mapping[str, Any] | None
    steps: tuple[Step, ...] | None = None
    state: str | None = None
    failure: Mapping[str, Any] | None = None
    ineffective: frozenset[str] = frozenset()
    reviews: tuple[Mapping[str, Any], ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """The side as the verdict names it: kind, path, name, state and hashes."""
        return {
            "kind": self.kind,
            "path": plain(self.path),
            "name": plain(self.name),
            "state": self.state,
            "sha256": dict(self.hashes),
        }


def load(path: str | Path) -> Side:
    """Load a run record (a directory) or a recipe (a YAML file).

    Raises:
        InputError: neither, broken, or a run that recorded no step.
    """
    path = Path(path)
    if path.is_dir():
        return _run(path)
    if not path.exists():
        raise InputError(
            "check the path", file=path, found="no such file", expected="a run record or a recipe"
        )
    return _recipe(path)


def _run(path: Path) -> Side:
    # Read after it is hashed: a record that is written meanwhile gets a hash that no longer fits.
    _open(path)
    hashes = {name: _sha256(path / name) for name in (MANIFEST, STEPS)}
    record = _open(path)
    steps = tuple(record.steps())
    if not steps:
        raise InputError(
            "run it again; there is nothing to compare",
            file=path / STEPS,
            found=f"no step; the run is {record.manifest.state}",
            expected="a line per step",
        )
    manifest = record.manifest
    return Side(
        path=path,
        kind="run",
        name=manifest.id,
        engine=manifest.engine,
        flags=plain(manifest.flags),
        env=plain(manifest.env),
        facts=_run_facts(manifest),
        layout=_layout(manifest.layout),
        steps=steps,
        state=manifest.state,
        failure=None if manifest.failure is None else plain(manifest.failure.model_dump()),
        ineffective=_names(manifest.effective.ineffective_flags),
        hashes=hashes,
    )


def _open(path: Path) -> RunRecord:
    try:
        return RunRecord.open(path)
    except ValueError as error:  # a number with more digits than Python reads
        raise InputError("mend the record", file=path / MANIFEST, found=str(error)) from None


def _sha256(path: Path) -> str:
    try:
        return sha256_file(path)
    except FileNotFoundError:
        raise InputError(
            "run it again; this run recorded no step", file=path, found="no such file"
        ) from None


def _run_facts(manifest: Manifest) -> dict[str, Any]:
    facts = {
        "engine": manifest.engine,
        "world_size": manifest.world_size,
        "machine.gpu": manifest.machine.gpu,
        "machine.per_node": manifest.machine.per_node,
        **flatten("model", manifest.model.model_dump()),
        "rows.rows_sha256": manifest.rows.rows_sha256,
        "rows.row_tokens": manifest.rows.row_tokens,
        **_stack(manifest.stack),
    }
    return _known(facts)


def _names(flags: list[Any] | None) -> frozenset[str]:
    """Names of flags listed as text or as objects with a ``flag``."""
    names = (item.get("flag") if isinstance(item, dict) else item for item in flags or [])
    return frozenset(str(name).lstrip("-") for name in names if name)


def _recipe(path: Path) -> Side:
    from openrecipes.recipe.document import load as load_recipe
    from openrecipes.recipe.flags import recipe_flags

    hashes = {path.name: sha256_file(path)} if path.is_file() else {}
    recipe = load_recipe(path).recipe
    content: dict[str, Any] = plain(recipe.block())
    engine = recipe.engine
    return Side(
        path=path,
        kind="recipe",
        name=str(_at(content, "layout", "label") or content.get("model") or path.stem),
        engine=engine,
        flags=plain(recipe_flags(recipe)),
        env={name: str(value) for name, value in (content.get("env") or {}).items()},
        facts=_recipe_facts(content, engine),
        layout=_layout(content.get("layout")),
        reviews=tuple(_at(content, "correctness", "reviews") or ()),
        hashes=hashes,
    )


def _recipe_facts(content: dict[str, Any], engine: str | None) -> dict[str, Any]:
    facts = {
        "engine": engine,
        "world_size": _at(content, "gpu", "count"),
        "machine.gpu": _at(content, "gpu", "type"),
        "machine.per_node": _at(content, "gpu", "per_node"),
        "model.name": content.get("model"),
        "model.active_parameters": _at(content, "result", "active_params", "count"),
        "model.revision": _at(content, "result", "active_params", "revision"),
        "rows.rows_sha256": _at(content, "workload", "dataset", "rows_sha256"),
        "rows.row_tokens": _at(content, "workload", "row_tokens"),
        **_stack(content.get("stack")),
    }
    return _known(facts)


def _at(content: Any, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _stack(stack: Mapping[str, Any] | None) -> dict[str, Any]:
    flat = flatten("stack", dict(stack or {}))
    return {name: value for name, value in flat.items() if name not in _STACK_PROSE}


def _layout(layout: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A layout block by dotted name; an absent part (no offload) is an absent name."""
    if not layout:
        return None
    flat = flatten("layout", plain(Layout.model_validate(dict(layout)).model_dump()))
    return {name: v for name, v in flat.items() if v is not None and name not in _PROSE}


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in facts.items() if value is not None}
