"""A row made readable: documents, and in each the stretches that are learned or not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from openrecipes.errors import InputError
from openrecipes.rows.parquet import Row
from openrecipes.rows.tokenization import TextTokenizer


@dataclass(frozen=True)
class Stretch:
    """Neighbouring tokens of one document, all targets or none.

    Attributes:
        text: their text, or their ids where there is no tokenizer.
        learned: are they targets?
        first: place of the first in the row.
        tokens: how many.
    """

    text: str
    learned: bool
    first: int
    tokens: int


@dataclass(frozen=True)
class Document:
    """One document of a row; ``number`` and ``start`` are None where the file does not tell."""

    number: int | None
    start: int | None
    tokens: int
    stretches: list[Stretch]


@dataclass(frozen=True)
class LookedAt:
    """A row with its documents; ``padding`` tokens trail."""

    number: int
    tokens: int
    supervised: int
    padding: int
    documents: list[Document]


def look(number: int, row: Row, tokenizer: TextTokenizer | None) -> LookedAt:
    """Take a row apart for reading.

    Args:
        number: the row's place in its file.
        row: the row.
        tokenizer: turns ids into text; without it the ids are shown.
    """
    _check(number, row, tokenizer)
    documents = []
    at = 0
    known = len(row.document_numbers) == len(row.document_lengths)
    for place, length in enumerate(row.document_lengths.tolist()):
        documents.append(
            Document(
                int(row.document_numbers[place]) if known else None,
                int(row.document_starts[place]) if known else None,
                length,
                _stretches(row, at, at + length, tokenizer),
            )
        )
        at += length
    return LookedAt(
        number, len(row.input_ids), int(row.loss_mask.sum()), len(row.input_ids) - at, documents
    )


def _check(number: int, row: Row, tokenizer: TextTokenizer | None) -> None:
    """Raises InputError for a row that cannot be taken apart."""
    lengths = row.document_lengths
    faults = {
        f"{len(row.input_ids)} ids, {len(row.loss_mask)} in the mask": (
            len(row.input_ids) != len(row.loss_mask)
        ),
        "a mask that is not 0 or 1": bool((row.loss_mask > 1).any()),
        "a negative id": bool((row.input_ids < 0).any()),
        f"documents of {lengths.sum()} tokens in {len(row.input_ids)}": (
            bool((lengths < 1).any()) or int(lengths.sum()) > len(row.input_ids)
        ),
        "documents without a start": (
            len(row.document_numbers) == len(lengths) != len(row.document_starts)
        ),
    }
    for fault, there in faults.items():
        if there:
            raise InputError(
                "see all faults with openrecipes rows verify", field=f"row {number}", found=fault
            )
    highest = int(row.input_ids.max(initial=0))
    if tokenizer is not None and highest >= tokenizer.vocabulary:
        raise InputError(
            "give the tokenizer that the rows were built with",
            file=tokenizer.file,
            field="--tokenizer",
            found=f"id {highest} in row {number}",
            expected=f"ids below {tokenizer.vocabulary}",
        )


def _stretches(row: Row, start: int, stop: int, tokenizer: TextTokenizer | None) -> list[Stretch]:
    mask = row.loss_mask[start:stop]
    changes = (np.flatnonzero(np.diff(mask)) + 1 + start).tolist()
    found = []
    for first, last in pairwise([start, *changes, stop]):
        ids = row.input_ids[first:last].tolist()
        text = " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids)
        found.append(Stretch(_visible(text), bool(row.loss_mask[first]), first, last - first))
    return found


def _visible(text: str) -> str:
    """Control characters made visible: text of a data set must not steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
