"""``openrecipes rows``: from conversations to pretokenized rows."""

from __future__ import annotations

import datetime
import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from openrecipes.cli.output import panel, print_json
from openrecipes.errors import InputError

if TYPE_CHECKING:
    from openrecipes.rows.build import Progress
    from openrecipes.rows.encoder import EncoderSettings
    from openrecipes.rows.selection import Mixture

app = typer.Typer(no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add ``rows`` to the application."""
    parent.add_typer(
        app,
        name="rows",
        rich_help_panel=panel("data"),
        help="Build, look at and verify pretokenized rows.",
    )


class _ManyInputs(TyperCommand):
    """Lets ``--input A B C`` take several values, as ``--input A --input B --input C`` does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
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


@app.command(cls=_ManyInputs)
def build(
    input_: Input,
    tokenizer: TokenizerPath,
    output: Annotated[Path, typer.Option("--output", help="The parquet file to write.")],
    chat_template: Template = None,
    loss_mask_type: MaskKind = "qwen3_5",
    packing: Annotated[
        str, typer.Option(help="concat (cut a seeded stream) or best-fit (whole conversations).")
    ] = "concat",
    row_tokens: Annotated[int, typer.Option(help="Tokens in a row.")] = 8192,
    rows: Annotated[
        int | None, typer.Option(help="Rows to write; without it as many as there are.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every order.")] = 42,
    report: Annotated[
        list[Path] | None,
        typer.Option(help="Where the build report goes: .json, or .html for a page. Repeatable."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after an interruption.")] = False,
    force: Force = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count everything, write nothing.")
    ] = False,
    num_workers: Workers = None,
    skip: Skip = None,
    overlong: Annotated[
        str, typer.Option(help="best-fit, longer than a row: refuse, skip or split.")
    ] = "refuse",
    weights: Annotated[
        str | None, typer.Option(metavar="W,W,...", help="Share of the tokens of each --input.")
    ] = None,
    input_rows: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Rows' worth of tokens of each --input.")
    ] = None,
    eval_conversations: Annotated[
        int | None, typer.Option(help="Conversations held out for evaluation.")
    ] = None,
    eval_share: Annotated[
        float | None, typer.Option(help="Share of the conversations held out for evaluation.")
    ] = None,
    eval_output: Annotated[
        Path | None, typer.Option(help="The evaluation rows; default OUTPUT's name with .eval.")
    ] = None,
    vocab_size: Vocabulary = None,
    expect_tokenizer_sha256: Expected = None,
    eos_token: Eos = None,
    supervise_eos: Annotated[
        bool, typer.Option("--supervise-eos", help="Learn the token between documents.")
    ] = False,
    allow_unlearned_ends: Annotated[
        bool,
        typer.Option("--allow-unlearned-ends", help="Accept rows that teach no end of turn."),
    ] = False,
    padding_id: Annotated[int | None, typer.Option(help="Padding id (best-fit).")] = None,
    template_option: Options = None,
    template_date: Date = None,
    name: Annotated[str | None, typer.Option(help="Name of these rows.")] = None,
    dataset_name: Annotated[str | None, typer.Option(help="Name of the data set.")] = None,
    dataset_source: Annotated[str | None, typer.Option(help="Hub id or address.")] = None,
    dataset_revision: Annotated[str | None, typer.Option(help="Revision of the source.")] = None,
    license_: Annotated[str | None, typer.Option("--license", help="Its licence.")] = None,
    tokenizer_name: Annotated[
        str | None, typer.Option(help="The tokenizer's name and revision, for the recipe.")
    ] = None,
    json_: Json = False,
) -> None:
    """Build packed rows with loss masks from conversations.

    Example: [bold]openrecipes rows build --input chats.jsonl --tokenizer DIR --chat-template
    DIR/chat_template.jinja --row-tokens 8192 --seed 42 --output rows.parquet --report
    report.json[/bold]
    """
    from openrecipes.rows.build import BuildSettings, build
    from openrecipes.rows.report import DatasetFacts

    settings = BuildSettings(
        inputs=tuple(input_),
        output=output,
        encoder=_encoder_settings(
            tokenizer,
            chat_template,
            loss_mask_type,
            vocab_size,
            eos_token,
            template_option,
            template_date,
            expect_tokenizer_sha256,
        ),
        packing=packing,
        row_tokens=row_tokens,
        rows=rows,
        seed=seed,
        overlong=overlong,
        skip=_skipped(skip),
        supervise_eos=supervise_eos,
        allow_unlearned_ends=allow_unlearned_ends,
        padding=padding_id,
        mixture=_mixture(weights, input_rows),
        eval_conversations=eval_conversations,
        eval_share=eval_share,
        eval_output=eval_output,
        reports=tuple(report or ()),
        facts=DatasetFacts(
            name, dataset_name, dataset_source, dataset_revision, license_, tokenizer_name
        ),
        builder=_command_line(),
        workers=num_workers,
        resume=resume,
        force=force,
        dry_run=dry_run,
    )
    began = time.perf_counter()
    with _progress() as progress:
        document = build(settings, progress)
    seconds = time.perf_counter() - began
    if json_:
        print_json({**document, "seconds": round(seconds, 3)})
    else:
        _tell(document, seconds, dry_run=dry_run)


def _encoder_settings(
    tokenizer: Path,
    chat_template: Path | None,
    mask_type: str,
    vocabulary: int | None,
    eos_token: str | None,
    options: list[str] | None,
    date: str | None,
    expected_sha256: str | None,
) -> EncoderSettings:
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
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
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


def _skipped(reasons: list[str] | None) -> frozenset[str]:
    return frozenset(part for reason in reasons or [] for part in reason.split(",") if part)


def _mixture(weights: str | None, input_rows: str | None) -> Mixture | None:
    from openrecipes.rows.selection import Mixture

    if weights is None and input_rows is None:
        return None
    return Mixture(
        None if weights is None else tuple(_numbers("--weights", weights, float)),
        None if input_rows is None else tuple(_numbers("--input-rows", input_rows, int)),
    )


def _numbers(option: str, text: str, kind: type[Any]) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            "write numbers with commas between", field=option, found=text, expected="N,N,..."
        ) from None


def _command_line() -> str:
    return shlex.join(["openrecipes", *sys.argv[1:]])


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar on stderr, with rate and time left; silent where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[conversations]:,} conversations, {task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    tasks: dict[str, tuple[Any, float, int]] = {}

    def show(phase: str, done: int, total: int, conversations: int) -> None:
        if phase not in tasks:
            task = bar.add_task(phase, total=total, conversations=0, rate="")
            tasks[phase] = (task, time.monotonic(), conversations)
            bar.start()  # only now: processes must be forked before a display's thread exists
        task, began, before = tasks[phase]
        rate = (conversations - before) / max(time.monotonic() - began, 1e-3)
        bar.update(task, completed=done, conversations=conversations, rate=f"{rate:,.0f}/s")

    try:
        yield show
    finally:
        bar.stop()


def _tell(document: dict[str, Any], seconds: float, *, dry_run: bool) -> None:
    """The result of a build, for people."""
    from rich.console import Console

    tell = Console(highlight=False, soft_wrap=True).print
    counts, tokens = document["conversations"], document["tokens"]
    verb = "would write" if dry_run else "wrote"
    tell(
        f"{verb} [bold]{document['rows']:,}[/bold] rows of {document['row_tokens']:,} tokens: "
        f"{document['path']}"
    )
    tell(f"  supervised  {document['supervised_token_ratio']:.3f} of the tokens")
    tell("  " + ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in counts.items()))
    for reason, number in document["reasons"].items():
        tell(f"    {reason}: {number:,}")
    tell("  tokens: " + ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in tokens.items()))
    if document["evaluation"]:
        held = document["evaluation"]
        tell(f"  evaluation: {held['rows']:,} rows: {held['path']}")
    if not dry_run:
        tell(f"  rows_sha256     {document['rows_sha256']}")
        tell(f"  parquet_sha256  {document['parquet_sha256']}")
    tell(f"  {counts['input'] / max(seconds, 1e-9):,.0f} conversations/s, {seconds:.1f} s")
