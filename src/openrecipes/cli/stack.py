"""`openrecipes stack`: what this machine and its software are, as a run records it."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from openrecipes.cli.output import panel, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel("run"))(stack)


def stack(
    engine: Annotated[str, typer.Option(help="native, miles or automodel.")] = "native",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show versions, commits, GPUs, links and environment as a run record keeps them.

    Values of environment variables are shown for known prefixes only; all others by name.

    Example: [bold]openrecipes stack --json[/bold]
    """
    from openrecipes.runs.stack import capture, environment, machine

    env, names = environment(os.environ)
    document: dict[str, Any] = {
        "stack": capture(engine),
        "machine": machine(),
        "env": env,
        "env_names": names,
    }
    if as_json:
        print_json(document)
    else:
        _print(document)


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    for part in ("stack", "machine", "env"):
        for name, value in document[part].items():
            table.add_row(name, Text("unknown" if value in (None, []) else str(value)))
    Console().print(table)
