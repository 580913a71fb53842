"""Are rows what they claim to be? Every invariant, the facts beside them, and a sample re-built."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from openrecipes.errors import InputError
from openrecipes.rows.conversations import parse_line
from openrecipes.rows.encoder import Encoded, Encoder
from openrecipes.rows.hub import fetched
from openrecipes.rows.parquet import Row, RowsFile
from openrecipes.rows.refusals import Refusal
from openrecipes.rows.sources import chunks, find, parquet_rows


@dataclass(frozen=True)
class Check:
    """One thing that was checked.

    Attributes:
        name: what.
        ok: does it hold?
        found: what was found.
        expected: what should have been found.
        rows: the first rows at fault, ten at most.
    """

    name: str
    ok: bool
    found: Any = None
    expected: Any = None
    rows: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The check as a JSON object."""
        return {**asdict(self), "rows": list(self.rows)}


@dataclass(frozen=True)
class Expectations:
    """What others claim about the rows; None is no claim.

    Attributes:
        source: who claims it (a build block, a recipe).
    """

    source: str
    rows: int | None = None
    row_tokens: int | None = None
    rows_sha256: str | None = None
    parquet_sha256: str | None = None
    parquet_bytes: int | None = None
    padding_tokens: int | None = None
    supervised_token_ratio: float | None = None
    loss_mask: str | None = None
    seed: int | None = None
    tokenizer: str | None = None


#: What rows do not show: only the block beside them tells it.
TOLD = ("loss_mask", "seed", "tokenizer")


def expectations(source: str, dataset: Mapping[str, Any] | None) -> Expectations:
    """Claims of a data-set block (``workload.dataset``)."""
    dataset = dataset or {}
    build = dataset.get("build") or {}
    names = ("rows", "row_tokens", "parquet_sha256", "parquet_bytes", "padding_tokens", *TOLD)
    return Expectations(
        source,
        rows_sha256=dataset.get("rows_sha256"),
        supervised_token_ratio=build.get("supervised_token_ratio"),
        **{name: build.get(name) for name in names},
    )


#: Rows at fault that are named.
_NAMED = 10


class _Faults:
    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}

    def note(self, name: str, row: int, wrong: bool) -> None:
        found = self.rows.setdefault(name, [])
        if wrong:
            found.append(row)

    def checks(self) -> Iterator[Check]:
        for name, rows in self.rows.items():
            yield Check(
                name,
                not rows,
                f"{len(rows)} rows at fault",
                "0 rows at fault",
                tuple(rows[:_NAMED]),
            )


def verify(
    file: RowsFile,
    claims: Sequence[Expectations] = (),
    *,
    vocabulary: int | None = None,
    told: Expectations | None = None,
) -> list[Check]:
    """Check every invariant of every row, and what others claim.

    Args:
        file: the rows.
        claims: what is claimed about them.
        vocabulary: the model's vocabulary size; None leaves the upper bound of ids unchecked.
        told: the block beside the rows, for what rows do not show.
    """
    faults = _Faults()
    supervised = filled = padding = 0
    size = file.row_tokens
    for number, row in enumerate(file):
        ids, mask = row.input_ids, row.loss_mask
        faults.note("row lengths are equal", number, len(ids) != size)
        faults.note("mask is as long as its row", number, len(mask) != len(ids))
        faults.note("mask is 0 or 1", number, bool((mask > 1).any()))
        faults.note("first token is no target", number, len(mask) > 0 and int(mask[0]) != 0)
        faults.note("row has a target", number, not mask.any())
        faults.note("ids are not negative", number, bool((ids < 0).any()))
        if vocabulary is not None:
            faults.note("ids are in the vocabulary", number, bool((ids >= vocabulary).any()))
        covered = int(row.document_lengths.sum())
        wrong = covered > len(ids) or bool((row.document_lengths < 1).any())
        faults.note("documents fit into their row", number, wrong)
        faults.note("padding is no target", number, bool(mask[covered:].any()))
        many = len(row.document_lengths)
        known = (len(row.document_numbers), len(row.document_starts)) in ((0, 0), (many, many))
        faults.note("each document has a number", number, not known)
        supervised += int((mask == 1).sum())
        filled += min(covered, len(ids))
        padding += max(0, len(ids) - covered)
    found = [Check("there are rows", file.rows > 0, file.rows, ">= 1"), *faults.checks()]
    measured = Expectations(
        "",
        file.rows,
        size,
        file.rows_sha256(),
        file.parquet_sha256(),
        file.path.stat().st_size,
        padding,
        supervised / filled if filled else None,
        *(getattr(told, name, None) for name in TOLD),
    )
    for claim in claims:
        found += _compared(measured, claim)
    return found


def _compared(measured: Expectations, claim: Expectations) -> Iterator[Check]:
    for name, expected in asdict(claim).items():
        is_ = getattr(measured, name)
        if name == "source" or expected is None or (name in TOLD and is_ is None):
            continue
        if name == "supervised_token_ratio":
            ok = is_ is not None and _rounds_to(is_, expected)
            is_ = is_ if is_ is None else round(is_, 6)
        elif name == "tokenizer":
            ok = same_tokenizer(str(is_), str(expected))
        else:
            ok = is_ == expected and not isinstance(expected, bool)
        finite = not isinstance(expected, float) or math.isfinite(expected)
        shown = expected if finite else str(expected)
        yield Check(f"{name} as in {claim.source}", ok, is_, shown)


def _rounds_to(measured: float, claim: Any) -> bool:
    """Is the claim what was measured, rounded to the claim's digits (two at least)?"""
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not math.isfinite(claim):
        return False
    exponent = Decimal(str(claim)).as_tuple().exponent
    digits = max(2, -int(exponent))
    return abs(measured - claim) <= 0.5 * 10.0**-digits + 1e-12


_HASH = re.compile(r"(tokenizer\.json|chat_template\.jinja) sha256 ([0-9a-f]{64})")


def hashes(tokenizer: object) -> dict[str, str]:
    """The hashes that a data-set block tells of tokenizer.json and chat_template.jinja."""
    return dict(_HASH.findall(tokenizer)) if isinstance(tokenizer, str) else {}


def by_hash(told: Expectations, file: str, sha256: str) -> list[Check]:
    """Is this the tokenizer.json or chat_template.jinja that a block tells? Empty for no hash."""
    expected = hashes(told.tokenizer).get(file)
    if expected is None:
        return []
    return [Check(f"{file} as in {told.source}", sha256 == expected, sha256, expected)]


def without_told(claim: Expectations) -> Expectations:
    """A block's claims about its own rows: less what only the block tells."""
    return replace(claim, loss_mask=None, seed=None, tokenizer=None)


def same_tokenizer(one: str, other: str) -> bool:
    """Do two descriptions name the same tokenizer: by hashes where both tell them, else by name?"""
    ours, theirs = hashes(one), hashes(other)
    if both := set(ours) & set(theirs):
        return all(ours[file] == theirs[file] for file in both)
    return one.partition(" (")[0] == other.partition(" (")[0]


def unchecked(
    file: RowsFile,
    told: Mapping[str, Any] | None,
    claims: Sequence[Expectations],
    *,
    vocabulary: int | None,
    source: bool,
) -> list[str]:
    """What was not checked, and what it would take."""
    found = []
    if told is None:
        found.append("hashes and counts of the build: there is no data-set block beside the rows")
    elif expectations("", told).rows_sha256 is None:
        found.append("hash of the rows: the data-set block beside them tells none")
    if vocabulary is None:
        found.append("ids below the vocabulary: pass --tokenizer or --vocab-size")
    if not file.tells_documents:
        found.append("borders of documents: the file tells none")
    if not source:
        found.append("tokens and masks against the conversations: pass --input and --tokenizer")
    own = expectations("", told)
    for claim in claims:
        for name in TOLD:
            if getattr(claim, name) is not None and getattr(own, name) is None:
                found.append(f"{name} as in {claim.source}: no data-set block tells it")
    return found


def rebuild(
    file: RowsFile,
    inputs: Sequence[str],
    encoder: Encoder,
    *,
    sample: int,
    seed: int = 0,
    supervise_eos: bool = False,
) -> Check:
    """Encode the conversations of sampled rows again and compare token by token.

    Args:
        file: rows that tell each document's conversation.
        inputs: the conversations, given as to the build.
        encoder: the build's tokenizer, template and mask type.
        sample: how many rows.
        seed: which rows.
        supervise_eos: was the token between documents a target?
    """
    count = min(sample, file.rows)
    picked = np.random.Generator(np.random.PCG64(seed)).permutation(file.rows)[:count]
    rows = {int(number): file.read(int(number), int(number) + 1)[0] for number in sorted(picked)}
    for number, row in rows.items():
        if len(row.document_lengths) and not len(row.document_numbers):
            raise InputError(
                "leave out --input",
                file=file.path,
                field=f"row {number}",
                found="documents without a conversation number",
                expected="rows made by openrecipes rows build",
            )
    wanted = {int(n) for row in rows.values() for n in row.document_numbers}
    encoded = dict(_encoded(inputs, encoder, wanted))
    learned = int(supervise_eos or encoder.settings.mask_type == "all")
    wrong = [
        number for number, row in rows.items() if not _same(row, encoded, encoder.eos, learned)
    ]
    return Check(
        "sampled rows can be built again",
        not wrong,
        f"{len(wrong)} of {count} rows differ",
        f"0 of {count} rows differ",
        tuple(wrong[:_NAMED]),
    )


def _encoded(
    inputs: Sequence[str], encoder: Encoder, wanted: set[int]
) -> Iterator[tuple[int, Encoded]]:
    for chunk in chunks(find(fetched(inputs)).files):
        places = [p for p in range(len(chunk.lines)) if chunk.first + p in wanted]
        if not places:
            continue
        records = parquet_rows(chunk.records[0]) if chunk.columnar else chunk.records
        for place in places:
            record = records[place]
            try:
                parsed = parse_line(record) if isinstance(record, bytes) else record
                yield chunk.first + place, encoder.encode(parsed)
            except Refusal:
                continue


def _same(row: Row, encoded: Mapping[int, Encoded], eos: int, learned: int) -> bool:
    at = 0
    if len({len(row.document_numbers), len(row.document_starts), len(row.document_lengths)}) > 1:
        return False
    for number, start, length in zip(
        row.document_numbers.tolist(),
        row.document_starts.tolist(),
        row.document_lengths.tolist(),
        strict=True,
    ):
        source = encoded.get(number)
        if source is None or start < 0 or length < 1:
            return False
        ids = np.append(source.ids, np.int32(eos))[start : start + length]
        mask = np.append(source.mask, np.uint8(learned))[start : start + length]
        if at == 0:
            mask = mask.copy()
            mask[:1] = 0
        if not np.array_equal(row.input_ids[at : at + length], ids):
            return False
        if not np.array_equal(row.loss_mask[at : at + length], mask):
            return False
        at += length
    return True
