"""Options that several ``rows`` commands share, and their values."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from openrecipes.errors import InputError

if TYPE_CHECKING:
    from openrecipes.rows.encoder import EncoderSettings
    from openrecipes.rows.selection import Mixture


class ManyInputs(TyperCommand):
    """Lets ``--input A B C`` take several values, as ``--input A --input B --input C`` does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat ``--input`` before each of its values."""
        spread: list[str] = []
        taking = False
        for argument in args:
            if argument.startswith("-") and argument != "-":
                taking = argument == "--input"
                if not taking:
                    spread.append(argument)
                    continue
                continue
            if taking:
                spread += ["--input", argument]
            else:
                spread.append(argument)
        return super().parse_args(ctx, spread)


Input = Annotated[
    list[str],
    typer.Option(
        "--input",
        help="Conversations: files (JSONL, .gz, .zst, parquet), directories, globs, or a hub data "
        "set hf://OWNER/NAME@REVISION. Several may follow.",
        show_default=False,
    ),
]
TokenizerPath = Annotated[
    Path, typer.Option("--tokenizer", help="Hugging Face directory or tokenizer.json.")
]
Template = Annotated[
    Path | None,
    typer.Option("--chat-template", help="Jinja file; without it the tokenizer directory's own."),
]
MaskKind = Annotated[
    str,
    typer.Option(
        "--loss-mask-type",
        help="What is learned: qwen3_5, qwen3, qwen, distill_qwen, generation or all.",
    ),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(
        "--skip",
        metavar="REASON",
        help="Leave out and count conversations refused for REASON, instead of stopping (or: all).",
    ),
]
Vocabulary = Annotated[
    int | None,
    typer.Option("--vocab-size", help="The model's vocabulary; without it the tokenizer's.", min=1),
]
Expected = Annotated[
    str | None,
    typer.Option("--expect-tokenizer-sha256", help="Refuse another tokenizer.json."),
]
Eos = Annotated[
    str | None,
    typer.Option(
        "--eos-token", help="Token (or id) between documents; without it the tokenizer's."
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--template-option", metavar="KEY=JSON", help="A variable for the chat template."),
]
Date = Annotated[
    str | None,
    typer.Option("--template-date", metavar="YYYY-MM-DD", help="The day that a template is told."),
]
Workers = Annotated[
    int | None, typer.Option("--num-workers", help="Encoding processes; without it one per core.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


def encoder_settings(
    tokenizer: Path,
    chat_template: Path | None,
    mask_type: str,
    vocabulary: int | None,
    eos_token: str | None,
    options: list[str] | None,
    date: str | None,
    expected_sha256: str | None,
) -> EncoderSettings:
    """The options of tokenizer, template and mask, together."""
    from openrecipes.rows.encoder import EncoderSettings

    return EncoderSettings(
        tokenizer=tokenizer,
        chat_template=chat_template,
        mask_type=mask_type,
        vocabulary=vocabulary,
        eos_token=eos_token,
        template_options=_template_options(options),
        template_date=_date(date),
        expected_tokenizer_sha256=expected_sha256,
    )


def _template_options(options: list[str] | None) -> dict[str, Any]:
    found = {}
    for option in options or []:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(
                "write KEY=JSON", field="--template-option", found=option, expected="KEY=JSON"
            )
        found[key] = _json_or_text(value)
    return found


def _json_or_text(value: str) -> Any:
    """The JSON that a text is, else the text; Python reads NaN, which is no JSON."""
    try:
        found = json.loads(value)
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError):
        return value
    return found


def _date(text: str | None) -> datetime.date | None:
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise InputError(
            "give a day", field="--template-date", found=text, expected="YYYY-MM-DD"
        ) from None


def skipped(reasons: list[str] | None) -> frozenset[str]:
    """The reasons that ``--skip`` names, with commas or repeated."""
    return frozenset(part for reason in reasons or [] for part in reason.split(",") if part)


def mixture(weights: str | None, input_rows: str | None) -> Mixture | None:
    """The mixture that ``--weights`` or ``--input-rows`` asks for."""
    from openrecipes.rows.selection import Mixture

    if weights is None and input_rows is None:
        return None
    return Mixture(
        None if weights is None else tuple(_numbers("--weights", weights, float)),
        None if input_rows is None else tuple(_numbers("--input-rows", input_rows, int)),
    )


def _numbers(option: str, text: str, kind: type[Any]) -> list[Any]:
    try:
        if not text.isascii() or "_" in text:  # Python would take them
            raise ValueError
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            "write numbers with commas between", field=option, found=text, expected="N,N,..."
        ) from None
