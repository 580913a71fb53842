"""Pass two of a build: select, order, pack and write what the cache holds."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from openrecipes import files
from openrecipes.errors import InputError
from openrecipes.rows import packing, report, selection
from openrecipes.rows.cache import TokenCache
from openrecipes.rows.encoder import Encoder
from openrecipes.rows.page import report_page
from openrecipes.rows.parquet import Row, RowsWriter
from openrecipes.rows.places import published
from openrecipes.rows.refusals import Refused
from openrecipes.rows.settings import BUILD_VERSION, BuildSettings


class Progress(Protocol):
    """Is told how far a build is."""

    def __call__(self, phase: str, done: int, total: int, conversations: int) -> None:
        """``done`` of ``total`` (bytes read, or documents packed), and conversations so far."""


def silent(phase: str, done: int, total: int, conversations: int) -> None:
    """Tells nobody."""


@dataclass
class Split:
    """One set of rows: what goes in, and what came of it."""

    chosen: npt.NDArray[np.int64]
    path: Path
    rows: int | None
    tally: packing.Tally
    writer: RowsWriter | None = None
    made: int = 0


class Assembly:
    """Pass two: select, order, pack, write."""

    def __init__(
        self,
        settings: BuildSettings,
        encoder: Encoder,
        cache: TokenCache,
        sources: list[dict[str, Any]],
        left_out: list[str],
        progress: Progress,
    ) -> None:
        self.settings = settings
        self.encoder = encoder
        self.cache = cache
        self.sources = sources
        self.left_out = left_out
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
                    "give more conversations or shorter rows"
                    if name == "train"
                    else "hold out more conversations, or make shorter rows",
                    file=split.path,
                    field=f"{name} rows",
                    found=f"{split.tally.stream} tokens, no row with a target",
                    expected=f"at least one row of {settings.row_tokens} tokens",
                )
        document: dict[str, Any] = report.encodable(self._report(splits, staged, refused))
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

    def _splits(self) -> dict[str, Split]:
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
            count, option = settings.eval_conversations, "--eval-conversations"
            if count is None:
                option = "--eval-share"
                count = max(1, round(float(settings.eval_share or 0) * int(usable.sum())))
            held = selection.hold_out(usable, count, settings.seed, option)
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

    def _split(self, chosen: npt.NDArray[np.int64], path: Path, rows: int | None) -> Split:
        return Split(chosen, path, rows, packing.Tally(np.zeros(len(self.lengths), np.int64)))

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

    def _write(self, split: Split, staged: Path) -> None:
        if self.settings.dry_run:
            split.made = sum(1 for _ in self._rows(split))
            return
        with RowsWriter(staged, self.settings.row_tokens) as writer:
            for row in self._rows(split):
                writer.write(row)
        split.writer, split.made = writer, writer.rows

    def _rows(self, split: Split) -> Iterator[Row]:
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
        self, splits: dict[str, Split], staged: dict[str, Path], refused: list[Refused]
    ) -> dict[str, Any]:
        settings, encoder = self.settings, self.encoder
        train = splits["train"]
        counts = report.conversation_counts(self.lengths, train.chosen, train.tally.kept)
        evaluated = splits.get("evaluation")
        usable = int((self.index["reason"] == 0).sum())
        held_out = 0 if evaluated is None else len(evaluated.chosen)
        # Usable conversations that the mixture did not draw are left over, too.
        counts["left_over"] += usable - held_out - len(train.chosen)
        stopped = [r for r in refused if not settings.skips(r)]
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
            "left_out_files": self.left_out,
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

    def _drawn(self, number: int, train: Split) -> dict[str, Any]:
        mine = train.chosen[self.index["input"][train.chosen] == number]
        tokens = int(train.tally.kept[mine].sum())
        whole = train.tally.in_rows - train.tally.eos
        return {
            "drawn": len(mine),
            "tokens_in_rows": tokens,
            "share": round(tokens / whole, 6) if whole else None,
        }

    def _figures(self, split: Split, staged: Path) -> dict[str, Any]:
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

    def _written(self, split: Split, staged: Path) -> report.Written:
        if split.writer is None:
            return report.Written(str(split.path), split.made, "", "", 0)
        return report.Written(
            str(split.path),
            split.made,
            split.writer.rows_sha256,
            files.sha256_file(staged),
            staged.stat().st_size,
        )

    def _dataset(self, split: Split, staged: Path) -> dict[str, Any]:
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
        self, splits: dict[str, Split], staged: dict[str, Path], document: dict[str, Any]
    ) -> None:
        blocks = {
            name: report.encodable(self._dataset(split, staged[name]))
            for name, split in splits.items()
        }
        with published(self.cache.announce) as files_:
            for path in self.settings.reports:
                page = path.suffix == ".html"
                files_.text(path, report_page(document) if page else report.as_text(document))
            for name, split in splits.items():
                files_.text(report.build_path(split.path), report.as_text(blocks[name]))
                files_.file(split.path, staged[name])
