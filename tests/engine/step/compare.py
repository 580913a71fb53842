"""How far two runs are apart, and whether that is only the order of additions."""

from __future__ import annotations

from collections.abc import Sequence

from tests.engine.step.jobs import Outcome

LOSS, NORM, GRADIENT = 1e-6, 1e-5, 1e-5


def relative(found: Sequence[float], expected: Sequence[float]) -> float:
    """The greatest relative difference of two series."""
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def apart(found: Outcome, expected: Outcome) -> tuple[float, float]:
    """Greatest relative difference of losses and of gradient norms."""
    return relative(found.losses, expected.losses), relative(found.norms, expected.norms)


def assert_same_training(found: Outcome, expected: Outcome, gradient: float = GRADIENT) -> None:
    """Losses, gradient norms, and each parameter's first gradient, named where it differs."""
    loss, norm = apart(found, expected)
    assert loss <= LOSS, f"losses differ by {loss:.2e}"
    assert norm <= NORM, f"gradient norms differ by {norm:.2e}"
    assert found.gradients.keys() == expected.gradients.keys()
    far = {
        name: float((found.gradients[name] - kept).norm() / kept.norm())
        for name, kept in expected.gradients.items()
    }
    assert {name: value for name, value in far.items() if not value <= gradient} == {}
    assert found.supervised == expected.supervised
