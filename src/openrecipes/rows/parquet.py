"""Rows in parquet: the columns that miles reads, with the borders of documents beside them.

``messages`` is a stand-in (miles wants the column); ``metadata{input_ids, loss_mask}`` is the row;
``document_lengths`` tells where each document ends (padding trails and is in none);
``document_numbers`` and ``document_starts`` tell which input conversation a document is, and at
which of its tokens the row's part begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet

from openrecipes import files
from openrecipes.errors import InputError, one_line

#: Tokens in one row group, about.
GROUP_TOKENS = 1 << 20

SCHEMA = pyarrow.schema(
    [
        (
            "messages",
            pyarrow.list_(
                pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
            ),
        ),
        (
            "metadata",
            pyarrow.struct(
                [
                    ("input_ids", pyarrow.list_(pyarrow.int32())),
                    ("loss_mask", pyarrow.list_(pyarrow.uint8())),
                ]
            ),
        ),
        ("document_lengths", pyarrow.list_(pyarrow.int32())),
        ("document_numbers", pyarrow.list_(pyarrow.int64())),
        ("document_starts", pyarrow.list_(pyarrow.int32())),
    ]
)
_STAND_IN = [{"role": "user", "content": "tokenized: see metadata"}]


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        input_ids: (row_tokens,) int32.
        loss_mask: (row_tokens,) uint8, 1 where the token is a target.
        document_lengths: (documents,) int32; they add up to the row without its padding.
        document_numbers: (documents,) int64, each document's conversation in the input.
        document_starts: (documents,) int32, the first token's place within its conversation.
    """

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    document_lengths: npt.NDArray[np.int32]
    document_numbers: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    document_starts: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))


class RowsWriter:
    """Writes rows in order; the same rows give the same bytes with the same pyarrow.

    Use as a context manager. ``rows_sha256`` is over each row's ids (little-endian int32), then
    its mask (bytes), in row order: independent of parquet and pyarrow.
    """

    def __init__(self, path: Path, row_tokens: int) -> None:
        self.rows = 0
        self._row_tokens = row_tokens
        self._group = max(1, GROUP_TOKENS // row_tokens)
        self._pending: list[Row] = []
        self._hash = hashlib.sha256()
        self._writer = pyarrow.parquet.ParquetWriter(
            path,
            SCHEMA,
            version="2.6",
            data_page_version="1.0",
            compression="zstd",
            compression_level=3,
            use_dictionary=True,
            dictionary_pagesize_limit=1 << 20,
            data_page_size=1 << 20,
            write_statistics=False,
            store_schema=True,
        )

    def __enter__(self) -> RowsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rows_sha256(self) -> str:
        """sha256 of the rows written so far."""
        return self._hash.hexdigest()

    def write(self, row: Row) -> None:
        """Append one row."""
        self._hash.update(row.input_ids.astype("<i4", copy=False).tobytes())
        self._hash.update(row.loss_mask.tobytes())
        self._pending.append(row)
        self.rows += 1
        if len(self._pending) == self._group:
            self._flush()

    def close(self) -> None:
        """Write what is pending and the file's footer."""
        if self._pending:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        rows, self._pending = self._pending, []
        ids = _lists([row.input_ids for row in rows], pyarrow.int32())
        mask = _lists([row.loss_mask for row in rows], pyarrow.uint8())
        columns = [
            pyarrow.array([_STAND_IN] * len(rows), SCHEMA.field("messages").type),
            pyarrow.StructArray.from_arrays([ids, mask], ["input_ids", "loss_mask"]),
            _lists([row.document_lengths for row in rows], pyarrow.int32()),
            _lists([row.document_numbers for row in rows], pyarrow.int64()),
            _lists([row.document_starts for row in rows], pyarrow.int32()),
        ]
        batch = pyarrow.RecordBatch.from_arrays(columns, schema=SCHEMA)
        self._writer.write_batch(batch, row_group_size=len(rows))


def _lists(arrays: Sequence[npt.NDArray[Any]], kind: Any) -> Any:
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum([len(a) for a in arrays], out=offsets[1:])
    values = pyarrow.array(np.concatenate(arrays), kind)
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), values)


class RowsFile:
    """Rows in a parquet file, read a few at a time.

    Raises:
        InputError: missing, no parquet, or without the columns of rows.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            found = "a directory" if self.path.is_dir() else "no such file"
            raise InputError("check the path", file=self.path, found=found)
        try:
            self._file = pyarrow.parquet.ParquetFile(self.path)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(
                "give rows made by openrecipes rows build",
                file=self.path,
                found=one_line(error, 120),
                expected="a parquet file",
            ) from None
        self._check_columns()
        self.rows: int = self._file.metadata.num_rows
        groups = range(self._file.metadata.num_row_groups)
        sizes = [self._file.metadata.row_group(g).num_rows for g in groups]
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._held: tuple[int, list[Row]] = (-1, [])

    @property
    def tells_documents(self) -> bool:
        """Does the file tell the borders of documents?"""
        return "document_lengths" in self._file.schema_arrow.names

    def _check_columns(self) -> None:
        schema = self._file.schema_arrow
        metadata = schema.field("metadata").type if "metadata" in schema.names else None
        names = [] if metadata is None or not hasattr(metadata, "fields") else metadata.fields
        if not {"input_ids", "loss_mask"} <= {child.name for child in names}:
            raise InputError(
                "give rows made by openrecipes rows build",
                file=self.path,
                field="columns",
                found=", ".join(schema.names[:8]),
                expected="metadata{input_ids, loss_mask}",
            )

    def __len__(self) -> int:
        return self.rows

    @cached_property
    def row_tokens(self) -> int:
        """Tokens in a row (the first one's; ``rows verify`` checks all)."""
        return len(self.read(0, 1)[0].input_ids) if self.rows else 0

    def read(self, start: int, stop: int) -> list[Row]:
        """Rows ``start`` to ``stop - 1``.

        Raises:
            InputError: rows that the file does not have, or that cannot be read.
        """
        if not 0 <= start <= stop <= self.rows:
            raise InputError(
                "ask for rows that exist",
                file=self.path,
                field="row",
                found=f"{start} to {stop - 1}",
                expected=f"0 to {self.rows - 1}" if self.rows else "a file with rows",
            )
        rows: list[Row] = []
        while start < stop:
            group = int(np.searchsorted(self._starts, start, side="right")) - 1
            base = int(self._starts[group])
            end = min(stop, int(self._starts[group + 1]))
            rows += self._read_group(group)[start - base : end - base]
            start = end
        return rows

    def __iter__(self) -> Iterator[Row]:
        """All rows in order, one row group in memory at a time."""
        for row in range(self.rows):
            yield self.read(row, row + 1)[0]

    def _read_group(self, group: int) -> list[Row]:
        if self._held[0] != group:
            try:
                table = self._file.read_row_group(group)
                rows = _rows(table.combine_chunks())
            except Exception as error:  # columns of any type may stand in others' files
                raise InputError(
                    "build the rows again: the file is damaged",
                    file=self.path,
                    field=f"row group {group}",
                    found=one_line(error, 120),
                ) from None
            self._held = (group, rows)
        return self._held[1]

    def rows_sha256(self) -> str:
        """sha256 over each row's ids (little-endian int32), then its mask, in row order."""
        digest = hashlib.sha256()
        for row in self:
            digest.update(row.input_ids.astype("<i4", copy=False).tobytes())
            digest.update(row.loss_mask.tobytes())
        return digest.hexdigest()

    def parquet_sha256(self) -> str:
        """sha256 of the file."""
        return files.sha256_file(self.path)


def _rows(table: Any) -> list[Row]:
    names = table.schema.names
    metadata = table.column("metadata").combine_chunks()
    ids = _split(metadata.field("input_ids"), np.int32)
    mask = _split(metadata.field("loss_mask"), np.uint8)
    count = len(ids)

    def column(name: str, kind: Any) -> list[npt.NDArray[Any]]:
        if name not in names:
            return [np.zeros(0, kind)] * count
        return _split(table.column(name).combine_chunks(), kind)

    lengths = column("document_lengths", np.int32)
    if "document_lengths" not in names:
        lengths = [np.array([len(row)], np.int32) for row in ids]
    numbers, starts = column("document_numbers", np.int64), column("document_starts", np.int32)
    return [Row(*parts) for parts in zip(ids, mask, lengths, numbers, starts, strict=True)]


def _split(lists: Any, kind: Any) -> list[npt.NDArray[Any]]:
    if lists.null_count or lists.values.null_count:
        raise ValueError("a null where a list of numbers should be")
    values = lists.values.to_numpy(zero_copy_only=False)
    if values.dtype != kind:
        cast = values.astype(kind)
        if not np.array_equal(cast, values):
            raise ValueError(f"values that do not fit {np.dtype(kind).name}")
        values = cast
    offsets = lists.offsets.to_numpy()
    return [values[a:b] for a, b in pairwise(offsets.tolist())]
