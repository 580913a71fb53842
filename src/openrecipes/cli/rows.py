"""``openrecipes rows``: from conversations to pretokenized rows."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from openrecipes.cli import rows_read
from openrecipes.cli.output import panel, print_json
from openrecipes.cli.rows_options import (
    Date,
    Eos,
    Expected,
    Force,
    Input,
    Json,
    ManyInputs,
    MaskKind,
    Options,
    Skip,
    Template,
    TokenizerPath,
    Vocabulary,
    Workers,
    encoder_settings,
    mixture,
    skipped,
)
from openrecipes.cli.rows_progress import progress_bar
from openrecipes.errors import ExitCode, one_line

app = typer.Typer(no_args_is_help=True)
app.command()(rows_read.inspect)
app.command(cls=ManyInputs)(rows_read.verify)


def register(parent: typer.Typer) -> None:
    """Add ``rows`` to the application."""
    parent.add_typer(
        app,
        name="rows",
        rich_help_panel=panel("data"),
        help="Build, look at and verify pretokenized rows.\n\n"
        "Example: [bold]openrecipes rows inspect rows.parquet --row 0 --tokenizer DIR[/bold]",
    )


@app.command(cls=ManyInputs)
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
        bool,
        typer.Option(
            "--dry-run", help="Count everything, write nothing; exit code 1 if any is refused."
        ),
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
    from openrecipes.rows.build import build
    from openrecipes.rows.report import DatasetFacts
    from openrecipes.rows.settings import BuildSettings

    settings = BuildSettings(
        inputs=tuple(input_),
        output=output,
        encoder=encoder_settings(
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
        skip=skipped(skip),
        supervise_eos=supervise_eos,
        allow_unlearned_ends=allow_unlearned_ends,
        padding=padding_id,
        mixture=mixture(weights, input_rows),
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
    try:
        with progress_bar() as progress:
            document = build(settings, progress)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command with --resume goes on from here", err=True)
        raise typer.Exit(ExitCode.STOPPED) from None
    seconds = time.perf_counter() - began
    _tell_left_out(document)
    if json_:
        print_json({**document, "seconds": round(seconds, 3)})
    else:
        _tell(document, seconds, dry_run=dry_run)
    if document["conversations"]["refused"]:  # only a dry run comes this far with any
        raise typer.Exit(ExitCode.NEGATIVE)


@app.command(cls=ManyInputs)
def encode(
    input_: Input,
    tokenizer: TokenizerPath,
    output: Annotated[Path, typer.Option("--output", help="The JSONL file to write.")],
    chat_template: Template = None,
    loss_mask_type: MaskKind = "qwen3_5",
    skip: Skip = None,
    num_workers: Workers = None,
    vocab_size: Vocabulary = None,
    expect_tokenizer_sha256: Expected = None,
    eos_token: Eos = None,
    template_option: Options = None,
    template_date: Date = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Write token ids and loss mask of each conversation as a JSON line.

    Example: [bold]openrecipes rows encode --input chats.jsonl --tokenizer DIR --loss-mask-type
    qwen3_5 --output encoded.jsonl[/bold]
    """
    from openrecipes.rows.encode import encode

    settings = encoder_settings(
        tokenizer,
        chat_template,
        loss_mask_type,
        vocab_size,
        eos_token,
        template_option,
        template_date,
        expect_tokenizer_sha256,
    )
    with progress_bar() as progress:
        document = encode(
            input_,
            settings,
            output,
            skip=skipped(skip),
            workers=num_workers,
            force=force,
            progress=progress,
        )
    _tell_left_out(document)
    if json_:
        print_json(document)
    else:
        counts, tokens = document["conversations"], document["tokens"]
        typer.echo(
            f"wrote {counts['encoded']:,} of {counts['input']:,} conversations: {output}\n"
            f"  {tokens['all']:,} tokens, {tokens['supervised']:,} supervised"
        )
        for reason, number in document["reasons"].items():
            typer.echo(f"  skipped {number:,}: {reason}")


def _tell_left_out(document: dict[str, Any]) -> None:
    """One line about what lies beside the conversations and was not read."""
    names = document["left_out_files"]
    if names:
        more = ", ..." if len(names) > 3 else ""
        told = one_line(", ".join(names[:3]), 400)
        typer.echo(f"not read, of another kind: {len(names)}: {told}{more}", err=True)


def _command_line() -> str:
    return shlex.join(["openrecipes", *sys.argv[1:]])


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
