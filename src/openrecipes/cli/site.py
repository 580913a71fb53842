"""``openrecipes site``: build static pages from recipes and runs, and serve them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from openrecipes.cli.output import panel, print_json

site = typer.Typer(
    no_args_is_help=True,
    help="""Pages from recipes and runs: build and serve them.

    Example: [bold]openrecipes site build --recipes recipes --output site[/bold]
    """,
)


@site.command("build")
def site_build(
    recipes: Annotated[Path, typer.Option("--recipes", help="Folder of recipe files.")],
    output: Annotated[Path, typer.Option("--output", help="Folder of the site.")],
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Folder of run records, for the pictures.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Build one page per recipe, an index and JSON for programs.

    An earlier site in --output is updated in place; only what changed is rendered again.

    Example: [bold]openrecipes site build --recipes recipes --runs runs --output site[/bold]
    """
    from openrecipes.site.build import BadRecipes, build

    try:
        report = build(recipes, output, runs)
    except BadRecipes as bad:
        for fault in bad.faults[:-1]:  # the last one is told as every error is
            print(f"error: {fault}", file=sys.stderr)
        raise
    if json_:
        print_json(
            {
                "index": str(report.index),
                "recipes": report.recipes,
                "rendered": report.rendered,
                "removed": report.removed,
                "runs": report.runs,
            }
        )
        return
    console = Console(highlight=False, soft_wrap=True)
    noun = "recipe" if report.recipes == 1 else "recipes"
    console.print(f"{report.recipes} {noun}, {report.rendered} rendered, {report.removed} removed")
    console.print(f"Look at {report.index.resolve().as_uri()}", markup=False)
    console.print(f"or run: openrecipes site serve {output}", markup=False)


@site.command("serve")
def site_serve(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a built site.")],
    watch: Annotated[
        Path | None, typer.Option("--watch", help="Folder of runs or of a tune, shown live.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any.")] = 8000,
) -> None:
    """Show a built site in the browser; with --watch also runs as they go.

    Example: [bold]openrecipes site serve site --watch runs[/bold]
    """
    from openrecipes.site.serve import server

    console = Console(highlight=False, soft_wrap=True)
    with server(directory, host, port, watch) as running:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{running.server_address[1]}"
        console.print(f"The site: {address}/index.html", markup=False)
        if watch is not None:
            console.print(f"Live runs: {address}/live/index.html", markup=False)
        console.print("Ctrl-C ends it.")
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            console.print("ended")


def register(app: typer.Typer) -> None:
    """Add the ``site`` commands to the application."""
    app.add_typer(site, name="site", rich_help_panel=panel("publish"))
