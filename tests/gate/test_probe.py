"""The parity probe names the layer at which two runs part; resumes that move a loss are named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from openrecipes.errors import InputError
from openrecipes.gate.check import check

from .records import losses, record
from .training import Fault, frozen_expert, stale, train


def test_runs_in_another_order_do_not_part(tmp_path: Path) -> None:
    reference = train(tmp_path / "r", steps=3, probe=True)
    verdict = check(train(tmp_path / "c", steps=3, probe=True, micro_rows=4), reference)
    found = verdict.as_json()["probe"]
    assert found["steps"] == [0, 1, 2]
    assert found["parted"] is None
    assert len(found["sha256"]["candidate"]) == 64


@pytest.mark.parametrize(
    ("fault", "step", "layer", "kind"),
    [
        (Fault("scaling", scaling=2.4), 0, 1, "E"),
        (Fault("stale", gradients=stale("backbone.layers.2.mixer.x_proj.weight")), 1, 2, "M"),
        (Fault("frozen", after=frozen_expert), 1, 1, "E"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_layer_of_a_fault_is_named(
    tmp_path: Path, fault: Fault, step: int, layer: int, kind: str
) -> None:
    reference = train(tmp_path / "r", steps=3, probe=True)
    candidate = train(tmp_path / "c", fault, steps=3, probe=True, micro_rows=2)
    verdict = check(candidate, reference)
    parted = verdict.as_json()["probe"]["parted"]
    assert (parted["step"], parted["layer"], parted["kind"]) == (step, layer, kind)
    assert any(f"layer {layer}" in item for item in verdict.look_first)


def line(step: int = 0, norm: float | None = 1.0, layers: int = 2) -> dict[str, Any]:
    shown = [
        {"layer": n, "kind": "M", "activation_norm": norm, "gradient_norm": 1.0}
        for n in range(layers)
    ]
    return {"step": step, "layers": shown, "logits": [[1.0, 2.0]]}


def probed(path: Path, *lines: dict[str, Any]) -> Path:
    record(path)
    (path / "probe.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_probe_on_one_side_only_is_not_compared(tmp_path: Path) -> None:
    assert check(probed(tmp_path / "c", line()), record(tmp_path / "r")).probe is None


@pytest.mark.parametrize("changed", [line(norm=None), line(norm=1.001), line(layers=1)])
def test_nulls_and_other_layers_part(tmp_path: Path, changed: dict[str, Any]) -> None:
    verdict = check(probed(tmp_path / "c", changed), probed(tmp_path / "r", line()))
    assert verdict.probe is not None
    assert verdict.probe.parting is not None
    assert verdict.verdict == "pass", "a probe tells where to look; it decides nothing"


def test_replicates_widen_the_tolerance(tmp_path: Path) -> None:
    candidate, reference = probed(tmp_path / "c", line(norm=1.001)), probed(tmp_path / "r", line())
    again = record(tmp_path / "n", flags={"row-order-seed": 1}, curve=losses(scale=1e-6))
    (again / "probe.jsonl").write_text(json.dumps(line(norm=1.0002)))
    verdict = check(candidate, reference, [again])
    assert verdict.probe is not None
    assert verdict.probe.parting is None
    assert verdict.probe.tolerance[0] == pytest.approx(2e-3)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"step": 0}', '{"step": 1, "layers": 1, "logits": []}']
)
def test_a_broken_probe_is_wrong_input(tmp_path: Path, text: str) -> None:
    candidate = probed(tmp_path / "c", line())
    with (candidate / "probe.jsonl").open("a") as stream:
        stream.write(text)
    with pytest.raises(InputError, match=r"probe\.jsonl:2"):
        check(candidate, probed(tmp_path / "r", line()))


def test_a_resume_that_moves_the_loss_is_named(tmp_path: Path) -> None:
    """A stop and resume that forgets something: equal until step 9, apart from step 10 on."""
    moved = [loss * (1 if step < 10 else 1.2) for step, loss in enumerate(losses())]
    candidate = record(tmp_path / "c", curve=moved)
    resumed(candidate)
    verdict = check(candidate, record(tmp_path / "r"))
    assert verdict.verdict == "fail"
    assert verdict.as_json()["convergence"]["resumed"] == {"candidate": [10], "reference": []}
    assert "the losses part where the candidate was resumed, at step 10" in verdict.look_first


def test_a_resume_that_moves_nothing_passes(tmp_path: Path) -> None:
    candidate = record(tmp_path / "c", curve=losses(scale=1e-8))
    resumed(candidate)
    verdict = check(candidate, record(tmp_path / "r"))
    assert verdict.verdict == "pass"
    assert verdict.convergence is not None
    assert verdict.convergence.resumed["candidate"] == [10]
    assert verdict.convergence.resumes == ()


def resumed(run: Path, at: int = 10) -> None:
    """Make the record one of a run that was stopped in step 11 and went on from step 10."""
    file = run / "steps.jsonl"
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    again = [{**line, "attempt": 1} for line in lines[at:]]
    lost = [{**line, "loss": math.pi} for line in lines[at : at + 2]]
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines[:at], *lost, *again]))
