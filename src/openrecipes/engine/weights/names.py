"""Which checkpoint tensor holds which parameter.

A Hugging Face checkpoint fuses a Mamba layer's five projections into ``in_proj`` and its three
convolutions into ``conv1d``, and stores each expert by itself; the model has the projections apart
and the experts stacked. Everything else has one name in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from openrecipes.architectures.nemotron_h import NemotronHConfig


@dataclass(frozen=True)
class Rows:
    """A parameter that is rows ``start:stop`` of a checkpoint tensor (``stop`` None: all of it).

    Attributes:
        channel_first: the checkpoint has a dimension of size 1 after the first (``conv1d``).
    """

    tensor: str
    start: int = 0
    stop: int | None = None
    channel_first: bool = False


@dataclass(frozen=True)
class Stack:
    """A parameter whose entry i along its first dimension is the i-th of these tensors."""

    tensors: tuple[str, ...]


def source(config: NemotronHConfig, name: str) -> Rows | Stack:
    """Where a checkpoint keeps the parameter of this (whole-model) name."""
    head, _, leaf = name.rpartition(".")
    owner, _, part = head.rpartition(".")
    inner, states = config.mamba_inner_size, config.n_groups * config.ssm_state_size
    if part in ("z_proj", "x_proj", "B_proj", "C_proj", "dt_proj"):
        sizes = {
            "z_proj": inner,
            "x_proj": inner,
            "B_proj": states,
            "C_proj": states,
            "dt_proj": config.mamba_num_heads,
        }
        return Rows(f"{owner}.in_proj.{leaf}", *_span(sizes, part))
    if part in ("x_conv", "B_conv", "C_conv"):
        sizes = {"x_conv": inner, "B_conv": states, "C_conv": states}
        return Rows(f"{owner}.conv1d.{leaf}", *_span(sizes, part), channel_first=leaf == "weight")
    if part == "experts":
        experts = range(config.n_routed_experts)
        return Stack(tuple(f"{head}.{i}.{leaf}.weight" for i in experts))
    return Rows(name)


def _span(sizes: dict[str, int], part: str) -> tuple[int, int]:
    start = 0
    for name, size in sizes.items():
        if name == part:
            return start, start + size
        start += size
    raise KeyError(part)


@dataclass(frozen=True)
class Holding:
    """What a checkpoint tensor is made of: parameters laid end to end, or one entry of a stack."""

    parameters: tuple[str, ...]
    entry: int | None = None
    channel_first: bool = False


def holdings(config: NemotronHConfig, names: Iterable[str]) -> dict[str, Holding]:
    """For each checkpoint tensor, what it is made of; the inverse of `source` over these names."""
    parts: dict[str, list[tuple[int, str, bool]]] = {}
    held: dict[str, Holding] = {}
    for name in names:
        kept = source(config, name)
        if isinstance(kept, Stack):
            held |= {tensor: Holding((name,), i) for i, tensor in enumerate(kept.tensors)}
        else:
            parts.setdefault(kept.tensor, []).append((kept.start, name, kept.channel_first))
    for tensor, pieces in parts.items():
        ordered = tuple(name for _, name, _ in sorted(pieces))
        held[tensor] = Holding(ordered, channel_first=pieces[0][2])
    return held
