"""`openrecipes model describe`: a model in numbers, from its config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openrecipes.cli.output import panel, print_json

if TYPE_CHECKING:
    from openrecipes.architectures.describe import Description

_CONFIG_LIMIT = 2**20  # bytes


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Look at models.\n\nExample: [bold]openrecipes model describe config.json[/bold]",
    )
    group.command()(describe)
    app.add_typer(group, name="model", rich_help_panel=panel("run"))


def describe(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|NAME", help="A config.json, a checkpoint's folder, or a known name."
        ),
    ],
    sequence: Annotated[
        int, typer.Option(min=1, max=2**24, help="Document length for attention's quadratic term.")
    ] = 8192,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Count parameters, active parameters, FLOPs and activation bytes, per layer and in total.

    Example: [bold]openrecipes model describe Nemotron-3-Nano-30B-A3B[/bold]
    """
    from openrecipes.architectures.describe import describe as count
    from openrecipes.errors import InputError

    document, source = _config(config)
    try:
        found = count(document)
    except InputError as error:
        raise InputError(
            error.action,
            file=source,
            field=error.field,
            found=error.found,
            expected=error.expected,
        ) from None
    if as_json:
        print_json(found.as_json(sequence))
    else:
        _print(found, source, sequence)


def _config(given: str) -> tuple[Any, str]:
    """The config and where it comes from: a file, a folder's config.json, else a known model."""
    from openrecipes.architectures.configs import find, models
    from openrecipes.errors import InputError
    from openrecipes.files import read_json

    path = Path(given)
    if path.is_dir():
        path = path / "config.json"
    if path.exists() or path.suffix == ".json":
        return read_json(path, _CONFIG_LIMIT), str(path)
    model = find(given)
    if model is None:
        raise InputError(
            "give a config.json, a checkpoint's folder or a known name",
            field="CONFIG|NAME",
            found=given,
            expected=", ".join(known.name for known in models()),
        )
    return model.config(), model.name


def _print(found: Description, source: str, sequence: int) -> None:
    from collections import Counter

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    document = found.as_json(sequence)
    console = Console()
    totals = Table(show_header=False, box=None, pad_edge=False)
    flops = document["flops"]
    forward, with_attention = flops["forward"], flops["forward_with_attention"]
    for name, value in [
        ("Parameters", f"{found.parameters:,}"),
        *((f"  {name}", f"{count:,}") for name, count in document["split"].items()),
        ("Active parameters (N)", f"{found.active_parameters:,}"),
        ("Multi-token prediction", f"{found.mtp_parameters:,} (not counted)"),
        ("FLOPs per token (6N)", f"{found.flops_per_token:.4g}"),
        ("  forward", f"{forward:.4g}, at {sequence:,} tokens with attention {with_attention:.4g}"),
        ("  full recompute", f"+ {flops['full_recompute']:.4g}"),
        (
            "Kept activations per token",
            f"{document['activation_bytes_per_token']:,} bytes, "
            f"with full recompute {document['activation_bytes_per_token_full_recompute']:,}",
        ),
    ]:
        totals.add_row(name, value)
    console.print(Text(f"{source} ({found.family}, {len(found.layers)} layers)", style="bold"))
    console.print(totals)

    layers = Table(box=None, pad_edge=False)
    for column in ("Layers", "Kind", "Parameters", "Active", "Kept bytes/token"):
        layers.add_column(column, justify="left" if column == "Kind" else "right")
    kinds = Counter(
        (layer.kind, layer.parameters, layer.active_parameters, layer.activation_bytes)
        for layer in found.layers
    )
    for (kind, *counts), number in kinds.items():
        layers.add_row(str(number), kind, *(f"{count:,}" for count in counts))
    console.print(layers)
