"""Every layout trains as one process does; a fault on any axis is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.engine.parallel.compare import assert_same_training, distance
from tests.engine.parallel.matrix import LAYOUTS, PAIRWISE, run
from tests.engine.parallel.trial import Outcome, Run, train, without_ties
from tests.engine.step.gang import Gang

Reference = Callable[[Run], Outcome]


@pytest.mark.parametrize(
    "case", PAIRWISE, ids=lambda case: f"{case[0]}, {case[1]}, {'ragged' if case[2] else 'even'}"
)
def test_a_layout_trains_as_one_process_does(
    request: pytest.FixtureRequest, one_process: Reference, case: tuple[str, str, bool, int]
) -> None:
    name, recomputed, ragged, rows = case
    chosen = without_ties(run(name, recomputed, ragged=ragged, rows=rows), one_process)
    outcomes = gang(request, name).run(train, chosen)
    assert_same_training(outcomes[0], one_process(chosen))
    assert all(outcome.losses == outcomes[0].losses for outcome in outcomes)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("TP2", "tp: norms not summed"),
        ("TP2 without sequence parallel", "tp: norms counted twice"),
        ("TP2 EP2 ETP1", "tp: output not summed"),
        ("CP2", "cp: heads in another order"),
        ("TP1 ETP2", "etp: one part forgotten"),
        ("TP2 EP2 ETP1", "ep: wrong rank in the expert grid"),
        ("DP2", "dp: lost micro-batch"),
    ],
)
def test_a_fault_of_an_axis_is_seen(
    request: pytest.FixtureRequest, one_process: Reference, name: str, fault: str
) -> None:
    chosen = replace(run(name), steps=2)
    outcome = gang(request, name).run(train, replace(chosen, fault=fault))[0]
    far = distance(outcome, one_process(chosen), counted=False)
    assert not far.within, far


def test_the_first_holders_lay_the_whole_model_together(
    two: Gang, four: Gang, one_process: Reference
) -> None:
    for gang_, name in ((two, "CP2 EP2"), (four, "TP4"), (four, "ETP2 EP2")):
        chosen = replace(run(name), steps=1)
        whole = gang_.run(train, replace(chosen, steps=0))[0].weights
        expected = one_process(replace(chosen, steps=0)).weights
        assert whole.keys() == expected.keys()
        assert [n for n, kept in expected.items() if not whole[n].equal(kept)] == []


def test_bf16_stays_near_one_process(four: Gang, one_process: Reference) -> None:
    chosen = replace(run("CP2 TP2"), bf16=True)
    far = distance(four.run(train, chosen)[0], one_process(chosen))
    assert far.loss < 2e-3 and far.norm < 2e-2


def gang(request: pytest.FixtureRequest, name: str) -> Gang:
    """The processes for a layout."""
    fixture = {2: "two", 4: "four"}[LAYOUTS[name][0].world_size]
    found: Gang = request.getfixturevalue(fixture)
    return found
