"""`openrecipes measure`: a run's figures, as a recipe's result block."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from openrecipes.cli.output import panel, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel("run"))(measure)


def measure(
    run: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run records; several are pooled.")
    ],
    window: Annotated[
        str | None,
        typer.Option(metavar="FIRST:LAST", help="Measured steps; default: all after the fifth."),
    ] = None,
    instance: Annotated[
        str | None, typer.Option(help="Cloud instance, for the price of the measured day.")
    ] = None,
    usd_per_gpu_hour: Annotated[
        float | None, typer.Option(min=0, help="Price of one GPU for an hour, if you know better.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Derive tokens/s, MFU, price and step-time spread from run records.

    Example: [bold]openrecipes measure out/run --window 5:19[/bold]
    """
    from openrecipes.runs.measure import PriceGiven
    from openrecipes.runs.measure import measure as measure_runs
    from openrecipes.runs.record import RunRecord

    given = PriceGiven(usd_per_gpu_hour) if usd_per_gpu_hour else None
    records = [RunRecord.open(path) for path in run]
    result = measure_runs(records, window, instance=instance, price_given=given)
    if as_json:
        print_json({"result": result})
    else:
        _print(result, "process" if records[0].manifest.machine.gpu == "CPU" else "GPU")


def _print(result: dict[str, Any], unit: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _lines(result, unit):
        table.add_row(name, value)
    Console().print(table)


def _lines(result: dict[str, Any], unit: str) -> list[tuple[str, str]]:
    first, last = result["window"]
    times = result["step_time_s"]
    usd, mfu = result["usd_per_million_tokens"], result["mfu"]
    return [
        (f"Tokens/s per {unit}", _number(result["tokens_per_s_per_gpu"], result["mfu_note"])),
        ("  non-padding", _number(result["nonpadding_tokens_per_s_per_gpu"])),
        ("  supervised", _number(result["supervised_tokens_per_s_per_gpu"])),
        ("MFU", f"{mfu:.1%}" if mfu is not None else f"unknown: {result['mfu_note']}"),
        ("USD / 1M tokens", f"{usd:.2f}" if usd is not None else f"unknown: {result['usd_note']}"),
        ("Step time", "  ".join(f"{name} {value:.4g} s" for name, value in times.items())),
        ("Step-time CV", f"{result['step_time_cv_percent']}% ({result['cv_kind']})"),
        (
            "Window",
            f"steps {first} to {last} of {result['steps_per_run']}, "
            f"{result['window_tokens']:,} tokens, {result['runs']} run(s)",
        ),
        ("GPU-hours", _number(result["gpu_hours"])),
    ]


def _number(value: float | None, why: str | None = None) -> str:
    if value is None:
        return "unknown" + (f": {why}" if why else "")
    return f"{value:,}"
