"""Every layout trains as one process does; a fault in any part of it is seen."""

from __future__ import annotations

import pytest

from tests.engine.step.compare import LOSS, NORM, apart, assert_same_training
from tests.engine.step.gang import Gang
from tests.engine.step.jobs import Outcome, Run, train

RAGGED = Run(ragged=True)


@pytest.mark.parametrize("expert_parallel", [1, 2])
def test_two_processes_equal_one(two: Gang, reference: Outcome, expert_parallel: int) -> None:
    outcomes = two.run(train, Run(expert_parallel=expert_parallel))
    assert_same_training(outcomes[0], reference)
    assert outcomes[0].losses == outcomes[1].losses
    assert outcomes[0].loads == reference.loads


@pytest.mark.parametrize("expert_parallel", [1, 2, 4])
def test_four_processes_equal_one(four: Gang, reference: Outcome, expert_parallel: int) -> None:
    outcomes = four.run(train, Run(expert_parallel=expert_parallel))
    assert_same_training(outcomes[3], reference)


def test_rows_of_different_lengths_by_tokens(two: Gang) -> None:
    dynamic = Run(ragged=True, max_tokens=100, expert_parallel=2)
    assert_same_training(two.run(train, dynamic)[0], train(RAGGED))


def test_weights_end_equal_on_all_ranks(two: Gang) -> None:
    first, second = two.run(train, Run(expert_parallel=2, steps=3))
    assert first.weights.keys() == second.weights.keys()
    for name, weight in first.weights.items():
        assert weight.equal(second.weights[name]), name


def test_bf16_stays_near_one_process(two: Gang) -> None:
    alone = train(Run(bf16=True))
    spread = two.run(train, Run(bf16=True, expert_parallel=2))[0]
    loss, norm = apart(spread, alone)
    assert loss < 2e-3 and norm < 2e-2


@pytest.mark.parametrize(
    "fault",
    ["forgotten reduction", "frozen expert", "wrong expert rank", "lost micro-batch"],
)
def test_a_fault_of_a_layout_is_seen(two: Gang, reference: Outcome, fault: str) -> None:
    outcome = two.run(train, Run(expert_parallel=2, fault=fault))[0]
    loss, norm = apart(outcome, reference)
    assert loss > LOSS or norm > NORM


@pytest.mark.parametrize("fault", ["decayed norms", "mean of means", "frozen expert"])
def test_a_fault_of_the_step_is_seen(reference: Outcome, fault: str) -> None:
    loss, norm = apart(train(Run(fault=fault)), reference)
    assert loss > LOSS or norm > NORM


def test_a_warm_up_that_is_off_by_a_step_is_seen() -> None:
    right = train(Run(warmup_steps=5))
    assert right.lrs[:6] == pytest.approx([0, 2e-5, 4e-5, 6e-5, 8e-5, 1e-4])
    loss, _ = apart(train(Run(warmup_steps=5, fault="late warm-up")), right)
    assert loss > LOSS
