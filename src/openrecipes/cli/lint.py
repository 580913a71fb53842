"""``openrecipes lint``: does a recipe agree with itself, with its model and with its layout?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openrecipes.cli.output import panel, print_json
from openrecipes.errors import ExitCode, InputError, one_line

if TYPE_CHECKING:
    from openrecipes.recipe.lint import Finding


class Format(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lint", rich_help_panel=panel("publish"))(lint)


def lint(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recipe files.")],
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings too.")] = False,
    format: Annotated[
        Format, typer.Option("--format", help="text for people, json, or github annotations.")
    ] = Format.TEXT,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Check recipes: every relation between fields, the layout's rules, the command's flags.

    Exit code 1 on an error (with --strict also on a warning), 2 on a file that cannot be read;
    the other files' findings are printed all the same.

    Example: [bold]openrecipes lint recipes/*/*/*.yaml[/bold]
    """
    from openrecipes.recipe.lint import lint as lint_file
    from openrecipes.recipe.registry import rows_lookup

    rows = rows_lookup(files)
    found: dict[str, list[Finding]] = {}
    unreadable: list[InputError] = []
    for path in files:
        try:
            found[str(path)] = lint_file(path, rows=rows)
        except InputError as error:
            unreadable.append(error)
    if json or format is Format.JSON:
        _json(found, unreadable)
    else:
        (_text if format is Format.TEXT else _github)(found, unreadable)
    for fault in unreadable:
        typer.echo(f"error: {fault}", err=True)
    if unreadable:
        raise typer.Exit(ExitCode.USAGE)
    failing = ("error", "warning") if strict else ("error",)
    if any(one.severity in failing for findings in found.values() for one in findings):
        raise typer.Exit(ExitCode.NEGATIVE)


def _text(found: dict[str, list[Finding]], unreadable: list[InputError]) -> None:
    for path, findings in found.items():
        for one in findings:
            place = f"{path}:{one.line}" if one.line else path
            detail = _detail(one)
            typer.echo(one_line(f"{place}: {one.severity} {one.rule}: {one.field}: {detail}", 600))
    counts = {
        severity: sum(one.severity == severity for group in found.values() for one in group)
        for severity in ("error", "warning", "note")
    }
    told = ", ".join(_counted(count, name) for name, count in counts.items())
    unread = f"; {_counted(len(unreadable), 'file')} cannot be read" if unreadable else ""
    if found:
        typer.echo(f"{_counted(len(found), 'recipe')}: {told}{unread}")


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"


def _detail(one: Finding) -> str:
    if one.engine is not None:
        return one.message
    values = []
    if one.found is not None:
        values.append(f"found {one.found}")
    if one.expected is not None:
        values.append(f"expected {one.expected}")
    return ", ".join(values) + f" ({one.message})" if values else one.message


def _json(found: dict[str, list[Finding]], unreadable: list[InputError]) -> None:
    files = [
        {"path": path, "findings": [one.as_json() for one in findings]}
        for path, findings in found.items()
    ]
    error = {"error": unreadable[0].as_json()} if unreadable else {}
    print_json({"files": files, **error})


def _github(found: dict[str, list[Finding]], unreadable: list[InputError]) -> None:
    commands = {"error": "error", "warning": "warning", "note": "notice"}
    for path, findings in found.items():
        for one in findings:
            where = f"file={_property(path)},line={one.line or 1},title={_property(one.rule)}"
            text = _data(one_line(f"{one.field}: {_detail(one)}", 600))
            typer.echo(f"::{commands[one.severity]} {where}::{text}")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
