"""`openrecipes measure`: a run's figures, as a recipe's result block."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from openrecipes.cli.output import panel, print_json
from openrecipes.errors import one_line

#: A price below is written as 0, and one above is no price of anything.
_LEAST_USD, _MOST_USD = 0.0001, 1_000_000


def _usd(text: str) -> float:
    """A price that figures can be made of; written to four decimals."""
    try:
        usd = float(text)
    except ValueError:
        usd = math.nan
    if not _LEAST_USD <= usd <= _MOST_USD:  # NaN, too, is no price
        raise typer.BadParameter(
            f"{text}, which is no price: give USD from {_LEAST_USD} to {_MOST_USD:,}"
        )
    return usd


#: `--usd-per-gpu-hour` of every command that gives a price.
UsdPerGpuHour = Annotated[
    float | None,
    typer.Option(
        parser=_usd, metavar="USD", help="Price of one GPU for an hour, if you know better."
    ),
]


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
    usd_per_gpu_hour: UsdPerGpuHour = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Derive tokens/s, MFU, price and step-time spread from run records.

    Example: [bold]openrecipes measure out/run --window 5:19[/bold]
    """
    from openrecipes.runs.measure import PriceGiven, unfinished
    from openrecipes.runs.measure import measure as measure_runs
    from openrecipes.runs.record import RunRecord
    from openrecipes.runs.settings import slowed

    given = None if usd_per_gpu_hour is None else PriceGiven(usd_per_gpu_hour)
    records = [RunRecord.open(path) for path in run]
    result = measure_runs(records, window, instance=instance, price_given=given)
    notes = unfinished(records)
    if as_json:
        print_json({"result": result, "notes": notes})
        return
    no_rate = next((why for r in records if (why := slowed(r.manifest))), "it rounds to nothing")
    unit = "process" if records[0].manifest.machine.gpu == "CPU" else "GPU"
    _print(_lines(result, unit, no_rate), notes)


def _print(lines: list[tuple[str, str]], notes: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in lines:
        table.add_row(name, value)
    Console().print(table)
    for note in notes:
        Console(stderr=True).print(Text(one_line(note), style="yellow"), soft_wrap=True)


def _lines(result: dict[str, Any], unit: str, no_rate: str) -> list[tuple[str, str]]:
    first, last = result["window"]
    times = result["step_time_s"]
    usd, mfu = result["usd_per_million_tokens"], result["mfu"]
    return [
        (f"Tokens/s per {unit}", _number(result["tokens_per_s_per_gpu"], no_rate)),
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
        (f"{unit[0].upper()}{unit[1:]}-hours", _number(result["gpu_hours"])),
    ]


def _number(value: float | None, why: str | None = None) -> str:
    if value is None:
        return "unknown" + (f": {why}" if why else "")
    return f"{value:,}"
