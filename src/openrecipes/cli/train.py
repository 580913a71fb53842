"""`openrecipes train`: our engine on this machine, addressed in Megatron's flags."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from openrecipes.cli.output import panel, print_json
from openrecipes.errors import ExitCode


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
    from openrecipes.runs.record import RUN_ID_VARIABLE

    given = {**parse_argv(context.args), "output": str(output)}
    if "RANK" in os.environ:
        from openrecipes.engine.worker import work

        job = prepare(given, int(os.environ.get("WORLD_SIZE", "1")))
        if os.environ["RANK"] == "0" and RUN_ID_VARIABLE not in os.environ:
            tell(job.notes)
        raise typer.Exit(work(job, output, sys.argv, force=force))

    from rich.console import Console

    from openrecipes.launch.local import run_local

    if nproc_per_node is not None:
        given["nproc-per-node"] = nproc_per_node
    job = prepare(given, nproc_per_node or 1)
    tell(job.notes)
    code = run_local(job, output, argv=sys.argv, console=Console(stderr=True), force=force)
    end(code, output, as_json=as_json)


def tell(notes: Sequence[str]) -> None:
    """What the user should know before it starts."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def end(code: ExitCode, output: Path, *, as_json: bool) -> NoReturn:
    """Leave with a run's exit code."""
    if code == ExitCode.STOPPED:
        # It has been told; an impatient Ctrl-C while the process ends has nothing to stop.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
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
