"""Stages on other ranks train as one process does; a fault between them is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.engine.parallel.compare import assert_same_training, distance
from tests.engine.parallel.matrix import SP
from tests.engine.parallel.pipeline_trial import Run, Told, most_inputs_alive, train
from tests.engine.parallel.trial import full, layout, recompute
from tests.engine.step.gang import Gang

Reference = Callable[[Run], Told]

PP2 = Run(layout(pp=2))
VPP3 = Run(layout(pp=2, vpp=3))
EVEN = (4,) * 10

TWO = {
    "PP2": PP2,
    "PP2, uneven stages": Run(layout(pp=2, layer_split=(2, 4)), counts=EVEN, ragged=False),
    "PP2, all recomputed": PP2.recomputing(full(2)),
    "PP2, some recomputed": PP2.recomputing(recompute("moe", "layernorm")),
    "PP2 VPP3": VPP3,
    "PP2 VPP3, even": Run(layout(pp=2, vpp=3), counts=EVEN, ragged=False),
    "PP2 VPP3, all recomputed": VPP3.recomputing(full()),
    "PP2 VPP2, uneven stages": Run(layout(pp=2, vpp=2, layer_split=(1, 2, 1, 2))),
}
FOUR = {
    "TP2 PP2": Run(layout(tp=2, pp=2, etp=2, **SP)),
    "TP2 PP2 ETP1, all recomputed": Run(layout(tp=2, pp=2, **SP)).recomputing(full()),
    "TP2 PP2 VPP3": Run(layout(tp=2, pp=2, vpp=3, etp=2, **SP)),
    "TP2 PP2 without sequence parallel": Run(layout(tp=2, pp=2, etp=2), model="dense"),
    "PP2 EP2": Run(layout(pp=2, dp=2, ep=2)),
    "PP2 VPP3 EP2": Run(layout(pp=2, vpp=3, dp=2, ep=2), counts=EVEN, ragged=False),
    "CP2 PP2": Run(layout(pp=2, cp=2)),
    "PP4": Run(layout(pp=4, layer_split=(2, 1, 1, 2))),
}


@pytest.fixture(scope="module")
def reference() -> Reference:
    """The same training on one process, each made once."""
    made = cache(train)
    return lambda run: made(run.alone())


@pytest.mark.parametrize("name", TWO)
def test_two_processes_train_as_one(two: Gang, reference: Reference, name: str) -> None:
    assert_equal(TWO[name], two.run(train, TWO[name]), reference(TWO[name]))


@pytest.mark.parametrize("name", FOUR)
def test_four_processes_train_as_one(four: Gang, reference: Reference, name: str) -> None:
    assert_equal(FOUR[name], four.run(train, FOUR[name]), reference(FOUR[name]))


def assert_equal(run: Run, found: list[Told], expected: Told) -> None:
    """The same training, told alike by every rank."""
    assert_same_training(found[0], expected)
    for told in found:
        assert told.losses == found[0].losses and told.norms == found[0].norms
        assert told.loads == found[0].loads and told.logits == found[0].logits
    if run.layout.tp * run.layout.cp == 1:  # else rows are filled up, and the filling is routed too
        assert found[0].loads == expected.loads
    # ten updates of 1e-4 lie between the first weights and these
    far = torch.tensor(found[0].logits) - torch.tensor(expected.logits)
    assert far.abs().max() < 1e-4


@pytest.mark.parametrize("run", [PP2, VPP3], ids=["PP2", "PP2 VPP3"])
def test_a_pipeline_adds_in_the_order_of_one_process(
    two: Gang, reference: Reference, run: Run
) -> None:
    found, expected = two.run(train, run)[0], reference(run)
    assert found.losses == expected.losses
    assert [n for n, kept in expected.weights.items() if not found.weights[n].equal(kept)] == []


@pytest.mark.parametrize("run", [PP2, VPP3], ids=["PP2", "PP2 VPP3"])
def test_evaluation_and_probe_reach_all_stages(two: Gang, reference: Reference, run: Run) -> None:
    ranks, expected = two.run(train, run), reference(run)
    assert ranks[0].evaluation == [0.0] * 4 and ranks[1].evaluation == expected.evaluation
    assert [told.logits for told in ranks] == [expected.logits] * 2
    assert ranks[0].layers | ranks[1].layers == expected.layers
    assert not ranks[0].layers.keys() & ranks[1].layers.keys()


def test_bf16_gives_the_bits_of_one_process(two: Gang, reference: Reference) -> None:
    run = Run(layout(pp=2), counts=(3, 2), bf16=True)
    found, expected = two.run(train, run)[0], reference(run)
    assert found.losses == expected.losses and found.norms == pytest.approx(expected.norms)


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (PP2, "lost micro-batch"),
        (PP2, "gradient divided twice"),
        (PP2, "norm without pp"),
        (VPP3, "stages in another order"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_is_seen(two: Gang, reference: Reference, run: Run, fault: str) -> None:
    faulty = replace(run, counts=(3, 3), fault=fault)
    far = distance(two.run(train, faulty)[0], reference(faulty))
    assert not far.within, far


@pytest.mark.parametrize("run", [PP2, VPP3], ids=["PP2", "PP2 VPP3"])
def test_no_rank_waits_forever_where_every_message_blocks(
    two: Gang, reference: Reference, run: Run
) -> None:
    blocking = replace(run, fault="every message blocks")
    assert two.run(train, blocking)[0].losses == reference(run).losses


def test_activations_go_when_their_backward_is_done(two: Gang) -> None:
    # One that comes in beside those in flight: PP - rank of 1F1B.
    assert two.run(most_inputs_alive, layout(pp=2), 7) == [2, 1]
