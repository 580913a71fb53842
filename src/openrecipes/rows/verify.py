"""Are rows what they claim to be? Every invariant, the facts beside them, and a sample re-built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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


def expectations(source: str, dataset: Mapping[str, Any] | None) -> Expectations:
    """Claims of a data-set block (``workload.dataset``)."""
    dataset = dataset or {}
    build = dataset.get("build") or {}
    names = ("rows", "row_tokens", "parquet_sha256", "parquet_bytes", "padding_tokens")
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
    file: RowsFile, claims: Sequence[Expectations] = (), *, vocabulary: int | None = None
) -> list[Check]:
    """Check every invariant of every row, and what others claim.

    Args:
        file: the rows.
        claims: what is claimed about them.
        vocabulary: the model's vocabulary size; None leaves the upper bound of ids unchecked.
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
        known = len(row.document_numbers) in (0, len(row.document_lengths))
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
    )
    for claim in claims:
        found += _compared(measured, claim)
    return found


def _compared(measured: Expectations, claim: Expectations) -> Iterator[Check]:
    for name, expected in asdict(claim).items():
        if name == "source" or expected is None:
            continue
        is_ = getattr(measured, name)
        if name == "supervised_token_ratio":
            # A claim is rounded: it may be off by half of its last digit.
            digits = len(str(expected).partition(".")[2])
            ok = is_ is not None and abs(is_ - expected) <= 0.5 * 10**-digits + 1e-12
            is_ = is_ if is_ is None else round(is_, 6)
        else:
            ok = is_ == expected
        yield Check(f"{name} as in {claim.source}", ok, is_, expected)


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
        if len(row.document_numbers) != len(row.document_lengths):
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
    for number, start, length in zip(
        row.document_numbers.tolist(),
        row.document_starts.tolist(),
        row.document_lengths.tolist(),
        strict=True,
    ):
        source = encoded.get(number)
        if source is None:
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
