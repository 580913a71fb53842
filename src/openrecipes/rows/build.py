"""The whole build: conversations to parquet, in two passes and bounded memory.

Pass one encodes every conversation into a cache on disk. Pass two selects and orders them, packs
them into rows and writes the parquet file. The files appear when all is done, or not at all.
"""

from __future__ import annotations

import errno
import importlib.metadata
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from openrecipes import files
from openrecipes.errors import InputError, one_line
from openrecipes.rows.assembly import Assembly, Progress, silent
from openrecipes.rows.cache import TokenCache, being_published, open_cache, refuse_foreign
from openrecipes.rows.encoder import Encoder, EncoderSettings, files_read
from openrecipes.rows.hub import fetched, origin
from openrecipes.rows.places import Places
from openrecipes.rows.pool import default_workers, encoding_pool
from openrecipes.rows.refusals import Refused
from openrecipes.rows.settings import BUILD_VERSION, BuildSettings, check, outputs
from openrecipes.rows.sources import Found, SourceFile, chunks, find, unreadable


def build(settings: BuildSettings, progress: Progress = silent) -> dict[str, Any]:
    """Build rows; returns the report.

    Raises:
        InputError: wrong settings or input, or a conversation that is refused and not skipped.
    """
    check(settings)
    places = _places(settings)
    places.check()
    given = fetched(settings.inputs)
    found = find(given)
    places.check_apart(
        files_read(settings.encoder, [source.path for source in found.files]),
        [Path(one) for one in given if Path(one).is_dir()],
    )
    if (hub := origin(settings.inputs)) is not None and settings.facts.source is None:
        settings = replace(settings, facts=replace(settings.facts, source=hub[0], revision=hub[1]))
    encoder = Encoder(_encoder_settings(settings))
    try:
        return _build(settings, found, encoder, progress)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise InputError(
            "free disk space, then go on with --resume"
            if full
            else "choose a place that can be written",
            file=error.filename2 or error.filename or settings.output,
            found=error.strerror or one_line(error),
        ) from None


def _build(
    settings: BuildSettings, found: Found, encoder: Encoder, progress: Progress
) -> dict[str, Any]:
    sources = [_source(source) for source in found.files]
    fingerprint = _fingerprint(settings, encoder, sources)
    force = settings.force or settings.dry_run
    with (
        _cache_directory(settings) as directory,
        open_cache(directory, fingerprint, resume=settings.resume, force=force) as cache,
    ):
        encode_all(cache, encoder, found.files, settings, progress)
        return Assembly(settings, encoder, cache, sources, found.left_out, progress).run()


def _places(settings: BuildSettings) -> Places:
    """What is written; nothing in a dry run."""
    if settings.dry_run:
        return Places([])
    cache = _cache_path(settings)
    refuse_foreign(cache)
    own = being_published(cache) if settings.resume else frozenset()
    return Places(outputs(settings), cache=cache, force=settings.force, own=own)


def _cache_path(settings: BuildSettings) -> Path:
    return settings.output.with_name(settings.output.name + ".cache")


def _encoder_settings(settings: BuildSettings) -> EncoderSettings:
    limited = settings.packing == "best-fit" and settings.overlong != "split"
    return replace(settings.encoder, max_tokens=settings.row_tokens if limited else None)


def _source(source: SourceFile) -> dict[str, Any]:
    try:
        size, sha256 = source.path.stat().st_size, files.sha256_file(source.path)
    except OSError as error:
        raise unreadable(source.path, error) from None
    return {
        "input": source.input,
        "path": str(source.path),
        "bytes": size,
        "sha256": sha256,
    }


def _fingerprint(
    settings: BuildSettings, encoder: Encoder, sources: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the cached tokens depend on."""
    given = encoder.settings
    return {
        "build_version": BUILD_VERSION,
        "input": [[s["input"], s["path"], s["sha256"]] for s in sources],
        "tokenizer": encoder.tokenizer.sha256,
        "chat_template": encoder.template.sha256,
        "loss_mask_type": given.mask_type,
        "vocabulary": encoder.vocabulary,
        "eos": encoder.eos,
        "special_tokens": encoder.tokenizer.special_tokens,
        "template_options": dict(given.template_options),
        "template_date": str(given.template_date),
        "max_tokens": given.max_tokens,
        "tokenizers": importlib.metadata.version("tokenizers"),
    }


@contextmanager
def _cache_directory(settings: BuildSettings) -> Iterator[Path]:
    if settings.dry_run:
        with tempfile.TemporaryDirectory(prefix="openrecipes-") as directory:
            yield Path(directory) / "cache"
    else:
        settings.output.parent.mkdir(parents=True, exist_ok=True)
        yield _cache_path(settings)


def encode_all(
    cache: TokenCache,
    encoder: Encoder,
    found: Sequence[SourceFile],
    settings: BuildSettings,
    progress: Progress = silent,
) -> None:
    """Pass one: encode what the cache does not hold yet."""
    total = sum(source.path.stat().st_size for source in found)
    workers = settings.workers or default_workers()
    for refused in cache.refused():
        _stop_at(refused, settings)
    with encoding_pool(encoder, workers) as encode:
        for chunk in encode(chunks(found, skip=cache.conversations)):
            for refused in cache.append(chunk, str(found[chunk.file].path)):
                _stop_at(refused, settings)
            progress("tokenize", chunk.read, total, cache.conversations)


def _stop_at(refused: Refused, settings: BuildSettings) -> None:
    """A refused conversation ends the build, unless its kind is to be skipped and counted."""
    if not settings.dry_run and not settings.skips(refused):
        raise refused.error()
