"""``openrecipes rows inspect`` and ``rows verify``: look at rows, check them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openrecipes.cli.output import print_json
from openrecipes.cli.rows_options import (
    Date,
    Eos,
    Force,
    Json,
    Options,
    Template,
    Vocabulary,
    encoder_settings,
)
from openrecipes.errors import ExitCode, InputError

if TYPE_CHECKING:
    from openrecipes.rows.look import LookedAt


def inspect(
    file: Annotated[Path, typer.Argument(help="Rows made by rows build.")],
    row: Annotated[int, typer.Option(help="Which row, from 0.")] = 0,
    count: Annotated[int, typer.Option(help="How many rows.", min=1)] = 1,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Shows text; without it token ids are shown.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page instead.")] = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Look at rows: what is learned in colour, borders of documents marked.

    Example: [bold]openrecipes rows inspect rows.parquet --row 0 --tokenizer DIR[/bold]
    """
    from dataclasses import asdict

    from openrecipes import files
    from openrecipes.rows.look import look
    from openrecipes.rows.parquet import RowsFile
    from openrecipes.rows.places import Places
    from openrecipes.rows.tokenization import TextTokenizer

    if html is not None:
        places = Places([(html, "--html")], force=force)
        places.check()
        places.check_apart({file: "the rows"})
    rows = RowsFile(file)
    reader = None if tokenizer is None else TextTokenizer(tokenizer)
    last = min(row + count, max(rows.rows, row + 1))
    looks = [look(row + n, r, reader) for n, r in enumerate(rows.read(row, last))]
    if html is not None:
        from openrecipes.rows.page import rows_page

        files.write_text(html, rows_page(str(file), looks))
    if json_:
        print_json({"path": str(file), "rows": [asdict(one) for one in looks]})
    elif html is not None:
        typer.echo(f"wrote {html}")
    else:
        for one in looks:
            _show(one)


def verify(
    file: Annotated[Path, typer.Argument(help="Rows made by rows build.")],
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe whose workload.dataset must agree.")
    ] = None,
    vocab_size: Vocabulary = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Ids must lie in its vocabulary.")] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", help="The conversations: a sample of rows is built again."),
    ] = None,
    sample: Annotated[int, typer.Option(help="Rows to build again.", min=1)] = 8,
    seed: Annotated[int, typer.Option(help="Which rows.", min=0)] = 0,
    chat_template: Template = None,
    loss_mask_type: Annotated[
        str | None,
        typer.Option(
            "--loss-mask-type", help="As given to the build; without it as the rows' block tells."
        ),
    ] = None,
    eos_token: Eos = None,
    supervise_eos: Annotated[
        bool,
        typer.Option("--supervise-eos", help="As given to the build; the block tells it, too."),
    ] = False,
    template_option: Options = None,
    template_date: Date = None,
    json_: Json = False,
) -> None:
    """Check every invariant of rows, the facts beside them, and a sample against its source.

    What cannot be checked is named. Exit code 1 when a check fails.

    Example: [bold]openrecipes rows verify rows.parquet --recipe recipe.yaml --json[/bold]
    """
    from openrecipes.rows.encoder import Encoder
    from openrecipes.rows.parquet import RowsFile
    from openrecipes.rows.report import given_to_build, read_build
    from openrecipes.rows.tokenization import TextTokenizer
    from openrecipes.rows.verify import (
        by_hash,
        expectations,
        rebuild,
        unchecked,
        verify,
        without_told,
    )

    rows = RowsFile(file)
    block = read_build(file)
    own = expectations("its build block", block)
    given = given_to_build(block)
    claims = [] if recipe is None else [_claims(recipe)]
    reader = None if tokenizer is None else TextTokenizer(tokenizer)
    if vocab_size is None and reader is not None:
        vocab_size = reader.vocabulary
    checks = verify(rows, [without_told(own), *claims], vocabulary=vocab_size, told=own)
    if reader is not None:
        checks += by_hash(own, "tokenizer.json", reader.sha256)
    if input_:
        if tokenizer is None:
            raise InputError(
                "pass --tokenizer, too", field="--input", found="no tokenizer to build again with"
            )
        settings = encoder_settings(
            tokenizer,
            chat_template,
            loss_mask_type or own.loss_mask or "qwen3_5",
            vocab_size,
            eos_token or next(iter(given.get("eos-token", [])), None),
            template_option or given.get("template-option"),
            template_date or next(iter(given.get("template-date", [])), None),
            None,
        )
        encoder = Encoder(settings)
        checks += by_hash(own, "chat_template.jinja", encoder.template.sha256)
        checks.append(
            rebuild(
                rows,
                input_,
                encoder,
                sample=sample,
                seed=seed,
                supervise_eos=supervise_eos or "supervise-eos" in given,
            )
        )
    missing = unchecked(rows, block, claims, vocabulary=vocab_size, source=bool(input_))
    ok = all(check.ok for check in checks)
    if json_:
        print_json(
            {
                "path": str(file),
                "ok": ok,
                "rows": rows.rows,
                "row_tokens": rows.row_tokens,
                "checks": [check.as_json() for check in checks],
                "not_checked": missing,
            }
        )
    else:
        for check in checks:
            typer.echo(f"{'ok  ' if check.ok else 'FAIL'}  {check.name}")
            if not check.ok:
                where = f" (rows {', '.join(map(str, check.rows))})" if check.rows else ""
                typer.echo(f"      found {check.found}, expected {check.expected}{where}")
        for what in missing:
            typer.echo(f"not checked: {what}")
        typer.echo(f"{rows.rows:,} rows: {'all checks hold' if ok else 'checks failed'}")
    if not ok:
        raise typer.Exit(ExitCode.NEGATIVE)


def _claims(recipe: Path) -> Any:
    """What a recipe says of its rows."""
    from dataclasses import replace

    from openrecipes.recipe.document import load
    from openrecipes.rows.verify import expectations

    workload = load(recipe).recipe.workload
    dataset = None if workload.dataset is None else workload.dataset.model_dump()
    claim = expectations(str(recipe), dataset)
    return claim if claim.row_tokens else replace(claim, row_tokens=workload.row_tokens)


def _show(row: LookedAt) -> None:
    """One row in the terminal; without colours, brackets mark what is learned."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    colours = console.color_system is not None
    console.print(
        f"row {row.number}: {row.tokens:,} tokens, {row.supervised:,} targets, "
        f"{len(row.documents)} documents, {row.padding:,} padding",
        style="bold",
    )
    for place, document in enumerate(row.documents, 1):
        told = f"document {place}, {document.tokens:,} tokens"
        if document.number is not None:
            told += f", conversation {document.number} from its token {document.start}"
        console.rule(told, style="dim")
        text = Text()
        for stretch in document.stretches:
            if stretch.learned and not colours:
                text.append(f"⟦{stretch.text}⟧")
            else:
                text.append(stretch.text, style="black on green" if stretch.learned else "")
        console.print(text)
