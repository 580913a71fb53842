"""The application: command groups in panels, one JSON contract, one way to fail."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, Exit, TyperException

from openrecipes import __version__
from openrecipes.cli import (
    check,
    doctor,
    measure,
    model,
    publish,
    review,
    rows,
    site,
    stack,
    train,
    verify,
)
from openrecipes.cli import lint as lint_command
from openrecipes.cli import recipe as recipe_command
from openrecipes.cli import registry as registry_command
from openrecipes.cli import run as run_command
from openrecipes.cli.output import print_json
from openrecipes.cli.usage import usage_error
from openrecipes.errors import ExitCode, InputError

_INTERRUPTED = 130  # typer's exit code for Ctrl-C


class DataFirst(TyperGroup):
    """Lists `rows` first: typer puts groups behind commands, but the path begins with data."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """The commands' names in the order of the help text."""
        return sorted(super().list_commands(ctx), key=lambda name: name != "rows")


app = typer.Typer(
    name="openrecipes",
    cls=DataFirst,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"openrecipes {__version__}")
        raise typer.Exit


@app.callback()
def openrecipes(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Make, run, check, improve and publish verified training recipes.

    Example: [bold]openrecipes rows build --help[/bold]
    """


# The order of the panels and of the commands in them: the order in which they are needed.
for group in (
    rows,
    run_command,
    train,
    measure,
    model,
    stack,
    doctor,
    check,
    verify,
    review,
    publish,
    lint_command,
    recipe_command,
    site,
    registry_command,
):
    group.register(app)


def main() -> None:
    """Run the command line; every failure ends here with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run one command and return its exit code."""
    wants_json = "--json" in argv
    try:
        code = app(argv, prog_name="openrecipes", standalone_mode=False)
    except Exit as exit_:
        code = exit_.exit_code
    except InputError as error:
        return _fail(error, wants_json)
    except TyperException as error:
        return _fail(usage_error(error), wants_json, error.exit_code)
    except (Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # the reader has left; nothing to flush
        return ExitCode.DONE
    except OSError as error:  # a full disk, a folder without permission
        return _fail(_system_fault(error), wants_json)
    if code == _INTERRUPTED:
        print("stopped", file=sys.stderr)
        return ExitCode.STOPPED
    return int(code) if isinstance(code, int) else ExitCode.DONE


def _system_fault(error: OSError) -> InputError:
    return InputError(
        "free the place or choose another",
        file=error.filename2 or error.filename,
        found=error.strerror or error,
        expected="a file that can be read or written",
    )


def _fail(error: InputError, wants_json: bool, code: int = ExitCode.USAGE) -> int:
    if wants_json:
        print_json({"error": error.as_json()})
    print(f"error: {error}", file=sys.stderr)
    return code
