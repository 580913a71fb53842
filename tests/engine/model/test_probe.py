"""The parity probe tells each layer's norms, once per micro-batch, and fixed logits."""

from __future__ import annotations

import json
import math

import torch

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.model import NemotronH, initialise
from openrecipes.engine.probe import NormProbe, ProbeLine, probe_batch, probe_logits

from .conftest import NANO, random_batch


def test_norms_are_those_of_each_layers_output_and_its_gradient() -> None:
    model = NemotronH(NemotronHConfig.from_hf(NANO))
    initialise(model, 0)
    batches = [random_batch(96, (40,), seed=s) for s in (1, 2)]
    expected = {n: [0.0, 0.0] for n in range(5)}
    for batch in batches:
        hidden, outputs = model.embed(batch), []
        for layer in model.backbone.layers:
            hidden = layer(hidden, batch.segments())
            hidden.retain_grad()
            outputs.append(hidden)
        model.loss(hidden, batch)[0].backward()
        for n, out in enumerate(outputs):
            expected[n][0] += float(out.detach().double().square().sum())
            expected[n][1] += float(out.grad.double().square().sum())
    with NormProbe(model) as probe:
        for batch in batches:
            model(batch)[0].backward()
    model(batches[0])[0].backward()  # outside: not counted
    for number, (activations, gradients) in probe.layers().items():
        assert math.isclose(activations, expected[number][0], rel_tol=1e-5)
        assert math.isclose(gradients, expected[number][1], rel_tol=1e-4)


def test_a_line_is_plain_json() -> None:
    model = NemotronH(NemotronHConfig.from_hf(NANO))
    initialise(model, 0)
    logits = probe_logits(model)
    assert logits == probe_logits(model)
    line = ProbeLine(3, {0: (4.0, float("inf"))}, model.config.pattern, logits).as_json()
    assert json.loads(json.dumps(line, allow_nan=False)) == line
    first = {"layer": 0, "kind": "M", "activation_norm": 2.0, "gradient_norm": None}
    assert line["layers"] == [first]
    assert [len(row) for row in line["logits"]] == [16] * 4


def test_probe_tokens_fit_any_vocabulary() -> None:
    for vocabulary in (2, 96, 131072):
        ids = probe_batch(vocabulary).input_ids
        assert ids.dtype == torch.int64 and int(ids.min()) >= 0 and int(ids.max()) < vocabulary
