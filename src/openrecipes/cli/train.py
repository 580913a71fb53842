"""`openrecipes train`: our engine on this machine, addressed in Megatron's flags."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from openrecipes.cli.output import panel, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        rich_help_panel=panel("run"),
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(train)


def _place(text: str) -> Path:
    """A path; not the working directory, which an unset shell variable would come to."""
    if not text:
        raise typer.BadParameter("an empty name; is a variable of the command not set?")
    return Path(text)


def train(
    context: typer.Context,
    output: Annotated[
        Path, typer.Option(parser=_place, metavar="PATH", help="Directory of the run record.")
    ],
    nproc_per_node: Annotated[
        int | None, typer.Option(min=1, help="Processes to start on this machine.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace a run that is there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Train a NemotronH model on packed rows; every other flag is Megatron's.

    Needed: --hf-checkpoint DIR or --model-config config.json, --prompt-data rows.parquet,
    --global-batch-size N, --lr X, and --train-iters N or --num-epoch N. docs/train.md lists all.

    Example: [bold]openrecipes train --model-config config.json --prompt-data rows.parquet
    --output out/run --global-batch-size 8 --train-iters 20 --lr 1e-3 --nproc-per-node 2[/bold]
    """
    from openrecipes.engine.job import prepare
    from openrecipes.flags.parse import parse_argv

    given = {**parse_argv(context.args), "output": str(output)}
    if "RANK" in os.environ:
        from openrecipes.engine.worker import work

        job = prepare(given, int(os.environ.get("WORLD_SIZE", "1")))
        raise typer.Exit(work(job, output, sys.argv, force=force))

    from rich.console import Console

    from openrecipes.launch.local import run_local

    if nproc_per_node is not None:
        given["nproc-per-node"] = nproc_per_node
    job = prepare(given, nproc_per_node or 1)
    code = run_local(job, output, argv=sys.argv, console=Console(stderr=True), force=force)
    if as_json:
        print_json(summary(output))
    raise typer.Exit(code)


def summary(output: Path) -> dict[str, object]:
    """What a finished run came to, for ``--json``."""
    from openrecipes.runs.record import RunRecord

    record = RunRecord.open(output)
    steps = record.steps()
    failure = record.manifest.failure
    return {
        "run": str(output),
        "id": record.manifest.id,
        "state": record.manifest.state,
        "steps": len(steps),
        "loss": steps[-1].loss if steps else None,
        "failure": None if failure is None else failure.model_dump(mode="json"),
    }
