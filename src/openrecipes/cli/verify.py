"""`openrecipes verify`: derive a recipe's numbers again from its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openrecipes.cli.output import panel, print_json
from openrecipes.errors import ExitCode


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel("prove"))(verify)


def verify(
    recipe: Annotated[Path, typer.Argument(help="A published recipe.")],
    evidence: Annotated[
        Path | None, typer.Option(help="Its evidence; default: the folder that it names.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make the recipe again from its evidence and compare every field; find any changed byte.

    Exit status: 0 nothing differs, 1 something does.

    Example: [bold]openrecipes verify r.yaml --evidence r.evidence[/bold]
    """
    from openrecipes.publish.verify import verify as verify_recipe

    found = verify_recipe(recipe, evidence)
    if as_json:
        print_json(
            {
                "ok": found.ok,
                "checked": found.checked,
                "differences": [difference.as_json() for difference in found.differences],
            }
        )
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console()
        for d in found.differences:
            text = f"{d.field}: found {d.found}, expected {d.expected} ({d.message})"
            console.print(Text(text, style="red"), soft_wrap=True)
        last = f"{found.checked} fields follow from the evidence" if found.ok else "not verified"
        console.print(Text(last, style="bold green" if found.ok else "bold red"))
    if not found.ok:
        raise typer.Exit(int(ExitCode.NEGATIVE))
