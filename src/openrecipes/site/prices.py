"""What a training of a given size costs at a recipe's rate: the table and the calculator."""

from __future__ import annotations

from dataclasses import dataclass

from openrecipes.hardware.catalogue import CPU
from openrecipes.recipe.schema import Recipe
from openrecipes.site import words
from openrecipes.site.derive import implied_price

_SIZES = (
    (100_000_000, "100 million"),
    (1_000_000_000, "1 billion"),
    (10_000_000_000, "10 billion"),
)


@dataclass(frozen=True)
class CostRow:
    """Time and cost of one training size."""

    tokens: str
    time: str
    gpu_hours: str
    cost: str


@dataclass(frozen=True)
class Calculator:
    """What the form starts with, and the table for readers without scripts.

    ``rate`` is tokens/s per GPU, ``price`` USD per GPU-hour (empty where unknown).
    """

    rate: float
    gpus: int
    gpu: str
    machines: str
    price: str
    rows: tuple[CostRow, ...]
    note: str


def _machines(recipe: Recipe) -> str:
    """``8 H200``, ``2 processes``."""
    count, gpu = recipe.gpu.count, recipe.gpu.type
    return words.plural(count, "process") if gpu == CPU else f"{count} {gpu}"


def calculator(recipe: Recipe) -> Calculator | None:
    """The calculator of a recipe; None where it has no rate."""
    result = recipe.result
    rate = result.tokens_per_s_per_gpu if result else None
    if rate is None:
        return None
    price = implied_price(recipe)
    count = recipe.gpu.count
    rows = []
    for tokens, name in _SIZES:
        hours = tokens / rate / 3600
        cost = words.UNKNOWN if price is None else words.dollars(round(hours * price, 2))
        rows.append(
            CostRow(name, words.seconds(hours / count * 3600), words.significant(hours, 4), cost)
        )
    note = "At the measured rate, padding counted as tokens; start-up and storage are not in it."
    if price is None:
        why = result.usd_note if result else None
        note += f" The price is unknown{f': {why}' if why else ''}."
    elif result and result.price is None:
        unit = words.on_machine("per GPU-hour", recipe.gpu.type)
        note += f" The recipe's figures imply {words.dollars(price)} {unit}."
    return Calculator(
        rate,
        count,
        recipe.gpu.type,
        _machines(recipe),
        "" if price is None else f"{price:.4g}",
        tuple(rows),
        note,
    )
