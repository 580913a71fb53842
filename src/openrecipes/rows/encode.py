"""Conversations to one JSON line each: for looking closely, and for comparing with others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openrecipes import files
from openrecipes.rows.assembly import Progress, silent
from openrecipes.rows.encoder import Encoder, EncoderSettings, files_read
from openrecipes.rows.hub import fetched
from openrecipes.rows.places import Places
from openrecipes.rows.pool import EncodedChunk, default_workers, encoding_pool
from openrecipes.rows.refusals import Refused
from openrecipes.rows.report import by_reason, encodable, excluded
from openrecipes.rows.sources import chunks, find


def encode(
    inputs: Sequence[str],
    settings: EncoderSettings,
    output: Path,
    *,
    skip: frozenset[str] = frozenset(),
    workers: int | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write ``{"id", "input_ids", "loss_mask"}`` per conversation, in input order.

    A conversation without an id of its own gets its position in the input.

    Returns:
        Counts, and what was left out.

    Raises:
        InputError: wrong input, or a conversation that is refused and not skipped.
    """
    places = Places([(output, "--output")], force=force)
    places.check()
    given = fetched(inputs)
    found = find(given)
    places.check_apart(
        files_read(settings, [source.path for source in found.files]),
        [Path(one) for one in given if Path(one).is_dir()],
    )
    encoder = Encoder(settings)
    total = sum(source.path.stat().st_size for source in found.files)
    refused: list[Refused] = []
    written = tokens = supervised = 0
    with (
        files.atomic_path(output) as temporary,
        encoding_pool(encoder, workers or default_workers(), with_ids=True) as encoded,
        temporary.open("w", encoding="utf-8") as lines,
    ):
        for chunk in encoded(chunks(found.files)):
            for at, id_, reason, detail in chunk.refused:
                place = f"{found.files[chunk.file].path}:{chunk.lines[at]}"
                one = Refused(chunk.first + at, id_, place, reason, detail)
                if reason not in skip and "all" not in skip:
                    raise one.error()
                refused.append(one)
            lines.writelines(_lines(chunk))
            written += sum(1 for length in chunk.lengths if length)
            tokens += sum(chunk.lengths)
            supervised += sum(chunk.supervised)
            progress("tokenize", chunk.read, total, written + len(refused))
    document = {
        "path": str(output),
        "conversations": {
            "input": written + len(refused),
            "encoded": written,
            "skipped": len(refused),
        },
        "tokens": {"all": tokens, "supervised": supervised},
        "reasons": by_reason(refused),
        "excluded": excluded(refused),
        "left_out_files": found.left_out,
        "tokenizer_sha256": encoder.tokenizer.sha256,
        "chat_template_sha256": encoder.template.sha256,
    }
    return dict(encodable(document))


def _lines(chunk: EncodedChunk) -> list[str]:
    lines = []
    at = 0
    for place, length in enumerate(chunk.lengths):
        if not length:
            continue
        ids = np.frombuffer(chunk.data, "<i4", length, at)
        mask = np.frombuffer(chunk.data, np.uint8, length, at + 4 * length)
        at += 5 * length
        own = chunk.ids[place]
        document = {
            "id": chunk.first + place if own is None else own,
            "input_ids": ids.tolist(),
            "loss_mask": mask.tolist(),
        }
        lines.append(json.dumps(document) + "\n")
    return lines
