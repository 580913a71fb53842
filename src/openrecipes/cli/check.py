"""``openrecipes check``: is the candidate still the same training as the reference?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openrecipes.cli.output import panel, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from openrecipes.gate.check import Verdict
    from openrecipes.gate.configuration import Difference

_STYLES = {"pass": "green", "fail": "bold red", "review": "yellow", "component": "yellow"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("check", rich_help_panel=panel("prove"))(check)


def check(
    candidate: Annotated[Path, typer.Argument(help="A run record, or a recipe.")],
    reference: Annotated[Path, typer.Argument(help="What it must be the same training as.")],
    replicate: Annotated[
        list[Path] | None,
        typer.Option(
            help="A run of the reference with another --row-order-seed, for the noise floor; "
            "may be given several times."
        ),
    ] = None,
    reviews: Annotated[
        Path | None, typer.Option(help="A recipe whose correctness.reviews count.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Prove that a faster layout is still the same training.

    Exit status: 0 pass, 1 fail, 3 a person has to decide. The verdict is also written to
    verdicts/check.json in the candidate's record, with a picture beside it.

    Example: [bold]openrecipes check runs/candidate runs/reference --replicate runs/again[/bold]
    """
    from openrecipes.gate.check import check as run_check
    from openrecipes.gate.review import read_reviews

    verdict = run_check(
        candidate,
        reference,
        replicate or (),
        read_reviews(reviews) if reviews is not None else (),
    )
    if json:
        document = verdict.as_json()
        document.pop("format")
        print_json(document)
    else:
        _print(verdict)
    if verdict.exit_code:
        raise typer.Exit(int(verdict.exit_code))


def _print(verdict: Verdict) -> None:
    from rich.console import Console

    from openrecipes.gate.check import PICTURE, VERDICT

    console = Console()
    for part in _parts(verdict):
        console.print(part)
    if verdict.candidate.kind == "run":
        console.print(_text(f"Written: {verdict.candidate.path / VERDICT}", "dim"))
        if verdict.convergence is not None:
            console.print(_text(f"Picture: {verdict.candidate.path / PICTURE}", "dim"))


def _parts(verdict: Verdict) -> list[RenderableType]:
    parts: list[RenderableType] = []
    differences = verdict.configuration.differences
    shown = [d for d in differences if (d.kind, d.verdict) != ("io", "pass")]
    if shown:
        parts.append(_differences(shown))
    compared = verdict.configuration.compared
    aside = ", ".join(d.flag for d in differences if d not in shown)
    told = f"{compared} settings compared, {len(differences)} differ"
    parts.append(_text(f"{told} (of class io: {aside})" if aside else told, "dim"))
    unlike = verdict.configuration.not_compared
    if unlike:
        parts.append(_text(f"known on one side only: {', '.join(unlike)}", "dim"))
    if verdict.components:
        parts.append(_components(verdict))
    if verdict.convergence is not None:
        parts.append(_curves(verdict))
        parts += [_text(f"note: {note}", "dim") for note in verdict.convergence.notes]
    if verdict.probe is not None:
        steps = ", ".join(map(str, verdict.probe.tolerance)) or "none in common"
        parted = verdict.probe.parting or "every layer agrees"
        parts.append(_text(f"parity probe (steps {steps}): {parted}"))
    parts.append(_headline(verdict))
    if verdict.verdict != "pass":
        parts += [_text(f"  look at {item}") for item in verdict.look_first[:8]]
    return parts


def _differences(differences: Sequence[Difference]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="What differs", title_justify="left", box=None, pad_edge=False)
    for column in ("verdict", "class", "setting: candidate against reference"):
        table.add_column(column, overflow="fold")
    for difference in differences:
        values = f"{_value(difference.candidate)} against {_value(difference.reference)}"
        setting = Text.assemble(
            _text(f"{difference.flag}: ", "bold"),
            _text(values),
            "\n",
            _text(difference.reason, "dim"),
        )
        verdict_ = _text(difference.verdict, _STYLES[difference.verdict])
        table.add_row(verdict_, _text(difference.kind), setting)
    return table


def _components(verdict: Verdict) -> RenderableType:
    from rich.table import Table

    table = Table(title="Component tests", title_justify="left", box=None, pad_edge=False)
    for column in ("result", "component", "precision", "error", "bound", "for"):
        table.add_column(column, overflow="fold")
    for test in verdict.components:
        table.add_row(
            _text(test["result"], _STYLES.get(test["result"], "yellow")),
            _text(test["component"]),
            *(_text(_short(test.get(key))) for key in ("precision", "relative_error", "bound")),
            _text(test["flag"]),
        )
    return table


def _short(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else _value(value)


def _curves(verdict: Verdict) -> RenderableType:
    from rich.table import Table

    assert verdict.convergence is not None
    document = verdict.convergence.as_json()
    limits = document["thresholds"]
    steps = document["steps"]
    table = Table(title="Convergence", title_justify="left", box=None, pad_edge=False)
    for column in ("figure", "found", "bound"):
        table.add_column(column, overflow="fold")
    rows: list[tuple[str, Any, str]] = [
        ("steps", steps, "the same on both sides"),
        ("correlation", document["correlation"], f">= {limits['correlation']}"),
        ("final loss difference", document["final_loss_difference"], f"<= {limits['final_loss']}"),
        (
            "points over tolerance",
            document["pointwise_failures"],
            f"<= {limits['pointwise_fraction']:.0%} of {steps}",
        ),
        ("outliers", document["outliers"], f"<= {limits['outlier_fraction']:.0%} of {steps}"),
        ("largest loss difference", document["max_relative_difference"], ""),
        (
            "largest gradient norm difference",
            document["gradient_norm"]["max_relative_difference"],
            "",
        ),
    ]
    floor = document["noise_floor"]
    for name, label in (("loss", "loss"), ("grad_norm", "gradient norm")):
        if floor and name in floor:
            low, high = floor[name]["interval_95"]
            found = f"{floor[name]['multiple']:.3g} x ({low:.3g} to {high:.3g})"
            rows.append(
                (
                    f"{label} over the noise floor of {floor[name]['floor']:.2g}",
                    found,
                    f"<= {floor['limit']:g} x",
                )
            )
    for label, found, bound in rows:
        table.add_row(_text(label), _text(_value(found)), _text(bound, "dim"))
    for name, failure in document["failures"].items():
        table.add_row(_text(name), _text(failure, _STYLES["fail"]), "")
    for name, doubt in document["doubts"].items():
        table.add_row(_text(name), _text(doubt, _STYLES["review"]), "")
    return table


def _headline(verdict: Verdict) -> Text:
    said = {
        "pass": "PASS: the same training, as far as this check can tell",
        "fail": "FAIL: not the same training",
        "review": "REVIEW: a person has to decide",
    }[verdict.verdict]
    return _text(said, _STYLES[verdict.verdict])


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


def _text(value: str, style: str = "") -> Text:
    """Foreign text as text: no markup, no control characters."""
    from rich.text import Text

    from openrecipes.errors import one_line

    return Text(one_line(value), style=style)
