"""The model against transformers' NemotronH: same weights, same logits, same gradients."""

from __future__ import annotations

import copy

import pytest
import torch

from openrecipes.engine.batch import Batch
from openrecipes.engine.model import NemotronH

from .conftest import Oracle, random_batch, relative

TOLERANCE = 1e-4
SEGMENTS = (75, 3, 1, 50)


def differences(model: NemotronH, oracle: Oracle, batch: Batch) -> dict[str, float]:
    """Relative difference of the logits, the loss and every gradient."""
    oracle.model.zero_grad()
    model.zero_grad()
    expected = oracle.loss(batch)
    expected.backward()
    loss, tokens = model(batch)
    loss.backward()
    assert tokens == batch.supervised_tokens()
    found = {"loss": relative(loss, expected)}
    with torch.no_grad():
        found["logits"] = relative(model.logits(batch)[0], oracle.logits(batch))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        found[name] = relative(parameter.grad, oracle.gradient(model, name))
    return found


def test_logits_and_every_gradient_agree_in_fp32(oracle: Oracle) -> None:
    model = oracle.ours()
    batch = random_batch(96, SEGMENTS)
    found = differences(model, oracle, batch)
    assert len(found) == 2 + len(list(model.parameters()))
    assert {k: v for k, v in found.items() if not v < TOLERANCE} == {}


def test_the_very_negative_dt_bias_has_a_gradient(oracle: Oracle) -> None:
    model = oracle.ours()
    model(random_batch(96, SEGMENTS))[0].backward()
    for layer in model.backbone.layers:
        if layer.kind == "M":
            limited = model.config.time_step_limit[0] > 0
            assert layer.mixer.dt_bias[0] == -9.0
            assert (layer.mixer.dt_bias.grad[0] == 0) == limited


def test_bf16_is_as_exact_as_the_oracle(oracle: Oracle) -> None:
    batch = random_batch(96, (400, 112))
    exact = oracle.logits(batch).detach()
    ours = oracle.ours(torch.bfloat16).logits(batch)[0]
    rounded = copy.deepcopy(oracle)
    rounded.model = oracle.model.__class__(oracle.model.config)
    rounded.model.load_state_dict(oracle.model.state_dict())
    rounded.model.to(torch.bfloat16)
    from .conftest import limit_time_steps

    limit_time_steps(rounded.model, {"time_step_limit": ours_limit(oracle)})
    for module in rounded.model.modules():  # transformers keeps these in fp32 when it loads
        if hasattr(module, "e_score_correction_bias"):
            module.float()
    theirs = rounded.logits(batch).detach()
    assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm()
    assert (ours - exact).norm() > 0


def ours_limit(oracle: Oracle) -> tuple[float, float]:
    from openrecipes.engine.weights import Checkpoint

    return Checkpoint(oracle.path).config.time_step_limit


@pytest.mark.parametrize("fault", ["scaling", "correction", "shifted", "borders"])
def test_planted_faults_are_seen(fault: str, oracle: Oracle) -> None:
    model = oracle.ours()
    batch = random_batch(96, SEGMENTS)
    routers = [layer.mixer.gate for layer in model.backbone.layers if layer.kind == "E"]
    if fault in ("scaling", "correction") and not routers:
        pytest.skip("a dense model has no router")
    expected = batch
    for router in routers:
        if fault == "scaling":
            router.scaling = 1.0
        if fault == "correction":
            router.e_score_correction_bias.zero_()
    if fault == "shifted":  # the token after the next one
        mask = torch.roll(batch.loss_mask, 1)
        batch = Batch(batch.input_ids, mask, batch.segment_lengths, batch.row_lengths)
    if fault == "borders":
        batch = Batch(batch.input_ids, batch.loss_mask, (129,), (129,))
    with torch.no_grad():
        found = relative(model(batch)[0], oracle.loss(expected))
    assert found > 10 * TOLERANCE
