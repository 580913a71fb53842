"""`openrecipes doctor`: what must be right before rent is paid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openrecipes.cli.output import panel, print_json
from openrecipes.errors import ExitCode

if TYPE_CHECKING:
    from openrecipes.launch.doctor import Check

_STYLES = {"ok": "green", "warning": "yellow", "fail": "bold red", "skipped": "dim"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel("run"))(doctor)


def doctor(
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe; its GPUs, inputs and environment are checked.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where runs will be written.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Look at driver, GPUs, memory, disk, links, environment and inputs, each with its remedy.

    Exit status: 0 nothing stands in the way, 1 something does.

    Example: [bold]openrecipes doctor recipe.yaml[/bold]
    """
    from openrecipes.launch.doctor import examine, look

    document = None
    if recipe is not None:
        from openrecipes.recipe.document import load

        document = load(recipe).recipe
    checks = examine(look(output), document)
    ok = all(check.status != "fail" for check in checks)
    if as_json:
        print_json({"ok": ok, "checks": [check.as_json() for check in checks]})
    else:
        _print(checks)
    if not ok:
        raise typer.Exit(int(ExitCode.NEGATIVE))


def _print(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for check in checks:
        expected = f" (expected: {check.expected})" if check.expected else ""
        line = Text(f"{check.status:8}", style=_STYLES[check.status])
        console.print(
            line.append(f"{check.name}: {check.found}{expected}", style="default"), soft_wrap=True
        )
        if check.remedy:
            console.print(Text(f"{'':8}-> {check.remedy}"), soft_wrap=True)
