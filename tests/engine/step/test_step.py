"""One optimizer step on one process: against torch's own AdamW, and what must not change it."""

from __future__ import annotations

import math

import pytest
import torch

from openrecipes.engine.batch import Batch
from openrecipes.engine.parallel.data_parallel import decays
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.schedule import Schedule
from openrecipes.engine.step import Trainer
from openrecipes.errors import InputError
from tests.engine.step.compare import assert_same_training
from tests.engine.step.jobs import Outcome, Run, join, model, rows, train


def constant(lr: float) -> Schedule:
    return Schedule(lr, lr, "constant", 0, 1e9, 8)


def test_ten_steps_equal_plain_torch(reference: Outcome) -> None:
    trained = model()
    named = dict(trained.named_parameters())
    plain = torch.optim.AdamW(
        [
            {"params": [p for p in named.values() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in named.values() if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=1e-4,
        betas=(0.9, 0.98),
    )
    data = rows(80, ragged=False)
    for number in range(10):
        loss_sum, count = trained(join(data[number * 8 : number * 8 + 8]))
        plain.zero_grad()
        loss = loss_sum / count
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(named.values(), 1.0)
        plain.step()
        assert loss.item() == pytest.approx(reference.losses[number], rel=1e-6)
        assert norm.item() == pytest.approx(reference.norms[number], rel=1e-5)


@pytest.mark.parametrize(
    "run", [Run(micro_rows=8), Run(micro_rows=2), Run(max_tokens=130), Run(row_seed=3)]
)
def test_how_a_batch_is_cut_and_ordered_changes_only_rounding(reference: Outcome, run: Run) -> None:
    # A_log's gradient is a small difference of large sums, hence the wider bound.
    assert_same_training(train(run), reference, gradient=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_fall(dtype: torch.dtype) -> None:
    data = [join(rows(4, ragged=True))]
    trainer = Trainer(model().to_precision(dtype), Mesh.alone(), constant(1e-2))
    losses = [trainer.step(number, data).loss for number in range(20)]
    assert losses[-1] < 0.6 * losses[0]


def test_the_same_seed_gives_the_same_bits(reference: Outcome) -> None:
    again = train(Run())
    assert again.losses == reference.losses and again.norms == reference.norms
    assert all(again.weights[name].equal(w) for name, w in reference.weights.items())


def test_step_0_of_a_warm_up_changes_nothing() -> None:
    before = model().state_dict()
    outcome = train(Run(steps=1, warmup_steps=4))
    assert outcome.lrs == [0.0]
    assert all(outcome.weights[name].equal(tensor) for name, tensor in before.items())


def test_a_step_that_is_not_finite_changes_no_weight() -> None:
    trained = model()
    trainer = Trainer(trained, Mesh.alone(), constant(1e-2))
    with torch.no_grad():
        trained.lm_head.weight[3, 0] = float("nan")  # type: ignore[union-attr]
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    result = trainer.step(0, rows(2, ragged=False))
    assert not result.finite and math.isnan(result.loss)
    for name, tensor in trained.state_dict().items():
        assert tensor.equal(before[name]) or tensor.isnan().any(), name


def test_a_batch_without_targets_is_refused() -> None:
    row = rows(1, ragged=False)[0]
    empty = Batch(row.input_ids, row.loss_mask * 0, row.segment_lengths, row.row_lengths)
    trainer = Trainer(model(), Mesh.alone(), constant(1e-3))
    with pytest.raises(InputError, match="without a supervised token"):
        trainer.step(0, [empty])


def test_clipping_limits_the_gradient() -> None:
    trained = model()
    trainer = Trainer(trained, Mesh.alone(), constant(0.0), clip_grad=0.25)
    result = trainer.step(0, rows(4, ragged=False))
    assert result.grad_norm > 0.25
    clipped = math.sqrt(sum(float(b.gradient.double().square().sum()) for b in trainer.buckets))
    assert clipped == pytest.approx(0.25, rel=1e-4)


def test_what_decays() -> None:
    named = dict(model().named_parameters())
    kept = {name.rsplit(".", 1)[1] for name, p in named.items() if not decays(name, p)}
    assert kept == {"weight", "bias", "dt_bias", "A_log", "D"}  # weight: norms only
    assert all("norm" in n for n, p in named.items() if n.endswith("weight") and not decays(n, p))
    for ending in ("x_conv.weight", "gate.weight", "embeddings.weight", "experts.up_proj"):
        assert any(decays(name, p) for name, p in named.items() if name.endswith(ending))


def test_memory_is_told_in_bytes() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        trained = model().to_precision(dtype)
        split = Trainer(trained, Mesh.alone(), constant(1e-3)).memory()
        sizes = [(p.numel(), p.dtype) for p in trained.parameters()]
        count = sum(size for size, _ in sizes)
        assert split == {
            "weights": sum(t.nbytes for t in trained.state_dict().values()),
            "gradients": 4 * count,
            "master": sum(4 * size for size, kept in sizes if kept == torch.bfloat16),
            "optimizer": 8 * count,
        }
