"""``openrecipes review``: record a decision on an argument that no rule knows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from openrecipes.cli.output import panel, print_json


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("review", rich_help_panel=panel("prove"))(review)


def review(
    recipe: Annotated[Path, typer.Argument(help="The candidate's recipe.")],
    flag: Annotated[str, typer.Argument(help="The argument, or env.NAME for a variable.")],
    class_: Annotated[
        str,
        typer.Option(
            "--class",
            metavar="CLASS",
            help="placement, layout, memory, kernel, numerics, workload or io.",
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why, in a sentence.")],
    by: Annotated[str, typer.Option(metavar="NAME", help="Who decides.")],
    candidate: Annotated[
        str | None, typer.Option(help="The candidate's value that was looked at; default: any.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The reference's value that was looked at; default: any.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the decision as JSON.")] = False,
) -> None:
    """Class an unknown argument, with a reason, in a recipe's correctness.reviews.

    Only what the class list does not know can be reviewed: a review never overrules it.

    Example: [bold]openrecipes review recipe.yaml new-flag --class placement
    --reason "moves state only" --by Ada[/bold]
    """
    from openrecipes.errors import one_line
    from openrecipes.gate.plain import plain
    from openrecipes.gate.review import review as record

    decision = record(
        recipe,
        flag,
        class_=class_,
        reason=reason,
        by=by,
        candidate=candidate,
        reference=reference,
        day=datetime.now(UTC).date(),
    )
    if json:
        print_json({"recipe": plain(recipe), "review": plain(decision)})
    else:
        said = f"{decision['flag']} is {decision['class']} in {recipe}: {decision['reason']}"
        typer.echo(one_line(said))
