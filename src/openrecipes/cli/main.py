"""The application: command groups in panels, one JSON contract, one way to fail."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
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
from openrecipes.errors import ExitCode, InputError

app = typer.Typer(
    name="openrecipes",
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


check.register(app)
rows.register(app)
run_command.register(app)
train.register(app)
review.register(app)
site.register(app)
measure.register(app)
stack.register(app)
model.register(app)
publish.register(app)
verify.register(app)
lint_command.register(app)
recipe_command.register(app)
registry_command.register(app)
doctor.register(app)


def main() -> None:
    """Run the command line; every failure ends here with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run one command and return its exit code."""
    wants_json = "--json" in argv
    try:
        code = app(argv, standalone_mode=False)
        return int(code) if isinstance(code, int) else ExitCode.DONE
    except Exit as exit_:
        return exit_.exit_code
    except InputError as error:
        return _fail(error, wants_json)
    except TyperException as error:
        return _fail(
            InputError("see --help", found=error.format_message()), wants_json, error.exit_code
        )
    except (Abort, KeyboardInterrupt):
        print("stopped", file=sys.stderr)
        return ExitCode.STOPPED
    except BrokenPipeError:
        sys.stdout = None  # the reader has left; nothing to flush
        return ExitCode.DONE


def _fail(error: InputError, wants_json: bool, code: int = ExitCode.USAGE) -> int:
    if wants_json:
        print_json({"error": error.as_json()})
    print(f"error: {error}", file=sys.stderr)
    return code
