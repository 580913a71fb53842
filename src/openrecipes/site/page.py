"""Everything that a recipe's page shows, gathered from the document and its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from markupsafe import Markup

from openrecipes.errors import InputError
from openrecipes.layouts.layout import Layout
from openrecipes.recipe.schema import Recipe
from openrecipes.site import comparison, derive, facts, markup, words
from openrecipes.site.changes import Changes, changes, changes_of_recipes
from openrecipes.site.commands import commands, variables
from openrecipes.site.comparison import Comparison, Side
from openrecipes.site.evidence import Run
from openrecipes.site.grid import Grid, grid
from openrecipes.site.measured import Picture, pictures, splits
from openrecipes.site.memory import Split
from openrecipes.site.prices import Calculator, calculator
from openrecipes.site.sources import slug


@dataclass(frozen=True)
class Line:
    """A command line with its flags marked, and what it does."""

    caption: str
    text: Markup


@dataclass(frozen=True)
class Pairs:
    """A titled list of keys and values."""

    title: str
    pairs: tuple[tuple[str, str], ...]
    kind: str = ""


@dataclass(frozen=True)
class Check:
    """A component test or a review: what, its outcome, and the reason."""

    what: str
    outcome: str
    why: str


@dataclass(frozen=True)
class Tried:
    """A layout that was tried on the way."""

    layout: str
    outcome: str
    where: str
    note: str


@dataclass(frozen=True)
class Reference:
    """The reference's document and the address of its page."""

    recipe: Recipe
    address: str


@dataclass(frozen=True)
class RecipePage:
    """One page; see ``templates/recipe.html`` for the order."""

    title: str
    name: str
    model: str
    model_page: str
    gpu: str
    label: str
    status: str
    superseded_by: str | None
    successor: str | None
    facts: list[facts.Fact]
    bibtex: str
    command: Markup | None
    variables: list[str]
    other_commands: list[Line]
    unfinished: list[str]
    pictures: list[Picture]
    splits: list[Split]
    grid: Grid | None
    comparison: Comparison | None
    changes: Changes | None
    trials: list[Tried]
    checks: list[Check]
    measurement: Pairs | None
    lists: list[Pairs]
    calculator: Calculator | None
    yaml: Markup
    notes: Markup | None
    derivations: list[derive.Derivation]

    @property
    def contents(self) -> list[tuple[str, str]]:
        """Anchors and names of the sections that are there."""
        entries: list[tuple[str, str, Any]] = [
            ("command", "Command", self.command or self.other_commands),
            ("measured", "Measured", self.pictures or self.measurement),
            ("layout", "Layout", self.grid),
            ("reference", "Reference", self.comparison),
            ("changed", "What changed", self.changes or self.checks),
            ("failed", "Tried on the way", self.trials),
            ("price", "Your cost", self.calculator),
            ("stack", "Stack", self.lists),
            ("yaml", "YAML", self.yaml),
            ("notes", "Notes", self.notes),
            ("derived", "Derivations", self.derivations),
        ]
        return [(anchor, name) for anchor, name, there in entries if there]


def title(recipe: Recipe) -> str:
    """``Training MODEL on GPU``."""
    return f"Training {recipe.model} on {recipe.gpu.type}"


def build(
    recipe: Recipe,
    text: str,
    name: str,
    address: str,
    *,
    candidate: Run | None = None,
    reference_run: Run | None = None,
    reference: Reference | None = None,
    successor: str | None = None,
    peak_flops: float | None = None,
) -> RecipePage:
    """The page of ``recipe``.

    Args:
        recipe: the document.
        text: its YAML as it stands in the file.
        name: its path in the registry, for commands.
        address: the page's own, without ending.
        candidate: the run that its figures come from.
        reference_run: the run it was checked against.
        reference: the document of the reference.
        successor: address of the page of a withdrawn recipe's successor.
        peak_flops: dense peak of one GPU in FLOP/s.
    """
    heading = title(recipe)
    author = recipe.author
    measured = recipe.result.measured if recipe.result else None
    return RecipePage(
        title=heading,
        name=PurePosixPath(address).name,
        model=recipe.model,
        model_page=f"models/{slug(recipe.model)}.html",
        gpu=recipe.gpu.type,
        label=facts.label(recipe),
        status=recipe.status,
        superseded_by=recipe.superseded_by,
        successor=successor,
        facts=facts.facts(recipe),
        bibtex=markup.bibtex(
            heading,
            author.name if author else "OpenRecipes",
            words.safe_link(author.url) if author else None,
            measured.year if measured else None,
        ),
        command=markup.shell(recipe.run.rstrip("\n")) if recipe.run else None,
        variables=variables(recipe),
        other_commands=[Line(c.caption, markup.shell(c.text)) for c in commands(recipe, name)],
        unfinished=_unfinished(candidate, reference_run),
        pictures=pictures(recipe, candidate, reference_run),
        splits=splits(recipe, candidate),
        grid=_grid(recipe),
        comparison=_comparison(recipe, candidate, reference_run, reference),
        changes=_changes(recipe, candidate, reference),
        trials=_trials(recipe),
        checks=_checks(recipe),
        measurement=_measurement(recipe),
        lists=_lists(recipe),
        calculator=calculator(recipe),
        yaml=markup.yaml(text.rstrip("\n")),
        notes=markup.markdown(recipe.notes) if recipe.notes else None,
        derivations=derive.derivations(recipe, peak_flops),
    )


def _unfinished(*runs: Run | None) -> list[str]:
    """A sentence for each run whose pictures are those of an unfinished one."""
    manifests = [run.record.manifest for run in runs if run is not None]
    return [
        f"The run {manifest.id} is not finished: its state is {manifest.state}."
        for manifest in manifests
        if manifest.state != "done"
    ]


def _grid(recipe: Recipe) -> Grid | None:
    noun = "process" if recipe.gpu.type == "CPU" else "GPU"
    return grid(recipe.layout, recipe.gpu.count, recipe.gpu.per_node, noun)


def _comparison(
    recipe: Recipe, candidate: Run | None, run: Run | None, reference: Reference | None
) -> Comparison | None:
    correctness = recipe.correctness
    told = (correctness.reference if correctness else None) or ""
    text = markup.inline(told) if told else None
    ours = comparison.side_of_recipe(recipe, facts.gpus(recipe))
    if reference is not None:
        theirs = comparison.side_of_recipe(reference.recipe, facts.gpus(reference.recipe))
        rows = _compared(recipe, ours, theirs)
        return Comparison(text, rows, f"{reference.address}.html")
    if run is not None:
        rows = _compared(recipe, ours, side_of_run(run))
        return Comparison(text, rows)
    return Comparison(text, ()) if text else None


def _compared(recipe: Recipe, ours: Side, theirs: Side) -> tuple[comparison.Row, ...]:
    rows = comparison.compare(ours, theirs)
    gpu = recipe.gpu.type
    return tuple(replace(row, label=words.on_machine(row.label, gpu)) for row in rows)


def side_of_run(run: Run) -> Side:
    """A run's side of a comparison; figures that cannot be measured are unknown."""
    from openrecipes.runs.measure import measure

    manifest = run.record.manifest
    layout = Layout.model_validate(manifest.layout) if manifest.layout else None
    try:
        result = measure(run.record)
    except InputError:
        result = {}
    machine = manifest.machine
    gpus = ""
    if machine.gpu and machine.count:
        where = f" ({machine.per_node} per node)" if machine.per_node else ""
        gpus = f"{machine.count} x {machine.gpu}{where}"
    return comparison.side_of_result(layout, result, gpus)


def _changes(recipe: Recipe, candidate: Run | None, reference: Reference | None) -> Changes | None:
    """From the verdict on the runs, else from the arguments of the two documents."""
    judged = changes(candidate.verdict if candidate else None)
    if judged is not None or reference is None:
        return judged
    return changes_of_recipes(recipe, reference.recipe)


def _trials(recipe: Recipe) -> list[Tried]:
    return [
        Tried(
            layout=t.layout.label
            or " ".join(
                f"{axis.upper()}{getattr(t.layout, axis)}" for axis in ("tp", "pp", "ep", "dp")
            ),
            outcome=t.outcome,
            where=", ".join(
                part
                for part in (
                    t.phase,
                    None if t.step is None else f"step {t.step}",
                    None if t.rank is None else f"rank {t.rank}",
                )
                if part
            ),
            note=t.note or "",
        )
        for t in recipe.trials or ()
    ]


_STACK_NAMES = {
    "megatron_lm": "Megatron-LM",
    "megatron_bridge": "Megatron-Bridge",
    "transformer_engine": "Transformer Engine",
    "pytorch": "PyTorch",
    "cuda": "CUDA",
    "nccl": "NCCL",
    "deepep": "DeepEP",
}

_DTYPE_NAMES = {
    "weights": "Weights are",
    "gradients": "Gradients are",
    "master": "Master weights are",
    "exp_avg": "Adam's first moments are",
    "exp_avg_sq": "Adam's second moments are",
}


def _lists(recipe: Recipe) -> list[Pairs]:
    stack = recipe.stack.block() if recipe.stack else {}
    patches = tuple(
        (patch.repo, ", ".join(p for p in (patch.why, patch.file, patch.commit) if p))
        for patch in recipe.patches or ()
    )
    found = (
        Pairs("Software", _pairs(stack, _STACK_NAMES)),
        Pairs("Patches", patches),
        Pairs("Environment", tuple((recipe.env or {}).items()), "env"),
        Pairs("Inputs that you set", tuple((recipe.inputs or {}).items()), "env"),
        Pairs("Workload and rows", _pairs(recipe.workload.block(), {})),
    )
    return [pairs for pairs in found if pairs.pairs]


def _measurement(recipe: Recipe) -> Pairs | None:
    """How the figures were taken: what stands in ``result`` beside the figures themselves."""
    if recipe.result is None:
        return None
    result = recipe.result.block()
    recompute = result.pop("effective_recompute", None)
    if recipe.result.window:
        result["window"] = "steps {} to {}".format(*recipe.result.window)
    kept = ("steps_per_run", "window", "window_tokens", "runs", "profiler", "routing", "dtypes")
    pairs = list(_pairs({key: result[key] for key in kept if key in result}, _DTYPE_NAMES))
    if recompute:
        layers = recompute.get("layers") or {}
        told = ", ".join(f"{letter} {how}" for letter, how in layers.items() if how)
        text = recompute["granularity"] + (f" ({told})" if told else "")
        pairs.append(("Recompute that took effect", text))
    for run in recipe.result.runs_detail or ():
        pairs.append((f"Run {run.run}", f"{words.number(run.tokens_per_s_per_gpu, 2)} tokens/s"))
    if recipe.evidence is not None:
        where = recipe.evidence.url or recipe.evidence.path or "beside the recipe"
        pairs.append(("Evidence", f"{where} (SHA256SUMS {recipe.evidence.sha256})"))
    return Pairs("How it was measured", tuple(pairs)) if pairs else None


def _checks(recipe: Recipe) -> list[Check]:
    """Component tests and reviews: decisions that the comparison of arguments rests on."""
    correctness = recipe.correctness
    if correctness is None:
        return []
    tests = [
        Check(
            f"{t.component} ({t.flag}, {t.precision})",
            t.result,
            f"component test: relative error {t.relative_error:g}, bound {t.bound:g}",
        )
        for t in correctness.component_tests or ()
    ]
    reviews = [
        Check(
            f"{r.flag}: {r.reference or '–'} to {r.candidate or '–'}",
            r.class_,
            f"review{f' by {r.by}' if r.by else ''}{f', {r.date}' if r.date else ''}: {r.reason}",
        )
        for r in correctness.reviews or ()
    ]
    return [*tests, *reviews]


def _pairs(block: Mapping[str, Any], names: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A block flattened to labelled text; nested blocks keep only their own key."""
    found: list[tuple[str, str]] = []
    for key, item in block.items():
        if isinstance(item, Mapping):
            found.extend(_pairs(item, names))
        elif item is not None:
            label = names.get(key, key.replace("_", " "))
            found.append(
                (label[:1].upper() + label[1:] if key not in names else label, _shown(item))
            )
    return tuple(found)


def _shown(item: Any) -> str:
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, int):
        return f"{item:,}"
    if isinstance(item, list | tuple):
        return ", ".join(map(_shown, item))
    return str(item)
