"""A training job, checked before any process starts; torch only reads a checkpoint's headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.settings import Settings
from openrecipes.errors import InputError
from openrecipes.files import read_json
from openrecipes.flags.parse import ineffective, resolve
from openrecipes.flags.table import Value, table
from openrecipes.layouts.layout import Layout
from openrecipes.layouts.rules import check
from openrecipes.rows.parquet import Row, RowsFile

#: Rows whose tokens are looked at before the start; all others are when they are read.
CHECKED_ROWS = 4096


@dataclass(frozen=True)
class Job:
    """What is to be trained, with everything that was checked.

    Args:
        given: the flags as given, typed.
        flags: all flags resolved for the native engine, defaults included.
        settings: the same, as one value.
        config: the model.
        config_file: the config.json that it was read from.
        layout: how the work is split.
        world_size: ranks.
        rows: the rows that are trained on.
    """

    given: Mapping[str, Value]
    flags: dict[str, Value]
    settings: Settings
    config: NemotronHConfig
    config_file: Path
    layout: Layout
    world_size: int
    rows: RowsFile

    @property
    def ineffective(self) -> dict[str, str]:
        """Given flags without effect, with the reason."""
        return ineffective(self.given, "native")

    @property
    def notes(self) -> list[str]:
        """What is allowed and may not be meant, a line each."""
        most = self.settings.max_tokens
        limit = None if most is None else most * self.layout.cp
        if limit is None or self.rows.row_tokens <= limit:
            return []
        ranks = f" x context parallel size {self.layout.cp}" if self.layout.cp > 1 else ""
        return [
            f"--max-tokens-per-gpu {most}{ranks} is less than a row of {self.rows.row_tokens} "
            "tokens; each row is a micro-batch of its own, as in miles"
        ]


def prepare(given: Mapping[str, Value], world_size: int) -> Job:
    """Check flags, model, rows and layout together.

    Args:
        given: flags by name, without those that only a launcher reads.
        world_size: ranks of the job.

    Raises:
        InputError: the first fault, with the flag, file or rule that it is in.
    """
    flags = resolve(given, "native")
    path = flags["prompt-data"]
    if path is None:
        raise InputError("add --prompt-data FILE", field="--prompt-data", found="nothing")
    rows = RowsFile(str(path))
    settings = Settings.from_flags(flags, len(rows))
    config_file = _config_file(settings)
    config = read_config(config_file)
    layout = Layout.from_flags(
        flags, world_size, row_tokens=rows.row_tokens, layers=config.num_hidden_layers
    )
    _check_layout(layout, settings, config, rows, flags, world_size)
    _check_rows(rows, settings, config.vocab_size)
    if settings.valid_data and not len(RowsFile(settings.valid_data)):
        raise InputError("give rows", file=settings.valid_data, field="rows", found=0)
    if settings.hf_checkpoint is not None:
        _check_checkpoint(settings.hf_checkpoint)
    target = settings.export_hf
    if target and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            "choose another directory", file=target, field="--export-hf", found="exists already"
        )
    if target and settings.model_config is not None:
        _check_export(settings.model_config)
    return Job(given, flags, settings, config, config_file, layout, world_size, rows)


def read_config(path: Path) -> NemotronHConfig:
    """The model of a config file; a fault names the file."""
    document = read_json(path)
    try:
        return NemotronHConfig.from_hf(document)
    except InputError as error:
        raise InputError(
            error.action, file=path, field=error.field, found=error.found, expected=error.expected
        ) from None


def check_row(row: Row, vocabulary: int, file: Path, number: int) -> None:
    """Refuse a row that cannot be trained on.

    Raises:
        InputError: no or one token, ids outside the vocabulary, a mask or document lengths that do
            not fit.
    """

    def fault(field: str, found: Any, expected: str) -> InputError:
        return InputError(
            "check the rows with openrecipes rows verify",
            file=file,
            field=f"row {number}: {field}",
            found=found,
            expected=expected,
        )

    tokens = len(row.input_ids)
    if tokens < 2:
        raise fault("input_ids", f"{tokens} tokens", "at least 2")
    low, high = int(row.input_ids.min()), int(row.input_ids.max())
    if low < 0 or high >= vocabulary:
        found = low if low < 0 else high
        raise fault("input_ids", f"token {found}", f"0 to {vocabulary - 1}, the model's vocabulary")
    if len(row.loss_mask) != tokens:
        raise fault("loss_mask", f"{len(row.loss_mask)} entries", f"{tokens}, one per token")
    if row.loss_mask.max() > 1:
        raise fault("loss_mask", int(row.loss_mask.max()), "0 or 1")
    documents = row.document_lengths
    if (documents < 0).any() or int(documents.sum(dtype=np.int64)) > tokens:
        raise fault("document_lengths", int(documents.sum()), f"at most the row's {tokens} tokens")
    if row.loss_mask[int(documents.sum()) :].any():
        raise fault("loss_mask", "supervised padding", "0 after the last document")


def _config_file(settings: Settings) -> Path:
    if settings.model_config is not None:
        return settings.model_config
    folder = settings.hf_checkpoint
    assert folder is not None  # Settings has checked that one of the two is given
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such directory"
        raise InputError(
            "give a Hugging Face checkpoint", file=folder, field="--hf-checkpoint", found=found
        )
    return folder / "config.json"


def _check_checkpoint(folder: Path) -> None:
    from openrecipes.engine.weights.matching import check_checkpoint  # imports torch

    check_checkpoint(folder)


def _check_export(config_file: Path) -> None:
    from openrecipes.engine.weights.exporting import export_dtype  # imports torch

    export_dtype(read_json(config_file))


def _check_layout(
    layout: Layout,
    settings: Settings,
    config: NemotronHConfig,
    rows: RowsFile,
    flags: Mapping[str, Value],
    world_size: int,
) -> None:
    broken = check(
        layout,
        engine="native",
        world_size=world_size,
        model=config,
        global_batch=settings.global_batch,
        row_tokens=rows.row_tokens,
        flags=flags,
    )
    if broken:
        first = broken[0]
        nearest = "" if first.nearest is None else f"; nearest valid: {first.nearest}"
        raise InputError(
            f"change {_flag_of(first.field)}: the layout breaks the rule {first.rule}",
            field=first.field,
            found=first.found,
            expected=f"{first.expected}{nearest}",
        )
    if layout.ep > 1 and "E" not in config.pattern:
        raise InputError(
            "leave it out for a model without experts",
            field="--expert-model-parallel-size",
            found=layout.ep,
            expected="1",
        )
    _refuse_known_faults(layout, config)
    # Refuses a batch that does not give every rank the same number of micro-batches.
    settings.cutting(layout).cut([rows.row_tokens] * settings.global_batch)


def _refuse_known_faults(layout: Layout, config: NemotronHConfig) -> None:
    """Refuse layouts whose gradients are known to be wrong in this engine, until they are right."""
    if layout.tp > 1 and not layout.sequence_parallel and config.num_key_value_heads == 1:
        raise InputError(
            "add --sequence-parallel: without it the gradients of a shared head are wrong",
            field="--tensor-model-parallel-size",
            found=f"{layout.tp} with one key-value head and no sequence parallelism",
            expected="1, or sequence parallelism",
        )
    modules = tuple(layout.recompute.modules or ()) if layout.recompute else ()
    experts_kept = "E" in config.pattern and "moe" not in modules
    if layout.tp > 1 and "layernorm" in modules and experts_kept and not config.moe_latent_size:
        raise InputError(
            "add moe to the modules, or leave layernorm out: alone its gradients are wrong here",
            field="--recompute-modules",
            found=f"layernorm with tensor-model-parallel-size {layout.tp}",
            expected="layernorm with moe, or no layernorm",
        )


def _flag_of(field: str) -> str:
    """The flag that sets a recipe's field, where there is one."""
    return next((f"--{name}" for name, flag in table().items() if flag.field == field), field)


def _check_rows(rows: RowsFile, settings: Settings, vocabulary: int) -> None:
    used = min(len(rows), settings.steps * settings.global_batch, CHECKED_ROWS)
    checked = rows.read(0, used)
    _check_sequence(checked, vocabulary, rows.path)
    size = settings.global_batch
    for start in range(0, used - size + 1, size):
        if not any(row.loss_mask[1:].any() for row in checked[start : start + size]):
            raise InputError(
                "leave rows without a supervised token out",
                file=rows.path,
                field=f"rows {start} to {start + size - 1}: loss_mask",
                found="a global batch without a supervised token",
                expected="at least one",
            )


def _check_sequence(rows: Sequence[Row], vocabulary: int, file: Path) -> None:
    for number, row in enumerate(rows):
        check_row(row, vocabulary, file, number)
