"""``openrecipes list``, ``search``, ``show``, ``compare``: find recipes, set two side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openrecipes.cli.output import panel, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from openrecipes.recipe.compare import Difference
    from openrecipes.recipe.registry import Entry

Registry = Annotated[
    list[Path] | None,
    typer.Option(
        "--registry",
        metavar="DIR",
        help="Folder of recipes, may be given several times; else OPENRECIPES_REGISTRY, else "
        "./recipes and the packaged ones.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for name, command in (
        ("list", list_recipes),
        ("search", search),
        ("show", show),
        ("compare", compare),
    ):
        app.command(name, rich_help_panel=panel("search"))(command)


def list_recipes(registry: Registry = None, json: Json = False) -> None:
    """List all recipes of the registries.

    Example: [bold]openrecipes list --registry ./recipes[/bold]
    """
    _print_entries(_entries(registry), json)


def search(
    words: Annotated[
        list[str] | None, typer.Argument(help="Words that model, author or layout contain.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Part of the model's name.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU type.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.")] = None,
    status: Annotated[
        str | None, typer.Option(help="planned, measured, verified or withdrawn.")
    ] = None,
    max_price: Annotated[float | None, typer.Option(help="Most USD per million tokens.")] = None,
    min_rate: Annotated[float | None, typer.Option(help="Fewest tokens/s per GPU.")] = None,
    registry: Registry = None,
    json: Json = False,
) -> None:
    """Find recipes by model, GPU, count, status, price and rate; the fastest first.

    Example: [bold]openrecipes search nano --gpu H200 --gpus 8 --status verified[/bold]
    """
    found = [
        entry
        for entry in _entries(registry)
        if entry.fault is None
        and (model is None or model.lower() in (entry.model or "").lower())
        and (gpu is None or gpu.lower() == (entry.gpu or "").lower())
        and (gpus is None or gpus == entry.count)
        and (status is None or status == entry.status)
        and (max_price is None or _at_most(entry.usd_per_million_tokens, max_price))
        and (min_rate is None or _at_most(min_rate, entry.tokens_per_s_per_gpu))
        and all(word.lower() in _words(entry) for word in words or ())
    ]
    found.sort(key=lambda entry: -(entry.tokens_per_s_per_gpu or 0))
    _print_entries(found, json)


def show(
    recipe: Annotated[str, typer.Argument(help="A file, or a recipe's name in a registry.")],
    registry: Registry = None,
    json: Json = False,
) -> None:
    """Print a recipe: its text, or with --json its data.

    Example: [bold]openrecipes show nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4[/bold]
    """
    from openrecipes.recipe.document import load
    from openrecipes.recipe.registry import find, registries

    path = find(recipe, registries(registry or ()))
    document = load(path)
    if json:
        print_json({"path": str(path), "recipe": document.recipe.block()})
    else:
        typer.echo(path.read_text(encoding="utf-8"), nl=False)


def compare(
    a: Annotated[str, typer.Argument(help="A file, or a recipe's name in a registry.")],
    b: Annotated[str, typer.Argument(help="The other one.")],
    registry: Registry = None,
    json: Json = False,
) -> None:
    """Show what differs between two recipes: layout, flags, result; each difference with its class.

    Example: [bold]openrecipes compare attune-tp1-pp2-ep4 attune-tp2-pp2-ep2[/bold]
    """
    from openrecipes.recipe.compare import compare as differences
    from openrecipes.recipe.document import load
    from openrecipes.recipe.registry import find, registries

    folders = registries(registry or ())
    paths = [find(name, folders) for name in (a, b)]
    found = differences(load(paths[0]).recipe, load(paths[1]).recipe)
    if json:
        listed = [difference.as_json() for difference in found]
        print_json({"a": str(paths[0]), "b": str(paths[1]), "differences": listed})
    else:
        _print_differences(found)


def _entries(registry: list[Path] | None) -> list[Entry]:
    from openrecipes.recipe.registry import entries, registries

    def progress(done: int, of: int) -> None:
        if of > 50 and (done % 50 == 0 or done == of):
            print(f"reading recipes: {done} of {of}", file=sys.stderr)

    return entries(registries(registry or ()), progress)


def _at_most(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value <= limit


def _words(entry: Entry) -> str:
    parts = (entry.model, entry.gpu, entry.author, entry.label, entry.highlights, entry.path)
    return " ".join(part for part in parts if part).lower()


def _print_entries(entries: list[Entry], json: bool) -> None:
    if json:
        print_json({"recipes": [entry.as_json() for entry in entries]})
        return
    rows = [("RECIPE", "MODEL", "GPUS", "LAYOUT", "STATUS", "TOKENS/S/GPU", "$/1M", "MFU")]
    rows += [
        (
            _cell(entry.path.removesuffix(".yaml").rpartition("/")[2]),
            _cell(entry.model),
            _cell(f"{entry.count} x {entry.gpu}"),
            _cell(entry.label),
            _cell(entry.status),
            _figure(entry.tokens_per_s_per_gpu, ",.2f"),
            _figure(entry.usd_per_million_tokens, ".2f"),
            _figure(entry.mfu, ".1%"),
        )
        for entry in entries
        if entry.fault is None
    ]
    # Plain columns: a rich table of 2,000 rows takes a second.
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        aligned = [c.rjust(w) if i > 4 else c.ljust(w) for i, (c, w) in enumerate(cells)]
        typer.echo("  ".join(aligned).rstrip())
    for entry in entries:
        if entry.fault is not None:
            print(f"not a recipe: {entry.fault}", file=sys.stderr)


def _print_differences(differences: Iterable[Difference]) -> None:
    from rich.text import Text

    table = _table("Part", "What", "A", "B", "Class", "Change")
    for one in differences:
        name = f"--{one.name}" if one.part == "flags" else one.name
        change = "" if one.change is None else f"{one.change:+.1%}"
        cells = (one.part, name, one.a, one.b, one.class_, change)
        table.add_row(*(Text(_cell(cell)) for cell in cells))
    if table.row_count:
        _print(table)
    else:
        typer.echo("no difference")


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _cell(value: Any) -> str:
    from openrecipes.errors import one_line

    return "-" if value is None else one_line(value, 60)


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: Any) -> None:
    from rich.console import Console

    # A pipe has no width: there each recipe stays on one line.
    Console(width=None if sys.stdout.isatty() else 200, soft_wrap=False).print(table)
