"""The catalogue of GPUs and cloud instances, with dated prices; data in ``catalogue.toml``.

Users add their own in a TOML file of the same form, named by ``OPENRECIPES_HARDWARE`` (several
files are separated by the system's path separator); an entry there replaces one of the same name.
A figure that is not known is None.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date as Date
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openrecipes.errors import InputError
from openrecipes.files import read_text

#: Environment variable with the users' own catalogue files.
VARIABLE = "OPENRECIPES_HARDWARE"
#: GPU type of processes that have no GPU.
CPU = "CPU"

_FILE_LIMIT = 2**20  # bytes
#: Precision of a recipe to the peak that bounds it.
_PEAK_OF = {"mxfp8": "fp8", "nvfp4": "fp4"}

T = TypeVar("T", bound=BaseModel)
#: Within what machines have and cost, so that figures made from two of them stay finite.
Positive = Annotated[float, Field(ge=1e-9, le=1e24, allow_inf_nan=False)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Gpu(_Entry):
    """One kind of GPU.

    Attributes:
        name: as a recipe's ``gpu.type`` says it.
        aliases: device names as the driver reports them.
        label_gb: memory on the label, in the vendor's GB.
        smi_mib: total memory as nvidia-smi shows it, in MiB.
        usable_gib: total memory as PyTorch reports it, in GiB: what a run can use.
        peaks: dense FLOP/s per precision (bf16, fp16, fp8, fp4, tf32, fp32).
        memory_bandwidth: bytes/s.
        nvlink: bytes/s of one GPU to its peers, both directions together.
        pcie: bytes/s to the host, both directions together.
        sources: for each figure where it comes from.
    """

    name: str
    aliases: tuple[str, ...] = ()
    label_gb: Positive | None = None
    smi_mib: Positive | None = None
    usable_gib: Positive | None = None
    peaks: dict[str, Positive] = Field(default_factory=dict)
    memory_bandwidth: Positive | None = None
    nvlink: Positive | None = None
    pcie: Positive | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    @property
    def usable_bytes(self) -> int | None:
        """Total memory that a run can use, in bytes."""
        return None if self.usable_gib is None else int(self.usable_gib * 2**30)

    def peak(self, precision: str) -> float | None:
        """Dense peak in FLOP/s for a recipe's precision; None where it is not known."""
        return self.peaks.get(_PEAK_OF.get(precision, precision))


class InstancePrice(_Entry):
    """A price of an instance, valid from a day on."""

    usd_per_hour: Positive
    from_: Date = Field(alias="from")
    source: str


class Instance(_Entry):
    """A cloud instance: its GPUs and its prices over time."""

    name: str
    gpu: str
    gpus: Annotated[int, Field(gt=0)]
    network: str | None = None
    prices: tuple[InstancePrice, ...] = ()


class Price(_Entry):
    """What one GPU costs per hour on a day."""

    usd_per_gpu_hour: float
    source: str
    date: Date


class Catalogue(_Entry):
    """All GPUs and instances, by name."""

    gpus: dict[str, Gpu]
    instances: dict[str, Instance]

    def gpu(self, name: str) -> Gpu | None:
        """The GPU of that name, alias or driver's device name; case does not matter."""
        wanted = _key(name)
        for gpu in self.gpus.values():
            if wanted in {_key(gpu.name), *map(_key, gpu.aliases)}:
                return gpu
        return None

    def instance(self, name: str) -> Instance | None:
        """The instance of that name, with or without the cloud's name before it."""
        wanted = _key(name)
        for instance in self.instances.values():
            if wanted in {_key(instance.name), _key(instance.name.partition(" ")[2])}:
                return instance
        return None

    def price(self, instance: str, date: Date) -> Price | None:
        """Price of one GPU of ``instance`` on ``date``; None where no price of that day is known.

        A later price never changes an earlier day's.
        """
        known = self.instance(instance)
        valid = [p for p in known.prices if p.from_ <= date] if known else []
        if known is None or not valid:
            return None
        newest = max(valid, key=lambda p: p.from_)
        return Price(
            usd_per_gpu_hour=newest.usd_per_hour / known.gpus,
            source=f"{known.name} on demand since {newest.from_}, {newest.source}",
            date=date,
        )


def gpu(name: str) -> Gpu | None:
    """The GPU of that name, from the catalogue and the user's own files."""
    return catalogue().gpu(name)


def price(instance: str, date: Date) -> Price | None:
    """Price of one GPU of ``instance`` on ``date``, in USD per hour."""
    return catalogue().price(instance, date)


def catalogue() -> Catalogue:
    """The packaged catalogue with the user's own files over it.

    Raises:
        InputError: one of the user's files is missing or wrong.
    """
    named = os.environ.get(VARIABLE, "")
    return _load(tuple(part for part in named.split(os.pathsep) if part))


@lru_cache(maxsize=8)
def _load(own: tuple[str, ...]) -> Catalogue:
    packaged = resources.files(__package__).joinpath("catalogue.toml")
    merged: dict[str, dict[str, Any]] = {"gpus": {}, "instances": {}}
    texts: Sequence[tuple[str, str]] = [
        ("catalogue.toml", packaged.read_text(encoding="utf-8")),
        *((path, read_text(Path(path), _FILE_LIMIT)) for path in own),
    ]
    for path, text in texts:
        for kind, entries in _parse(text, path).items():
            merged[kind].update(entries)
    return Catalogue.model_validate(merged)


def _parse(text: str, path: str) -> dict[str, dict[str, Gpu] | dict[str, Instance]]:
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError("mend the TOML", file=path, found=str(error), expected="TOML") from None
    unknown = sorted(set(data) - {"gpus", "instances"})
    if unknown:
        raise InputError(
            "rename the table", file=path, field=unknown[0], expected="[gpus] or [instances]"
        )
    return {
        "gpus": _entries(data.get("gpus", {}), "gpus", Gpu, path),
        "instances": _entries(data.get("instances", {}), "instances", Instance, path),
    }


def _entries(table: Any, kind: str, model: type[T], path: str) -> dict[str, T]:
    if not isinstance(table, Mapping):
        raise InputError("make it a table", file=path, field=kind, found=type(table).__name__)
    entries = {}
    for name, values in table.items():
        try:
            entries[name] = model.model_validate({**values, "name": name})
        except TypeError:
            raise InputError(
                "make it a table", file=path, field=f"{kind}.{name}", found=values
            ) from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise InputError(
                "mend the entry",
                file=path,
                field=".".join([kind, name, *map(str, first["loc"])]),
                found=first["input"],
                expected=first["msg"].removeprefix("Input should be "),
            ) from None
    return entries


def _key(name: str) -> str:
    return " ".join(name.split()).casefold()
