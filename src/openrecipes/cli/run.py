"""`openrecipes run`: train as a recipe says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from openrecipes.cli.output import panel, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel("run"))(run)


def run(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe's YAML file.")],
    output: Annotated[Path, typer.Option(help="Directory of the run record.")],
    engine: Annotated[
        str | None, typer.Option(help="native; default: the recipe's own engine, else native.")
    ] = None,
    launcher: Annotated[str, typer.Option(help="local: processes on this machine.")] = "local",
    hf_checkpoint: Annotated[
        Path | None, typer.Option(help="Hugging Face directory to start from.")
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option(help="config.json of a model with random weights.")
    ] = None,
    rows: Annotated[Path | None, typer.Option(help="Parquet file with the rows.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Number of steps, schedule included.")
    ] = None,
    row_order_seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Permute rows within each global batch: a replicate for the noise floor."
        ),
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace a run that is there already.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a recipe and record every step.

    Ctrl-C ends it after the step it is in (exit 4), a second one at once; the record stays.

    Example: [bold]openrecipes run recipe.yaml --rows rows.parquet --hf-checkpoint model
    --output out/run --steps 20[/bold]
    """
    from rich.console import Console

    from openrecipes.cli.train import end, tell
    from openrecipes.files import refuse_existing
    from openrecipes.launch.local import run_local
    from openrecipes.launch.plan import Plan, plan_run
    from openrecipes.recipe.document import load

    overrides = {
        "hf-checkpoint": hf_checkpoint,
        "model-config": model_config,
        "prompt-data": rows,
        "steps": steps,
        "row-order-seed": row_order_seed,
        "output": output,
    }
    plan: Plan = plan_run(
        load(recipe), {k: v for k, v in overrides.items() if v is not None}, engine, launcher
    )
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        refuse_existing(output, force=force)
    tell(plan.job.notes)
    if dry_run:
        if as_json:
            print_json(plan.as_json())
        else:
            Console(soft_wrap=True).print(plan.text(), highlight=False, markup=False)
        return
    code = run_local(
        plan.job,
        output,
        argv=sys.argv,
        console=Console(stderr=True),
        force=force,
        env=plan.env,
        model={"name": plan.model_name},
    )
    end(code, output, as_json=as_json)
