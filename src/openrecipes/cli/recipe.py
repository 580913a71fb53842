"""``openrecipes new``, ``import``, ``migrate``, ``schema``: recipe documents."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from openrecipes.cli.output import panel, print_json


class SchemaFormat(StrEnum):
    """How the schema is printed."""

    YAML = "yaml"
    JSON = "json"


class Engine(StrEnum):
    """The engines."""

    NATIVE = "native"
    MILES = "miles"
    AUTOMODEL = "automodel"


Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write; stdout where absent.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for name, command in (
        ("new", new),
        ("import", import_),
        ("migrate", migrate),
        ("schema", schema),
    ):
        app.command(name, rich_help_panel=panel("publish"))(command)


def schema(
    format: Annotated[
        SchemaFormat, typer.Option("--format", help="yaml or json.")
    ] = SchemaFormat.YAML,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """Print the JSON Schema of a recipe, with every field's meaning, unit and an example.

    Example: [bold]openrecipes schema --output schema/recipe.schema.yaml[/bold]
    """
    from openrecipes.recipe.jsonschema import json_schema, schema_text

    if json or format is SchemaFormat.JSON:
        if output is None:
            print_json({"schema": json_schema()})
        else:
            import json as json_

            _write(json_.dumps(json_schema(), indent=2) + "\n", output, force)
    else:
        _write(schema_text(), output, force)


def new(
    model: Annotated[
        str | None, typer.Option(help="Model by its name, Hugging Face id or folder name.")
    ] = None,
    hf_checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of a Hugging Face checkpoint.")
    ] = None,
    rows: Annotated[Path | None, typer.Option(help="Parquet file of `rows build`.")] = None,
    gpu: Annotated[str, typer.Option(help="GPU type, or CPU.")] = "H200",
    gpus: Annotated[int, typer.Option(help="Number of GPUs.", min=1)] = 8,
    per_node: Annotated[
        int | None, typer.Option(help="GPUs of one machine; by default at most 8.", min=1)
    ] = None,
    engine: Annotated[Engine | None, typer.Option(help="Engine that runs it.")] = None,
    row_tokens: Annotated[
        int | None, typer.Option(help="Row length, where --rows is not given.", min=1)
    ] = None,
    global_batch: Annotated[int, typer.Option(help="Rows per step.", min=1)] = 128,
    steps: Annotated[
        int | None, typer.Option(help="Steps; by default 20, or as many as --rows give.", min=1)
    ] = None,
    output: Output = None,
    force: Force = False,
    json: Annotated[bool, typer.Option("--json", help="Print the recipe's data.")] = False,
) -> None:
    """Write a planned reference recipe for a model, rows and GPUs: a safe layout to start from.

    Example: [bold]openrecipes new --model Nemotron-3-Nano-30B-A3B --rows rows.parquet --gpu H200
    --gpus 8 --output recipe.yaml[/bold]
    """
    from openrecipes.recipe.document import dump
    from openrecipes.recipe.new import Request, planned_recipe

    request = Request(
        model=model,
        hf_checkpoint=hf_checkpoint,
        gpu=gpu,
        gpus=gpus,
        per_node=per_node,
        engine=None if engine is None else engine.value,
        row_tokens=row_tokens,
        global_batch=global_batch,
        steps=steps,
        rows=None if rows is None else _rows(rows),
    )
    recipe = planned_recipe(request)
    if json:
        print_json({"recipe": recipe.block()})
    if output is not None or not json:
        _write(dump(recipe), output, force)


def import_(
    file: Annotated[Path, typer.Argument(help="A recipe, or a launch script.")],
    model: Annotated[
        str | None, typer.Option(help="Model, where the script does not name it.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="GPU type, for a launch script.")] = "H200",
    row_tokens: Annotated[
        int | None, typer.Option(help="Row length, for a launch script.", min=1)
    ] = None,
    output: Output = None,
    force: Force = False,
    json: Annotated[bool, typer.Option("--json", help="Print the recipe's data.")] = False,
) -> None:
    """Make a recipe with `arguments` from a foreign recipe or a bare launch script.

    What the file does not say stays null; a launch script becomes a planned recipe, and what it
    does beside its exports and its training command is left out and told.

    Example: [bold]openrecipes import run.sh --gpu H200 --output recipe.yaml[/bold]
    """
    from openrecipes.recipe.document import dump
    from openrecipes.recipe.importing import import_file

    def tell(text: str) -> None:
        typer.echo(f"{file}: {text}", err=True)

    document = import_file(file, model=model, gpu=gpu, row_tokens=row_tokens, tell=tell)
    if json:
        print_json({"recipe": document.recipe.block()})
    if output is not None or not json:
        _write(dump(document), output, force)


def migrate(
    path: Annotated[Path, typer.Argument(help="A recipe, or a run record's folder.")],
    output: Output = None,
    force: Force = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was done.")] = False,
) -> None:
    """Bring an older recipe or run record forward to this version's form.

    A recipe is written to --output, else printed. Run records have one version so far: a folder
    is checked.

    Example: [bold]openrecipes migrate old.yaml --output new.yaml[/bold]
    """
    from openrecipes.recipe.migrate import migrate_text

    if path.is_dir():
        from openrecipes.runs.record import RunRecord

        version = RunRecord.open(path).manifest.run_version
        was, now = int(version), int(version)
    else:
        text, was, now = migrate_text(path)
        if output is not None or not json:
            _write(text, output, force)
    if json:
        print_json({"path": str(path), "from": was, "to": now, "changed": was != now})
    elif output is not None or path.is_dir():
        told = "is current" if was == now else f"version {was} is now {now}"
        typer.echo(f"{path}: {told}", err=True)


def _rows(path: Path) -> dict[str, Any]:
    """The rows' length and number, and the data-set block that their build left beside them."""
    from openrecipes.rows.parquet import RowsFile
    from openrecipes.rows.report import read_build

    rows = RowsFile(path)
    return {"row_tokens": rows.row_tokens, "count": rows.rows, "dataset": read_build(path)}


def _write(text: str, output: Path | None, force: bool) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    from openrecipes.files import refuse_existing, write_text

    refuse_existing(output, force=force)
    write_text(output, text)
