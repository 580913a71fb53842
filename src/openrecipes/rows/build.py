"""The whole build: conversations to parquet, in two passes and bounded memory.

Pass one encodes every conversation into a cache on disk. Pass two selects and orders them, packs
them into rows and writes the parquet file. The files appear when all is done, or not at all.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from openrecipes import files
from openrecipes.errors import InputError
from openrecipes.rows import packing, report, selection
from openrecipes.rows.cache import TokenCache, open_cache
from openrecipes.rows.encoder import Encoder, EncoderSettings
from openrecipes.rows.page import report_page
from openrecipes.rows.parquet import Row, RowsWriter
from openrecipes.rows.pool import default_workers, encoding_pool
from openrecipes.rows.refusals import REASONS, Refused
from openrecipes.rows.sources import SourceFile, chunks, find

#: Version of the bytes: the same version never gives other rows for the same input and settings.
BUILD_VERSION = 1


class Progress(Protocol):
    """Is told how far a build is."""

    def __call__(self, phase: str, done: int, total: int, conversations: int) -> None:
        """``done`` of ``total`` (bytes read, or documents packed), and conversations so far."""


def _silent(phase: str, done: int, total: int, conversations: int) -> None:
    pass


@dataclass(frozen=True)
class BuildSettings:
    """All settings of a build; see ``openrecipes rows build --help``."""

    inputs: tuple[str, ...]
    output: Path
    encoder: EncoderSettings
    packing: str = "concat"
    row_tokens: int = 8192
    rows: int | None = None
    seed: int = 42
    overlong: str = "refuse"
    skip: frozenset[str] = frozenset()
    supervise_eos: bool = False
    allow_unlearned_ends: bool = False
    padding: int | None = None
    mixture: selection.Mixture | None = None
    eval_conversations: int | None = None
    eval_share: float | None = None
    eval_output: Path | None = None
    reports: tuple[Path, ...] = ()
    facts: report.DatasetFacts = field(default_factory=report.DatasetFacts)
    builder: str = "openrecipes rows build"
    workers: int | None = None
    resume: bool = False
    force: bool = False
    dry_run: bool = False

    @property
    def held_out(self) -> bool:
        """Is there an evaluation split?"""
        return self.eval_conversations is not None or self.eval_share is not None

    @property
    def eval_path(self) -> Path:
        """Where the evaluation rows go."""
        return self.eval_output or self.output.with_name(f"{self.output.stem}.eval.parquet")


def build(settings: BuildSettings, progress: Progress = _silent) -> dict[str, Any]:
    """Build rows; returns the report.

    Raises:
        InputError: wrong settings or input, or a conversation that is refused and not skipped.
    """
    _check(settings)
    found = find(settings.inputs)
    encoder = Encoder(_encoder_settings(settings))
    sources = [_source(source) for source in found]
    fingerprint = _fingerprint(settings, encoder, sources)
    with ExitStack() as stack:
        directory = stack.enter_context(_cache_directory(settings))
        cache = stack.enter_context(
            open_cache(
                directory,
                fingerprint,
                resume=settings.resume,
                force=settings.force or settings.dry_run,
            )
        )
        encode_all(cache, encoder, found, settings, progress)
        return _Packer(settings, encoder, cache, sources, progress).run()


def _check(settings: BuildSettings) -> None:
    for name, value, allowed in (
        ("--packing", settings.packing, tuple(report.PACKING)),
        ("--overlong", settings.overlong, ("refuse", "skip", "split")),
    ):
        if value not in allowed:
            raise InputError("choose one", field=name, found=value, expected=", ".join(allowed))
    for name, number, least in (
        ("--row-tokens", settings.row_tokens, 2),
        ("--rows", settings.rows, 1),
        ("--seed", settings.seed, 0),
        ("--num-workers", settings.workers, 1),
        ("--eval-conversations", settings.eval_conversations, 1),
    ):
        if number is not None and number < least:
            raise InputError(
                "give a larger number", field=name, found=number, expected=f">= {least}"
            )
    if settings.row_tokens > 1 << 24:
        raise InputError(
            "give a shorter row",
            field="--row-tokens",
            found=settings.row_tokens,
            expected="<= 2^24",
        )
    if settings.eval_share is not None and not 0 < settings.eval_share < 1:
        raise InputError(
            "give a share",
            field="--eval-share",
            found=settings.eval_share,
            expected="0 < share < 1",
        )
    if settings.eval_share is not None and settings.eval_conversations is not None:
        raise InputError(
            "give one of them", field="--eval-share, --eval-conversations", found="both"
        )
    if unknown := settings.skip - set(REASONS) - {"all"}:
        raise InputError(
            "name reasons to skip",
            field="--skip",
            found=", ".join(sorted(unknown)),
            expected=", ".join([*REASONS, "all"]),
        )
    if settings.mixture is not None:
        selection.check_mixture(settings.mixture, len(settings.inputs))
    if settings.dry_run:
        return
    outputs = [settings.output, *settings.reports]
    if settings.held_out:
        outputs.append(settings.eval_path)
    if len({path.absolute() for path in outputs}) < len(outputs):
        raise InputError("give each file its own name", field="--output", found="one name twice")
    for path in outputs:
        if path.is_dir():
            raise InputError("give a file", file=path, field="--output", found="a directory")
        files.refuse_existing(path, force=settings.force or settings.resume)


def _encoder_settings(settings: BuildSettings) -> EncoderSettings:
    from dataclasses import replace

    limited = settings.packing == "best-fit" and settings.overlong != "split"
    return replace(settings.encoder, max_tokens=settings.row_tokens if limited else None)


def _source(source: SourceFile) -> dict[str, Any]:
    return {
        "input": source.input,
        "path": str(source.path),
        "bytes": source.path.stat().st_size,
        "sha256": files.sha256_file(source.path),
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
        yield settings.output.with_name(settings.output.name + ".cache")


def encode_all(
    cache: TokenCache,
    encoder: Encoder,
    found: Sequence[SourceFile],
    settings: BuildSettings,
    progress: Progress = _silent,
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
    if settings.dry_run or refused.reason in settings.skip or "all" in settings.skip:
        return
    if refused.reason == "overlong":
        if settings.overlong == "skip":
            return
        advice = "choose longer rows, or --overlong skip or split"
    else:
        advice = (
            f"mend it, or pass --skip {refused.reason} to leave such conversations out and count "
            "them (--dry-run counts all)"
        )
    named = f"conversation {refused.id}" if refused.id else f"conversation {refused.number}"
    raise InputError(
        advice,
        file=refused.place,
        field=named,
        found=f"{refused.reason}: {refused.detail}",
    )


@dataclass
class _Split:
    """One set of rows: what goes in, and what came of it."""

    chosen: npt.NDArray[np.int64]
    path: Path
    rows: int | None
    tally: packing.Tally
    writer: RowsWriter | None = None
    made: int = 0


class _Packer:
    """Pass two: select, order, pack, write."""

    def __init__(
        self,
        settings: BuildSettings,
        encoder: Encoder,
        cache: TokenCache,
        sources: list[dict[str, Any]],
        progress: Progress,
    ) -> None:
        self.settings = settings
        self.encoder = encoder
        self.cache = cache
        self.sources = sources
        self.progress = progress
        self.index = cache.index()
        self.lengths = self.index["length"].astype(np.int64)
        self.joint = packing.Joint(
            eos=encoder.eos,
            supervised=settings.supervise_eos or encoder.settings.mask_type == "all",
            padding=self._padding(),
        )

    def run(self) -> dict[str, Any]:
        """Write everything; returns the report."""
        settings = self.settings
        splits = self._splits()
        self._check_ends()
        refused = self.cache.refused()
        staged: dict[str, Path] = {}
        for name, split in splits.items():
            staged[name] = self.cache.directory / f"{name}.parquet"
            self._write(split, staged[name])
            if split.rows is not None and split.made < split.rows:
                raise InputError(
                    "ask for fewer --rows, or give more conversations",
                    field="--rows",
                    found=f"{split.made} rows",
                    expected=f"{split.rows} rows",
                )
            if split.made == 0:
                raise InputError(
                    "give more conversations or shorter rows",
                    field=name,
                    found=f"{split.tally.stream} tokens, no row with a target",
                    expected=f"at least one row of {settings.row_tokens} tokens",
                )
        document = self._report(splits, staged, refused)
        if not settings.dry_run:
            self._publish(splits, staged, document)
        return document

    def _padding(self) -> int:
        if self.settings.padding is not None:
            if not 0 <= self.settings.padding < self.encoder.vocabulary:
                raise InputError(
                    "give an id of the vocabulary",
                    field="--padding-id",
                    found=self.settings.padding,
                    expected=f"0 to {self.encoder.vocabulary - 1}",
                )
            return self.settings.padding
        token = self.encoder.tokenizer.special_tokens.get("pad_token")
        id_ = None if token is None else self.encoder.tokenizer.id_of(token)
        # Padding that looks like an EOS invites others to hide every EOS from the loss.
        return 0 if id_ is None or id_ == self.encoder.eos else id_

    def _splits(self) -> dict[str, _Split]:
        settings = self.settings
        usable = self.index["reason"] == 0
        if not usable.any():
            raise InputError(
                "give conversations that can be trained on",
                field="--input",
                found=f"{len(usable)} conversations, none usable",
            )
        held = np.zeros(0, np.int64)
        if settings.held_out:
            count = settings.eval_conversations
            if count is None:
                count = max(1, round(float(settings.eval_share or 0) * int(usable.sum())))
            held = selection.hold_out(usable, count, settings.seed)
            usable = usable.copy()
            usable[held] = False
        order = selection.permutation(len(usable), settings.seed)
        order = order[usable[order]]
        if settings.mixture is not None:
            inputs = self.index["input"].astype(np.int64)
            order = selection.mixed(
                order, self.lengths, inputs, settings.mixture, settings.row_tokens
            )
        splits = {"train": self._split(order, settings.output, settings.rows)}
        if settings.held_out:
            splits["evaluation"] = self._split(held, settings.eval_path, None)
        return splits

    def _split(self, chosen: npt.NDArray[np.int64], path: Path, rows: int | None) -> _Split:
        return _Split(chosen, path, rows, packing.Tally(np.zeros(len(self.lengths), np.int64)))

    def _check_ends(self) -> None:
        """A data set that never teaches an end of turn gives a model that never stops."""
        learned = int(self.index["ends"].sum()) > 0 or self.joint.supervised
        if not learned and not self.settings.allow_unlearned_ends:
            raise InputError(
                "use a mask that covers the end of a turn, or pass --allow-unlearned-ends",
                field="--loss-mask-type",
                found=f"{self.encoder.settings.mask_type}: no end of turn is a target",
                expected="a target among the ids " + ", ".join(map(str, self.encoder.turn_ends)),
            )

    def _write(self, split: _Split, staged: Path) -> None:
        if self.settings.dry_run:
            split.made = sum(1 for _ in self._rows(split))
            return
        with RowsWriter(staged, self.settings.row_tokens) as writer:
            for row in self._rows(split):
                writer.write(row)
        split.writer, split.made = writer, writer.rows

    def _rows(self, split: _Split) -> Iterator[Row]:
        settings = self.settings
        total = len(split.chosen)
        done = 0

        def fetch(number: int) -> tuple[Any, Any]:
            nonlocal done
            done += 1
            if done % 256 == 0 or done == total:
                self.progress("pack", done, total, done)
            return self.cache.fetch(number)

        common: dict[str, Any] = {
            "row_tokens": settings.row_tokens,
            "joint": self.joint,
            "tally": split.tally,
        }
        if settings.packing == "concat":
            return packing.concat(
                split.chosen.tolist(), self.lengths, fetch, rows=split.rows, **common
            )
        pieces = packing.pieces_of(split.chosen.tolist(), self.lengths, settings.row_tokens)
        groups = packing.best_fit(pieces, settings.row_tokens)
        order = np.random.Generator(np.random.PCG64([settings.seed, 2])).permutation(len(groups))
        return packing.fitted(pieces, [groups[g] for g in order], fetch, rows=split.rows, **common)

    # What came of it ----------------------------------------------------------------------------

    def _report(
        self, splits: dict[str, _Split], staged: dict[str, Path], refused: list[Refused]
    ) -> dict[str, Any]:
        settings, encoder = self.settings, self.encoder
        train = splits["train"]
        counts = report.conversation_counts(self.lengths, train.chosen, train.tally.kept)
        evaluated = splits.get("evaluation")
        usable = int((self.index["reason"] == 0).sum())
        held_out = 0 if evaluated is None else len(evaluated.chosen)
        # Usable conversations that the mixture did not draw are left over, too.
        counts["left_over"] += usable - held_out - len(train.chosen)
        stopped = [r for r in refused if not self._skipped(r)]
        conversations = {
            "input": len(self.index),
            "used": counts["used"],
            "partly_used": counts["partly_used"],
            "refused": len(stopped),
            "skipped": len(refused) - len(stopped),
            "left_over": counts["left_over"],
            "held_out": held_out,
        }
        per_input = np.bincount(self.index["input"], minlength=len(settings.inputs)).tolist()
        return {
            "report_version": report.REPORT_VERSION,
            "build_version": BUILD_VERSION,
            "dataset": self._dataset(train, staged["train"]),
            **self._figures(train, staged["train"]),
            "conversations": conversations,
            "reasons": report.by_reason(refused),
            "excluded": report.excluded(refused),
            "conversation_tokens": report.length_figures(self.lengths[self.lengths > 0]),
            "evaluation": evaluated
            and {
                **self._figures(evaluated, staged["evaluation"]),
                "conversations": {
                    "held_out": held_out,
                    **report.conversation_counts(
                        self.lengths, evaluated.chosen, evaluated.tally.kept
                    ),
                },
            },
            "inputs": [
                {"input": n, "given": given, "conversations": per_input[n], **self._drawn(n, train)}
                for n, given in enumerate(settings.inputs)
            ],
            "files": self.sources,
            "tokenizer": {
                "file": str(encoder.tokenizer.file),
                "sha256": encoder.tokenizer.sha256,
                "vocabulary": encoder.vocabulary,
                "eos": {"id": encoder.eos, "token": encoder.tokenizer.token_of(encoder.eos)},
            },
            "chat_template": {"file": encoder.template.name, "sha256": encoder.template.sha256},
            "settings": self._settings(),
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("openrecipes", "tokenizers", "jinja2", "numpy", "pyarrow")
            },
        }

    def _skipped(self, refused: Refused) -> bool:
        if refused.reason in self.settings.skip or "all" in self.settings.skip:
            return True
        return refused.reason == "overlong" and self.settings.overlong == "skip"

    def _drawn(self, number: int, train: _Split) -> dict[str, Any]:
        mine = train.chosen[self.index["input"][train.chosen] == number]
        tokens = int(train.tally.kept[mine].sum())
        whole = train.tally.in_rows - train.tally.eos
        return {
            "drawn": len(mine),
            "tokens_in_rows": tokens,
            "share": round(tokens / whole, 6) if whole else None,
        }

    def _figures(self, split: _Split, staged: Path) -> dict[str, Any]:
        written = self._written(split, staged)
        return {
            "path": str(split.path),
            "rows": split.made,
            "rows_skipped_without_target": split.tally.skipped_rows,
            "row_tokens": self.settings.row_tokens,
            "tokens": report.token_counts(split.tally),
            "supervised_token_ratio": report.ratio(split.tally),
            "padding_share": round(
                split.tally.padding / (split.made * self.settings.row_tokens), 6
            ),
            "supervised_turn_ends": int(self.index["ends"][split.chosen].sum()),
            "rows_sha256": written.rows_sha256,
            "parquet_sha256": written.parquet_sha256,
            "parquet_bytes": written.parquet_bytes,
        }

    def _written(self, split: _Split, staged: Path) -> report.Written:
        if split.writer is None:
            return report.Written(str(split.path), split.made, "", "", 0)
        return report.Written(
            str(split.path),
            split.made,
            split.writer.rows_sha256,
            files.sha256_file(staged),
            staged.stat().st_size,
        )

    def _dataset(self, split: _Split, staged: Path) -> dict[str, Any]:
        encoder, settings = self.encoder, self.settings
        return report.dataset_block(
            settings.facts,
            self._written(split, staged),
            split.tally,
            tokenizer_sha256=encoder.tokenizer.sha256,
            template_sha256=encoder.template.sha256,
            tokenizer_name=encoder.tokenizer.file.absolute().parent.name,
            loss_mask=encoder.settings.mask_type,
            row_tokens=settings.row_tokens,
            seed=settings.seed,
            packing=settings.packing,
            builder=settings.builder,
        )

    def _settings(self) -> dict[str, Any]:
        settings, given = self.settings, self.encoder.settings
        mixture = settings.mixture
        return {
            "loss_mask_type": given.mask_type,
            "packing": settings.packing,
            "row_tokens": settings.row_tokens,
            "rows": settings.rows,
            "seed": settings.seed,
            "overlong": settings.overlong,
            "skip": sorted(settings.skip),
            "supervise_eos": self.joint.supervised,
            "padding_id": self.joint.padding,
            "allow_unlearned_ends": settings.allow_unlearned_ends,
            "weights": mixture and mixture.weights and list(mixture.weights),
            "input_rows": mixture and mixture.rows and list(mixture.rows),
            "eval_conversations": settings.eval_conversations,
            "eval_share": settings.eval_share,
            "template_options": dict(given.template_options),
            "template_date": given.template_date and str(given.template_date),
        }

    def _publish(
        self, splits: dict[str, _Split], staged: dict[str, Path], document: dict[str, Any]
    ) -> None:
        for name, split in splits.items():
            block = document["dataset"] if name == "train" else self._dataset(split, staged[name])
            files.write_json(report.build_path(split.path), block)
        for name, split in splits.items():
            shutil.move(staged[name], split.path)
        for path in self.settings.reports:
            if path.suffix in (".html", ".htm"):
                files.write_text(path, report_page(document))
            else:
                files.write_json(path, document)
