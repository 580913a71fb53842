"""Norms, experts, router, loss and attention against plain formulas; batches, first weights."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine import loss as loss_module
from openrecipes.engine.batch import IGNORE, Batch, Segments
from openrecipes.engine.loss import head_cross_entropy
from openrecipes.engine.model import NemotronH, initialise
from openrecipes.engine.model.attention import attend
from openrecipes.engine.model.moe import Experts, MoE, Router
from openrecipes.engine.model.norm import GatedRMSNorm, RMSNorm

from .conftest import FOUR_B, NANO, SUPER, random_batch


def same_gradients(
    found: torch.Tensor, expected: torch.Tensor, inputs: list[torch.Tensor], tolerance: float
) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    weight = torch.randn_like(expected)
    ours = torch.autograd.grad((found * weight).sum(), inputs)
    theirs = torch.autograd.grad((expected * weight).sum(), inputs)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_norms() -> None:
    x, gate = (torch.randn(7, 12, requires_grad=True) for _ in range(2))
    norm = RMSNorm(12, 1e-5)
    torch.nn.init.normal_(norm.weight)
    expected = F.rms_norm(x, (12,), norm.weight, 1e-5)
    same_gradients(norm(x), expected, [x, norm.weight], 1e-5)

    gated = GatedRMSNorm(12, 4, 1e-5)
    torch.nn.init.normal_(gated.weight)
    groups = (x * F.silu(gate)).unflatten(-1, (3, 4))
    expected = F.rms_norm(groups, (4,), None, 1e-5).flatten(1) * gated.weight
    same_gradients(gated(x, gate), expected, [x, gate, gated.weight], 1e-5)


def test_experts_are_each_tokens_weighted_sum() -> None:
    config = NemotronHConfig.from_hf(NANO)
    experts = Experts(config)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x = torch.randn(30, 48, requires_grad=True)
    indices = torch.stack([torch.randperm(12)[:4] for _ in range(30)])  # four experts stay idle
    weights = torch.rand(30, 4, requires_grad=True)
    rows = []
    for token, chosen, weight in zip(x, indices, weights, strict=True):
        outs = [
            w * experts.down_proj[e] @ F.relu(experts.up_proj[e] @ token).square()
            for e, w in zip(chosen, weight, strict=True)
        ]
        rows.append(torch.stack(outs).sum(0))
    found = experts(x, indices, weights)
    same_gradients(found, torch.stack(rows), [x, weights, *experts.parameters()], 1e-5)


def test_the_correction_bias_steers_the_choice_and_not_the_weights() -> None:
    router = Router(NemotronHConfig.from_hf(NANO))
    torch.nn.init.normal_(router.weight)
    x = torch.randn(9, 48)
    router.e_score_correction_bias[5] = 10.0
    indices, weights = router(x)
    assert (indices == 5).any(1).all()
    torch.testing.assert_close(weights.sum(1), torch.full((9,), 2.5))
    score = torch.sigmoid(x @ router.weight.t()).gather(1, indices)
    torch.testing.assert_close(weights, 2.5 * score / score.sum(1, keepdim=True))


def test_only_the_best_groups_are_eligible() -> None:
    router = Router(NemotronHConfig.from_hf(SUPER))  # 16 experts, 4 groups, the best 2
    scores = torch.zeros(1, 16)
    scores[0, [0, 1]] = 0.6  # group 0: 1.2
    scores[0, 4] = 0.9  # group 1: 0.9
    scores[0, [8, 9]] = 0.5  # group 2: 1.0
    assert set(router.choose(scores)[0].tolist()) <= {0, 1, 2, 3, 8, 9, 10, 11}


def test_moe_tells_its_load_and_its_experts_can_be_replaced() -> None:
    config = NemotronHConfig.from_hf(NANO)
    moe = MoE(config)
    for parameter in moe.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x = torch.randn(20, 48)
    before = moe(x)
    assert moe.tokens_per_expert is not None and moe.tokens_per_expert.sum() == 80
    inner = moe.experts

    class Dispatcher(torch.nn.Module):
        def forward(self, tokens, indices, weights):
            assert indices.shape == weights.shape == (20, 4)
            return inner(tokens, indices, weights)

    moe.experts = Dispatcher()
    torch.testing.assert_close(moe(x), before)


@pytest.mark.parametrize("chunk", [1, 96 * 4, 2**23])
def test_loss_is_cross_entropy_whatever_the_chunk(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_ELEMENTS", chunk)
    hidden = torch.randn(33, 12, requires_grad=True)
    weight = torch.randn(96, 12, requires_grad=True)
    targets = torch.randint(0, 96, (33,))
    targets[::3] = IGNORE
    expected = F.cross_entropy(hidden @ weight.t(), targets, reduction="sum", ignore_index=IGNORE)
    same_gradients(head_cross_entropy(hidden, weight, targets), expected, [hidden, weight], 1e-4)


def test_no_supervised_token_is_a_loss_of_zero_with_gradients_of_zero() -> None:
    hidden, weight = torch.randn(5, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    loss = head_cross_entropy(hidden, weight, torch.full((5,), IGNORE))
    loss.backward()
    assert loss == 0 and not hidden.grad.any() and not weight.grad.any()


@pytest.mark.parametrize("lengths", [(24,), (8, 8, 8), (5, 1, 18)])
def test_attention_is_causal_inside_segments(lengths: tuple[int, ...]) -> None:
    q, k, v = torch.randn(24, 6, 8), torch.randn(24, 2, 8), torch.randn(24, 2, 8)
    segments = Segments.of(lengths)
    ids = segments.ids
    seen = (ids[:, None] == ids[None]) & torch.ones(24, 24, dtype=torch.bool).tril()
    keys, values = (t.repeat_interleave(3, 1) for t in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, keys) / 8**0.5
    expected = torch.einsum(
        "hij,jhd->ihd", scores.masked_fill(~seen, -torch.inf).softmax(-1), values
    )
    torch.testing.assert_close(attend(q, k, v, segments), expected, rtol=1e-4, atol=1e-5)


def test_targets_are_the_next_supervised_tokens_of_the_same_segment() -> None:
    ids = torch.tensor([[10, 11, 12, 13, 14, 15]])
    mask = torch.tensor([[1, 1, 0, 1, 1, 1]])
    batch = Batch(ids, mask, (3, 1, 2), (3, 3))
    assert batch.targets().tolist() == [11, IGNORE, IGNORE, IGNORE, 15, IGNORE]
    assert batch.supervised_tokens() == 2


@pytest.mark.parametrize(("segments", "rows"), [((3, 2), (6,)), ((6,), (3, 2)), ((4, 2), (3, 3))])
def test_a_batch_whose_borders_do_not_fit_is_refused(
    segments: tuple[int, ...], rows: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="row"):
        Batch(torch.zeros(1, 6, dtype=torch.long), torch.ones(1, 6), segments, rows)


def test_initial_weights_follow_the_seed_and_a_stage_gets_its_part() -> None:
    config = NemotronHConfig.from_hf(NANO)
    whole, again, other = NemotronH(config), NemotronH(config), NemotronH(config)
    stage = NemotronH(config, range(2, 5))
    for model, seed in ((whole, 3), (again, 3), (other, 4), (stage, 3)):
        initialise(model, seed)
    for name, tensor in whole.state_dict().items():
        assert torch.isfinite(tensor).all(), name
        assert torch.equal(tensor, again.state_dict()[name])
    assert not torch.equal(whole.lm_head.weight, other.lm_head.weight)
    mixer = whole.backbone.layers[2].mixer
    for name, tensor in mixer.state_dict().items():
        assert torch.equal(tensor, stage.backbone.layers[0].mixer.state_dict()[name])
    steps = F.softplus(mixer.dt_bias)
    assert (steps > 0.9e-3).all() and (steps < 0.11).all()
    loss, tokens = whole(random_batch(96, (200,)))
    assert abs(float(loss.detach() / tokens) - 4.56) < 0.2  # ln 96


def test_stages_chained_are_the_whole_model() -> None:
    config = NemotronHConfig.from_hf(SUPER)
    whole = NemotronH(config)
    stages = [NemotronH(config, part) for part in (range(0, 2), range(2, 3), range(3, 5))]
    for model in (whole, *stages):
        initialise(model, 0)
    batch = random_batch(96, (40, 60))
    hidden = stages[0].embed(batch)
    for stage in stages:
        hidden = stage.run(hidden, batch.segments())
    assert torch.equal(stages[-1].loss(hidden, batch)[0], whole(batch)[0])
    with pytest.raises(ValueError, match="embedding"):
        stages[1].embed(batch)
    with pytest.raises(ValueError, match="head"):
        stages[0].loss(hidden, batch)


def test_bf16_keeps_the_router_in_fp32_and_the_loss_too() -> None:
    model = NemotronH(NemotronHConfig.from_hf(NANO))
    initialise(model, 0)
    model.to_precision(torch.bfloat16)
    kept = {n for n, t in model.state_dict().items() if t.dtype == torch.float32}
    assert kept == {n for n in model.state_dict() if ".gate." in n}
    loss, _ = model(random_batch(96, (64,)))
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())


def test_a_dense_model_of_one_kind_runs() -> None:
    config = NemotronHConfig.from_hf(FOUR_B | {"hybrid_override_pattern": "--"})
    model = NemotronH(config)
    initialise(model, 0)
    assert torch.isfinite(model(random_batch(96, (9,)))[0])


def test_memory_is_kept_where_the_c_library_listens() -> None:
    code = "from openrecipes.engine.allocator import keep_freed_memory as k; print(k())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(platform.libc_ver()[0] == "glibc")
