"""Faults planted in small trainings: the gate catches each in fp32, and passes every order."""

from __future__ import annotations

from pathlib import Path

import pytest

from openrecipes.gate.check import check

from .training import FAULTS, Fault, train

#: Losses and gradient norms of the right training in another order differ by less (relative).
SAME_LOSS, SAME_NORM = 1e-6, 1e-5


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A reference run and two replicates of it."""
    path = tmp_path_factory.mktemp("fp32")
    again = [train(path / f"again{seed}", row_order=seed, micro_rows=seed) for seed in (1, 2)]
    return train(path / "reference"), again


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(
    tmp_path: Path, fp32: tuple[Path, list[Path]], fault: Fault
) -> None:
    reference, again = fp32
    found = check(train(tmp_path / "candidate", fault, micro_rows=4), reference, again)
    assert found.verdict == "fail"
    assert found.configuration.verdict == "pass", "the curves alone tell"
    assert found.convergence is not None
    assert any(name.startswith("noise_floor") for name in found.convergence.failures)


@pytest.mark.parametrize("micro_rows", [2, 4, 8])
def test_the_same_training_in_another_order_passes(
    tmp_path: Path, fp32: tuple[Path, list[Path]], micro_rows: int
) -> None:
    reference, again = fp32
    found = check(train(tmp_path / "candidate", micro_rows=micro_rows), reference, again)
    assert found.verdict == "pass", found.reasons
    document = found.as_json()["convergence"]
    assert document["max_relative_difference"] < SAME_LOSS
    assert document["gradient_norm"]["max_relative_difference"] < SAME_NORM
    assert document["noise_floor"]["resolves_learning_rate_x1.1"] is True


def test_the_published_procedure_alone_misses_a_doubled_learning_rate(
    tmp_path: Path, fp32: tuple[Path, list[Path]]
) -> None:
    candidate = train(tmp_path / "candidate", Fault("learning rate x2", lr=2.0))
    found = check(candidate, fp32[0])
    assert found.verdict == "pass"
    assert found.convergence is not None
    assert any("doubled learning rate" in note for note in found.convergence.notes)


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """The same in bf16, with two rows in the replicate's micro-batches."""
    path = tmp_path_factory.mktemp("bf16")
    reference = train(path / "reference", bf16=True)
    return reference, [train(path / "again", bf16=True, row_order=1, micro_rows=2)]


def test_bf16_hides_a_learning_rate_and_the_verdict_says_so(
    tmp_path: Path, bf16: tuple[Path, list[Path]]
) -> None:
    candidate = train(tmp_path / "candidate", Fault("x1.1", lr=1.1), micro_rows=4, bf16=True)
    found = check(candidate, *bf16)
    assert found.verdict == "pass"
    assert found.convergence is not None
    assert any("rehearsal" in note for note in found.convergence.notes)


def test_in_bf16_rows_in_another_order_alone_are_no_floor(
    tmp_path: Path, bf16: tuple[Path, list[Path]]
) -> None:
    """A right layout is far over a floor that leaves out rounding inside micro-batches."""
    reference, again = bf16
    candidate = train(tmp_path / "candidate", micro_rows=4, bf16=True)
    order = train(tmp_path / "order", bf16=True, row_order=2)
    found = check(candidate, reference, [order])
    assert found.verdict == "review"
    assert found.convergence is not None
    assert any("--micro-batch-size" in note for note in found.convergence.notes)
    assert check(candidate, reference, again).verdict == "pass"
