"""What a build did: the full report, and the data-set block that travels beside the rows."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openrecipes import files
from openrecipes.errors import InputError
from openrecipes.rows.packing import Tally
from openrecipes.rows.refusals import Refused

#: Version of the report's keys.
REPORT_VERSION = 1

PACKING = {
    "concat": (
        "source conversations in a seeded global permutation, concatenated with an EOS token "
        "between them and cut into consecutive {row_tokens:,}-token rows; rows without supervised "
        "targets are skipped"
    ),
    "best-fit": (
        "whole source conversations placed into {row_tokens:,}-token rows by best-fit decreasing "
        "with an EOS token between them, padding at the end, rows in a seeded order; rows without "
        "supervised targets are skipped"
    ),
}


@dataclass(frozen=True)
class DatasetFacts:
    """What the conversations are, as the user tells; unknown is None.

    Attributes:
        name: name of the rows.
        dataset_name: name of the data set.
        source: where it comes from.
        revision: its revision.
        license: its licence.
        tokenizer_name: the tokenizer's name and revision.
    """

    name: str | None = None
    dataset_name: str | None = None
    source: str | None = None
    revision: str | None = None
    license: str | None = None
    tokenizer_name: str | None = None


@dataclass(frozen=True)
class Written:
    """A parquet file of rows."""

    path: str
    rows: int
    rows_sha256: str
    parquet_sha256: str
    parquet_bytes: int


def build_path(rows: Path) -> Path:
    """Where the data-set block of a rows file lies."""
    return rows.with_name(rows.name + ".build.json")


def read_build(path: Path) -> dict[str, Any] | None:
    """The data-set block beside a rows file (``workload.dataset`` of a recipe), or None."""
    file = build_path(path)
    if not file.exists():
        return None
    document = files.read_json(file)
    if not isinstance(document, dict) or not isinstance(document.get("build", {}), dict):
        raise InputError("build the rows again", file=file, found="no data-set block")
    return document


def given_to_build(block: dict[str, Any] | None) -> dict[str, list[str]]:
    """The options of the command line that a data-set block tells, without dashes.

    Returns:
        Each option's values; a switch has none. Empty where the block tells no command line.
    """
    builder = ((block or {}).get("build") or {}).get("builder")
    found: dict[str, list[str]] = {}
    try:
        words = shlex.split(builder) if isinstance(builder, str) else []
    except ValueError:  # a quote that does not end
        return found
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            values = found.setdefault(name, [])
            values += [value] if equals else []
        else:
            values.append(word)
    return found


def encodable(value: Any) -> Any:
    """``value`` with text that no UTF-8 file can hold (a file name of any bytes) spelled out."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(item) for item in value]
    return value


def as_text(document: dict[str, Any]) -> str:
    """A report or a data-set block as the text of its file."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def dataset_block(
    facts: DatasetFacts,
    written: Written,
    tally: Tally,
    *,
    tokenizer_sha256: str,
    template_sha256: str,
    tokenizer_name: str,
    loss_mask: str,
    row_tokens: int,
    seed: int,
    packing: str,
    builder: str,
) -> dict[str, Any]:
    """The recipe's ``workload.dataset`` block, ``build`` nested in it."""
    name = facts.tokenizer_name or tokenizer_name
    return {
        "name": facts.dataset_name,
        "source": facts.source,
        "revision": facts.revision,
        "license": facts.license,
        "rows_sha256": written.rows_sha256,
        "build": {
            "name": facts.name,
            "tokenizer": (
                f"{name} (tokenizer.json sha256 {tokenizer_sha256}; "
                f"chat_template.jinja sha256 {template_sha256})"
            ),
            "loss_mask": loss_mask,
            "rows": written.rows,
            "row_tokens": row_tokens,
            "padding_tokens": tally.padding,
            "seed": seed,
            "packing": PACKING[packing].format(row_tokens=row_tokens),
            "supervised_token_ratio": ratio(tally),
            "parquet_sha256": written.parquet_sha256,
            "parquet_bytes": written.parquet_bytes,
            "builder": builder,
        },
    }


def ratio(tally: Tally) -> float | None:
    """Targets / tokens in rows, padding not counted; six digits."""
    return round(tally.supervised / tally.in_rows, 6) if tally.in_rows else None


def conversation_counts(
    lengths: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.int64],
    kept: npt.NDArray[np.int64],
) -> dict[str, int]:
    """Used whole, used in part, and left over, among the chosen conversations."""
    whole = kept[chosen] == lengths[chosen]
    some = (kept[chosen] > 0) & ~whole
    used, partly = int(whole.sum()), int(some.sum())
    return {"used": used, "partly_used": partly, "left_over": len(chosen) - used - partly}


def token_counts(tally: Tally) -> dict[str, int]:
    """Where the stream's tokens went; the first is the sum of the next three."""
    return {
        "stream": tally.stream,
        "in_rows": tally.in_rows,
        "in_skipped_rows": tally.in_skipped_rows,
        "in_tail": tally.in_tail,
        "supervised": tally.supervised,
        "eos_in_rows": tally.eos,
        "padding": tally.padding,
        "targets_lost_at_row_starts": tally.lost_targets,
    }


def length_figures(lengths: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Tokens per conversation: quantiles, and a histogram whose bins double."""
    if not len(lengths):
        return {"mean": None, "min": None, "p50": None, "p95": None, "max": None, "histogram": []}
    p50, p95 = np.percentile(lengths, [50, 95], method="lower")
    histogram: list[dict[str, int]] = []
    low = 1
    while low <= int(lengths.max()):
        count = int(((lengths >= low) & (lengths < 2 * low)).sum())
        if count or histogram:
            histogram.append({"from": low, "to": 2 * low - 1, "conversations": count})
        low *= 2
    return {
        "mean": round(float(lengths.mean()), 3),
        "min": int(lengths.min()),
        "p50": int(p50),
        "p95": int(p95),
        "max": int(lengths.max()),
        "histogram": histogram,
    }


def excluded(refused: list[Refused]) -> list[dict[str, Any]]:
    """Every conversation left out, with its reason."""
    return [asdict(one) for one in refused]


def by_reason(refused: list[Refused]) -> dict[str, int]:
    """How many conversations each reason left out."""
    counts: dict[str, int] = {}
    for one in refused:
        counts[one.reason] = counts.get(one.reason, 0) + 1
    return dict(sorted(counts.items()))
