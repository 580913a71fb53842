"""How far a layout's training is from that of one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tests.engine.parallel.trial import Outcome

LOSS, NORM, GRADIENT = 1e-6, 1e-5, 1e-5

#: A gradient smaller than this share of the whole gradient is compared with the share: sums of
#: terms that cancel (a key's bias cancels altogether) keep the rounding of their terms.
SHARE = 1e-2


@dataclass(frozen=True)
class Distance:
    """Greatest relative differences, and each parameter's first gradient."""

    loss: float
    norm: float
    gradients: dict[str, float]

    @property
    def worst(self) -> tuple[str, float]:
        """The parameter whose first gradient is farthest away."""
        return max(self.gradients.items(), key=lambda item: item[1])

    @property
    def within(self) -> bool:
        """Whether only the order of additions differs."""
        return self.loss <= LOSS and self.norm <= NORM and self.worst[1] <= GRADIENT


def distance(found: Outcome, expected: Outcome, *, counted: bool = True) -> Distance:
    """From one training to another of the same model on the same rows.

    Args:
        counted: also that both count the same supervised tokens.
    """
    assert found.gradients.keys() == expected.gradients.keys()
    assert not counted or found.supervised == expected.supervised
    squares = [tensor.double().square().sum() for tensor in expected.gradients.values()]
    least = float(torch.stack(squares).sum().sqrt()) * SHARE
    return Distance(
        _relative(found.losses, expected.losses),
        _relative(found.norms, expected.norms),
        {
            name: float((found.gradients[name] - kept).norm()) / max(float(kept.norm()), least)
            for name, kept in expected.gradients.items()
        },
    )


def assert_same_training(found: Outcome, expected: Outcome) -> None:
    """Losses, gradient norms, and each parameter's first gradient, named where it differs."""
    far = distance(found, expected)
    assert far.loss <= LOSS, f"losses differ by {far.loss:.2e}"
    assert far.norm <= NORM, f"gradient norms differ by {far.norm:.2e}"
    assert {name: value for name, value in far.gradients.items() if not value <= GRADIENT} == {}


def _relative(found: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
