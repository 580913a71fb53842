"""`openrecipes publish`: from run records to a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openrecipes.cli.measure import UsdPerGpuHour
from openrecipes.cli.output import panel, print_json
from openrecipes.errors import ExitCode

if TYPE_CHECKING:
    from openrecipes.publish.publish import Published


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel("publish"))(publish)


def publish(
    run: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run records; several are pooled.")
    ],
    output: Annotated[Path, typer.Option(help="The recipe to write.")],
    reference: Annotated[
        Path | None, typer.Option(help="Record of the reference run of the check.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="FIRST:LAST", help="Measured steps; default: all after the fifth."),
    ] = None,
    author_name: Annotated[str | None, typer.Option(help="Who publishes.")] = None,
    author_url: Annotated[str | None, typer.Option(help="Page or paper of the author.")] = None,
    instance: Annotated[
        str | None, typer.Option(help="Cloud instance, where the record does not name it.")
    ] = None,
    usd_per_gpu_hour: UsdPerGpuHour = None,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Write NAME.evidence/ beside the recipe.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing recipe.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write a recipe from run records; every field comes from evidence.

    The recipe is verified where `openrecipes check` passed on these very records, else measured.
    Where its numbers do not add up nothing is written. Host names, addresses, users and home paths
    are taken out of everything that is copied.

    Example: [bold]openrecipes publish out/tuned --reference out/reference --output r.yaml \
--bundle[/bold]
    """
    from openrecipes.publish.options import Options, Price
    from openrecipes.publish.publish import publish as publish_runs

    options = Options(
        author_name=author_name,
        author_url=author_url,
        window=window,
        instance=instance,
        price=None if usd_per_gpu_hour is None else Price(usd_per_gpu_hour=usd_per_gpu_hour),
    )
    done = publish_runs(
        run, output, reference=reference, options=options, bundle=bundle, force=force
    )
    if as_json:
        _print_json(done)
    else:
        _print(done)
    if done.refused:
        raise typer.Exit(int(ExitCode.NEGATIVE))


def _print_json(done: Published) -> None:
    print_json(
        {
            "recipe": None if done.refused else str(done.path),
            "evidence": None if done.refused or done.evidence is None else str(done.evidence),
            "status": done.recipe.status,
            "refused": done.refused,
            "findings": list(done.findings),
            "notes": list(done.notes),
        }
    )


def _print(done: Published) -> None:
    from rich.console import Console
    from rich.text import Text

    console, problems = Console(), Console(stderr=True)
    for note in done.notes:
        problems.print(Text(note, style="yellow"), soft_wrap=True)
    for finding in done.findings:
        if finding["severity"] != "note":
            text = f"{finding['severity']}: {finding['field']}: {finding['message']}"
            style = "red" if finding["severity"] == "error" else "yellow"
            problems.print(Text(text, style=style), soft_wrap=True)
    if done.refused:
        problems.print(Text("Nothing was written: the numbers do not add up.", style="bold red"))
        return
    place = Text(f"{done.path} ({done.recipe.status})", style="bold green")
    console.print(place, soft_wrap=True)
    if done.evidence is not None:
        console.print(Text(str(done.evidence)), soft_wrap=True)
