"""Which conversations go into the rows, and in which order. Pure; the seed decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openrecipes.errors import InputError

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mixture:
    """How much each input gives; one of the two, one value per input.

    Attributes:
        weights: shares of the tokens; they need not add up to 1.
        rows: rows' worth of tokens.
    """

    weights: tuple[float, ...] | None = None
    rows: tuple[int, ...] | None = None


def permutation(conversations: int, seed: int) -> Numbers:
    """The seeded global order: NumPy's ``Generator(PCG64(seed)).permutation``."""
    return np.random.Generator(np.random.PCG64(seed)).permutation(conversations)


def hold_out(
    usable: npt.NDArray[np.bool_], count: int, seed: int, option: str = "--eval-conversations"
) -> Numbers:
    """``count`` usable conversations for evaluation, in their own seeded order.

    Args:
        usable: which conversations can be used.
        count: how many to hold out.
        seed: which ones.
        option: the option that asks for them.

    Raises:
        InputError: none would be left to train on.
    """
    numbers = np.flatnonzero(usable)
    if count >= len(numbers):
        raise InputError(
            "hold out fewer conversations",
            field=option,
            found=count,
            expected=f"fewer than the {len(numbers)} usable conversations",
        )
    shuffled = np.random.Generator(np.random.PCG64([seed, 1])).permutation(numbers)
    return shuffled[:count]


def mixed(
    order: Numbers,
    lengths: npt.NDArray[np.int64],
    inputs: npt.NDArray[np.int64],
    mixture: Mixture,
    row_tokens: int,
) -> Numbers:
    """The part of ``order`` that a mixture asks for.

    Each input gives its first conversations in the seeded order until it has given its tokens
    (each conversation counts with one EOS); the last one is taken whole. With weights, the total
    is the largest for which no input runs out.

    Args:
        order: usable conversations in stream order.
        lengths: tokens of each conversation, by number.
        inputs: input of each conversation, by number.
        mixture: what each input gives.
        row_tokens: tokens in a row.

    Raises:
        InputError: values that do not match the inputs, or an input that holds too little.
    """
    sizes = lengths[order] + 1
    sources = inputs[order]
    count = len(mixture.weights or mixture.rows or ())
    held = [int(sizes[sources == number].sum()) for number in range(count)]
    wanted = _wanted(mixture, held, row_tokens)
    taken = np.zeros(len(order), bool)
    for number, tokens in enumerate(wanted):
        places = np.flatnonzero(sources == number)
        before = np.cumsum(sizes[places]) - sizes[places]
        taken[places[before < tokens]] = True
    return order[taken]


def _wanted(mixture: Mixture, held: list[int], row_tokens: int) -> list[float]:
    if mixture.rows is not None:
        for number, (rows, tokens) in enumerate(zip(mixture.rows, held, strict=True)):
            if rows * row_tokens > tokens:
                raise InputError(
                    "ask for fewer rows of this input, or give it more conversations",
                    field=f"--input-rows (input {number})",
                    found=f"{tokens} tokens",
                    expected=f"{rows * row_tokens} tokens for {rows} rows",
                )
        return [rows * row_tokens for rows in mixture.rows]
    weights = mixture.weights or ()
    total = min(tokens / weight for weight, tokens in zip(weights, held, strict=True) if weight)
    return [total * weight for weight in weights]


def check_mixture(mixture: Mixture, inputs: int) -> None:
    """Raises InputError when a mixture does not have one sensible value per input."""
    for name, values in (("--weights", mixture.weights), ("--input-rows", mixture.rows)):
        if values is None:
            continue
        if len(values) != inputs:
            raise InputError(
                "give one value per --input, with commas between",
                field=name,
                found=f"{len(values)} values",
                expected=f"{inputs} values",
            )
        if not all(np.isfinite(v) and v >= 0 for v in values) or not any(values):
            raise InputError(
                "give values of 0 or more, not all 0",
                field=name,
                found=_listed(values),
                expected="shares or rows",
            )
    if mixture.weights is not None and mixture.rows is not None:
        raise InputError("give one of them", field="--weights, --input-rows", found="both")


def _listed(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)
