"""The two files of a run record as models, key by key: the manifest and a step."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

#: Version of the record's format.
RUN_VERSION = 1


def finite_or_none(value: Any) -> Any:
    """``value``, or None where it is NaN or infinite: JSON has neither."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


#: A real number; NaN and infinity become null, because JSON has neither.
Real = Annotated[float | None, BeforeValidator(finite_or_none)]
Seconds = Annotated[Annotated[float, Field(ge=0)] | None, BeforeValidator(finite_or_none)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class ModelPart(_Part):
    """The model that was trained; ``active_parameters`` is the N of MFU."""

    name: str | None = None
    source: str | None = None
    revision: str | None = None
    config_sha256: str | None = None
    parameters: Count | None = None
    active_parameters: Count | None = None


class RowsPart(_Part):
    """The rows that were trained on, with the hashes of their content and of their file."""

    path: str | None = None
    rows_sha256: str | None = None
    parquet_sha256: str | None = None
    row_tokens: Count | None = None
    dataset: dict[str, Any] | None = None


class Machine(_Part):
    """Where it ran: GPU type, how many in all and per node, and the hosts."""

    gpu: str | None = None
    count: Count | None = None
    per_node: Count | None = None
    hosts: list[str] | None = None


class Times(_Part):
    """UTC times; GPU-hours run from ``admitted`` (else ``started``) to ``finished``."""

    admitted: AwareDatetime | None = None
    started: AwareDatetime | None = None
    first_step: AwareDatetime | None = None
    finished: AwareDatetime | None = None


class EffectiveRecompute(_Part):
    """What recompute really did, per layer letter (M, E, *, -)."""

    granularity: str | None = None
    modules: list[str] | None = None
    layers: dict[str, Literal["none", "selective", "full"]] = Field(default_factory=dict)


class Effective(_Part):
    """What the flags came to: the recompute that happened, the flags without effect."""

    recompute: EffectiveRecompute | None = None
    ineffective_flags: list[Any] | None = None


class Checkpoint(_Part):
    """A checkpoint that was written: after which step, its size, how long it took."""

    step: int
    bytes: int | None = None
    seconds: Seconds = None


class Failure(_Part):
    """Why a run failed, as data."""

    kind: Literal["oom", "nan", "crash", "timeout", "lost_node"]
    phase: str | None = None
    rank: int | None = None
    node: str | int | None = None
    step: int | None = None
    message: str | None = None
    memory: dict[str, Any] | None = None


class Manifest(_Part):
    """``manifest.json``, key by key.

    ``flags`` are typed and resolved, defaults included; ``memory`` is the split in bytes (weights,
    gradients, master, optimizer, activations, and what of it is offloaded).
    """

    run_version: Literal[1] = 1
    id: str
    engine: str
    launcher: str
    state: Literal["running", "done", "failed", "stopped"] = "running"
    argv: list[str] = Field(default_factory=list)
    flags: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    model: ModelPart = Field(default_factory=ModelPart)
    rows: RowsPart = Field(default_factory=RowsPart)
    layout: dict[str, Any] | None = None
    world_size: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    stack: dict[str, Any] | None = None
    machine: Machine = Field(default_factory=Machine)
    times: Times = Field(default_factory=Times)
    effective: Effective = Field(default_factory=Effective)
    profiler: bool | None = None
    parity_probe: bool | None = None
    memory: dict[str, Any] | None = None
    checkpoints: list[Checkpoint] = Field(default_factory=list)
    failure: Failure | None = None


class ExpertLoad(_Part):
    """Tokens per expert in the worst layer: the fullest expert's and the mean."""

    max: Real = None
    mean: Real = None


class Step(_Part):
    """One line of ``steps.jsonl``.

    ``slots`` are all token positions of the step, ``tokens`` those that are not padding,
    ``supervised_tokens`` those that bear loss. ``step_time_s`` runs from before the step's rows are
    fetched to after the optimizer, on the slowest rank. Peaks are lists, one value per rank.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    attempt: Count
    step: Count
    loss: Real = None
    grad_norm: Real = None
    lr: Real = None
    slots: Count | None = None
    tokens: Count | None = None
    supervised_tokens: Count | None = None
    step_time_s: Seconds = None
    data_time_s: Seconds = None
    peak_memory_bytes: list[Count | None] | None = None
    peak_reserved_bytes: list[Count | None] | None = None
    peak_rss_bytes: list[Count | None] | None = None
    expert_load: ExpertLoad | None = None

    @model_validator(mode="after")
    def _counts_nest(self) -> Self:
        known = [n for n in (self.supervised_tokens, self.tokens, self.slots) if n is not None]
        if known != sorted(known):
            raise ValueError("supervised_tokens <= tokens <= slots must hold")
        return self
