"""What a training run was asked to do: resolved flags as one typed, checked value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from openrecipes.engine.microbatches import Cutting, RowOrder
from openrecipes.engine.schedule import DecayStyle, Schedule
from openrecipes.errors import InputError
from openrecipes.flags.table import Value
from openrecipes.layouts.layout import Layout

#: Numbers that machines count with, and a year: a collective that waits longer has failed.
_LARGEST, _LONGEST_MINUTES = 2**63 - 1, 366 * 24 * 60


@dataclass(frozen=True)
class Settings:
    """One run's settings; made by :meth:`from_flags`, which checks them.

    Args:
        steps: optimizer steps.
        order: which rows each step takes.
        schedule: the learning rate.
        isolate_documents: whether documents inside a row are kept apart.
        bf16: compute in bf16 with fp32 masters; else in fp32.
        micro_rows: rows per micro-batch, where ``max_tokens`` is None.
        max_tokens: most tokens of a micro-batch per context parallel rank.
        clip_grad: highest gradient norm; 0 is no clipping.
        probe_steps: steps whose fingerprints are written.
        timeout_minutes: time limit of a collective.
    """

    steps: int
    global_batch: int
    order: RowOrder
    schedule: Schedule
    seed: int
    bf16: bool
    isolate_documents: bool
    micro_rows: int
    max_tokens: int | None
    clip_grad: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    hf_checkpoint: Path | None
    model_config: Path | None
    rows: Path
    valid_data: Path | None
    eval_interval: int | None
    export_hf: Path | None
    probe_steps: frozenset[int]
    timeout_minutes: int

    @classmethod
    def from_flags(cls, flags: Mapping[str, Value], rows: int) -> Settings:
        """Settings from flags resolved for the native engine.

        Args:
            flags: the result of ``flags.parse.resolve(given, "native")``.
            rows: rows of the file that is trained on.

        Raises:
            InputError: a value out of range, a missing flag, or flags that contradict each other.
        """
        read = _Reader(flags)
        batch = read.whole("global-batch-size")
        steps = count_steps(flags, rows, batch)
        epochs = read.maybe_whole("num-epoch")
        _enough_rows(flags, rows, batch, steps, epochs)
        dynamic = bool(flags["use-dynamic-batch-size"])
        max_tokens = read.whole("max-tokens-per-gpu") if dynamic else None
        read.one_of("hf-checkpoint", "model-config")
        valid = read.path("valid-data")
        interval = read.maybe_whole("eval-interval")
        if interval and not valid:
            raise _fault("valid-data", None, "rows for validation", "add --valid-data FILE")
        return cls(
            steps=steps,
            global_batch=batch,
            order=RowOrder(
                rows,
                batch,
                repeat=epochs is not None,
                seed=read.maybe_whole("row-order-seed", least=0),
            ),
            schedule=_schedule(read, steps, batch),
            seed=read.whole("seed", least=0),
            bf16=bool(flags["bf16"]),
            isolate_documents=bool(flags["isolate-documents"]),
            micro_rows=read.whole("micro-batch-size"),
            max_tokens=max_tokens,
            clip_grad=read.real("clip-grad"),
            weight_decay=read.real("weight-decay"),
            betas=(read.real("adam-beta1", below=1), read.real("adam-beta2", below=1)),
            eps=read.real("adam-eps"),
            hf_checkpoint=read.path("hf-checkpoint"),
            model_config=read.path("model-config"),
            rows=cast(Path, read.path("prompt-data", required=True)),
            valid_data=valid,
            eval_interval=interval,
            export_hf=read.path("export-hf"),
            probe_steps=_probe_steps(flags, steps),
            timeout_minutes=read.whole("distributed-timeout-minutes", most=_LONGEST_MINUTES),
        )

    def cutting(self, layout: Layout) -> Cutting:
        """How a global batch is cut: among the data parallel ranks, within the tokens of cp."""
        limit = None if self.max_tokens is None else self.max_tokens * layout.cp
        return Cutting(layout.dp, self.micro_rows, limit)


def count_steps(flags: Mapping[str, Value], rows: int, batch: int) -> int:
    """Optimizer steps: ``steps``, else ``train-iters``, else num-rollout x rollout-batch-size /
    global-batch-size, else num-epoch x (rows // global-batch-size).

    Raises:
        InputError: nothing gives the number, or it is not a whole number above 0.
    """
    read = _Reader(flags)
    for name in ("steps", "train-iters"):
        if flags.get(name) is not None:
            return read.whole(name)
    if flags.get("num-rollout") is not None:
        taken = read.whole("num-rollout") * read.whole("rollout-batch-size")
        if taken % batch:
            raise _fault(
                "rollout-batch-size",
                f"{taken} rows in all roll-outs",
                f"a multiple of the global batch of {batch}",
            )
        return taken // batch
    if flags.get("num-epoch") is not None:
        steps = read.whole("num-epoch") * (rows // batch)
        if not steps:
            raise _fault("global-batch-size", batch, f"at most the file's {rows} rows")
        return steps
    raise _fault("train-iters", None, "a number of steps", "add --train-iters N or --num-epoch N")


def _enough_rows(
    flags: Mapping[str, Value], rows: int, batch: int, steps: int, epochs: int | None
) -> None:
    there = rows if epochs is None else epochs * (rows // batch) * batch
    if steps * batch > there:
        times = "" if epochs is None else f" in {epochs} epochs"
        raise InputError(
            "give more rows, fewer steps, or --num-epoch",
            file=str(flags["prompt-data"]),
            field="rows",
            found=f"{there}{times}",
            expected=f">= {steps * batch} ({steps} steps of {batch} rows)",
        )


def _schedule(read: _Reader, steps: int, batch: int) -> Schedule:
    lr = read.real("lr")
    min_lr = read.real("min-lr")
    if min_lr > lr:
        raise _fault("min-lr", min_lr, f"at most the learning rate of {lr}")
    decay = (read.maybe_whole("lr-decay-iters") or steps) * batch
    fraction = read.maybe_real("lr-warmup-fraction", below=1)
    iterations = read.whole("lr-warmup-iters", least=0)
    if fraction is not None and iterations:
        raise _fault(
            "lr-warmup-iters", iterations, "not together with --lr-warmup-fraction", "give one"
        )
    warmup = iterations * batch if fraction is None else fraction * decay
    if warmup >= decay:
        raise _fault("lr-warmup-iters", iterations, f"fewer than the {decay // batch} decay steps")
    init = read.real("lr-warmup-init")
    if init > lr:
        raise _fault("lr-warmup-init", init, f"at most the learning rate of {lr}")
    style = cast(DecayStyle, read.flags["lr-decay-style"])
    return Schedule(lr, min_lr, style, warmup, decay, batch, init)


def _probe_steps(flags: Mapping[str, Value], steps: int) -> frozenset[int]:
    text = flags["parity-probe-steps"]
    if text is None:
        return frozenset()
    try:
        chosen = frozenset(int(part) if part.isascii() else -1 for part in str(text).split(","))
    except ValueError:
        chosen = frozenset({-1})
    if min(chosen) < 0 or max(chosen) >= steps:
        raise _fault("parity-probe-steps", text, f"step numbers 0 to {steps - 1}, such as 0,10")
    return chosen


class _Reader:
    """Ranges of values; a flag's type was checked when it was parsed."""

    def __init__(self, flags: Mapping[str, Value]) -> None:
        self.flags = flags

    def whole(self, name: str, least: int = 1, most: int = _LARGEST) -> int:
        """A whole number of ``least`` to ``most``."""
        value = self.flags.get(name)
        if not isinstance(value, int) or value < least:
            raise _fault(name, value, f"a whole number >= {least}")
        if value > most:
            raise _fault(name, value, f"a whole number <= {most}")
        return value

    def maybe_whole(self, name: str, least: int = 1) -> int | None:
        """The same, or None where the flag is absent."""
        return None if self.flags.get(name) is None else self.whole(name, least)

    def real(self, name: str, below: float | None = None) -> float:
        """A number of at least 0 and below ``below``."""
        value = self.flags.get(name)
        if not isinstance(value, int | float) or value < 0 or (below and value >= below):
            raise _fault(name, value, "a number >= 0" + (f" and < {below}" if below else ""))
        if value > _LARGEST:  # the most that a run record takes
            raise _fault(name, value, f"a number <= {_LARGEST}")
        return float(value)

    def maybe_real(self, name: str, below: float | None = None) -> float | None:
        """The same, or None where the flag is absent."""
        return None if self.flags.get(name) is None else self.real(name, below)

    def path(self, name: str, *, required: bool = False) -> Path | None:
        """A path; None where absent."""
        value = self.flags.get(name)
        if value is None and required:
            raise _fault(name, None, "a path")
        return None if value is None else Path(str(value))

    def one_of(self, *names: str) -> None:
        """Exactly one of these flags must be given."""
        given = [f"--{name}" for name in names if self.flags.get(name) is not None]
        if len(given) != 1:
            wanted = " or ".join(f"--{name}" for name in names)
            raise InputError(
                f"give either {wanted}",
                field=f"--{names[0]}",
                found=" and ".join(given) or "nothing",
                expected=wanted,
            )


def _fault(name: str, found: object, expected: str, action: str | None = None) -> InputError:
    told = "nothing" if found is None else found
    return InputError(
        action or ("add the flag" if found is None else "correct the value"),
        field=f"--{name}",
        found=told,
        expected=expected,
    )
