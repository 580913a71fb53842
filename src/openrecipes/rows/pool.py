"""Encoding on several processes; the result does not depend on how many."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openrecipes.errors import InputError
from openrecipes.rows.conversations import own_id, parse_line, record_id
from openrecipes.rows.encoder import Encoder, EncoderSettings
from openrecipes.rows.refusals import Refusal
from openrecipes.rows.sources import Chunk, parquet_rows


class WorkerDied(InputError):
    """An encoding process was killed; what was encoded is kept."""


#: Chunks under way for each process: enough that none waits, few enough to fit in memory.
AHEAD = 4


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk's conversations, encoded.

    Attributes:
        chunk: the chunk's place (its records left out).
        lengths: tokens of each conversation, 0 for a refused one.
        supervised: targets of each.
        ends: of these, ends of turn.
        data: each conversation's ids (little-endian int32), then its mask, one after another.
        refused: ``(place in the chunk, id, reason, detail)``.
        ids: each record's own id; only where asked for.
    """

    first: int
    input: int
    file: int
    read: int
    lines: tuple[int, ...]
    lengths: list[int]
    supervised: list[int]
    ends: list[int]
    data: bytes
    refused: list[tuple[int, str | None, str, str]]
    ids: list[Any] = field(default_factory=list)


def encode_chunk(encoder: Encoder, chunk: Chunk, *, with_ids: bool = False) -> EncodedChunk:
    """Encode the records of one chunk; a refused conversation gets length 0."""
    records = parquet_rows(chunk.records[0]) if chunk.columnar else map(_parsed, chunk.records)
    lengths: list[int] = []
    supervised: list[int] = []
    ends: list[int] = []
    parts: list[bytes] = []
    refused: list[tuple[int, str | None, str, str]] = []
    known = list(records)
    for place, made in enumerate(encoder.encode_many(known)):
        if isinstance(made, Refusal):
            refused.append((place, record_id(known[place]), made.reason, made.detail))
            for counts in (lengths, supervised, ends):
                counts.append(0)
        else:
            lengths.append(len(made.ids))
            supervised.append(int(np.count_nonzero(made.mask)))
            ends.append(encoder.supervised_ends(made))
            parts += [made.ids.astype("<i4", copy=False).tobytes(), made.mask.tobytes()]
    ids = [own_id(record) for record in known] if with_ids else []
    return EncodedChunk(
        chunk.first,
        chunk.input,
        chunk.file,
        chunk.read,
        chunk.lines,
        lengths,
        supervised,
        ends,
        b"".join(parts),
        refused,
        ids,
    )


def _parsed(line: bytes) -> Any:
    try:
        return parse_line(line)
    except Refusal as refusal:
        return refusal


_encoder: Encoder | None = None
_with_ids = False


def _start(settings: EncoderSettings, with_ids: bool) -> None:
    global _encoder, _with_ids
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller stops the pool
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    if _encoder is None:
        _encoder = Encoder(settings)
    gc.freeze()  # the vocabulary never dies: the collector need not look at it again
    _with_ids = with_ids


def _follow(parent: int) -> None:
    """End with the parent: a killed parent cannot tell its processes to stop."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(chunk: Chunk) -> EncodedChunk:
    assert _encoder is not None
    return encode_chunk(_encoder, chunk, with_ids=_with_ids)


def default_workers() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def encoding_pool(encoder: Encoder, workers: int, *, with_ids: bool = False) -> Iterator[Any]:
    """A function from chunks to encoded chunks in the same order, on ``workers`` processes.

    The processes start at once, before threads of the caller (a progress display) exist.
    """
    if workers <= 1:
        yield lambda chunks: (encode_chunk(encoder, c, with_ids=with_ids) for c in chunks)
        return
    global _encoder
    # A forked process has the tokenizer already; elsewhere each process loads its own.
    forks = sys.platform == "linux"
    context = multiprocessing.get_context("fork" if forks else "spawn")
    _encoder = encoder if forks else None
    with ExitStack() as stack:
        stack.callback(_forget)
        pool = stack.enter_context(
            ProcessPoolExecutor(
                workers, context, initializer=_start, initargs=(encoder.settings, with_ids)
            )
        )
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        pool.submit(int).result()
        yield lambda chunks: _in_order(pool, chunks, workers * AHEAD)


def _forget() -> None:
    global _encoder
    _encoder = None


def _in_order(
    pool: ProcessPoolExecutor, chunks: Iterable[Chunk], window: int
) -> Iterator[EncodedChunk]:
    waiting: deque[Future[EncodedChunk]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_work, chunk))
            if len(waiting) == window:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise WorkerDied(
            "run again with --resume, and with fewer --num-workers if memory ran out",
            found="an encoding process that was killed",
        ) from None
