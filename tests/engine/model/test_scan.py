"""The chunked scan against the recurrence that defines it, token by token in fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openrecipes.engine.batch import Segments
from openrecipes.engine.model import convolution
from openrecipes.engine.model import ssd as ssd_module
from openrecipes.engine.model.convolution import CausalConvolution
from openrecipes.engine.model.ssd import ssd


def recurrence(
    x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor, skip: Tensor, ids: Tensor
) -> Tensor:
    tokens, heads, size = x.shape
    repeat = heads // b.shape[1]
    b, c = b.repeat_interleave(repeat, 1), c.repeat_interleave(repeat, 1)
    state, out = x.new_zeros(heads, size, b.shape[-1]), []
    for t in range(tokens):
        kept = torch.exp(dt[t] * decay) if t and ids[t] == ids[t - 1] else 0 * decay
        added = (dt[t, :, None] * x[t]).unsqueeze(-1) * b[t].unsqueeze(1)
        state = state * kept[:, None, None] + added
        out.append((state * c[t].unsqueeze(1)).sum(-1) + skip[:, None] * x[t])
    return torch.stack(out)


def inputs(tokens: int, heads: int, groups: int, seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return [
        normal(tokens, heads, 8),
        torch.rand(tokens, heads, generator=g, dtype=torch.float64) * 0.3,
        -torch.rand(heads, generator=g, dtype=torch.float64) * 5,
        normal(tokens, groups, 16),
        normal(tokens, groups, 16),
        normal(heads),
    ]


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    chunk=st.sampled_from([4, 16, 64]),
    groups=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 1000),
)
def test_scan_is_the_recurrence(lengths: list[int], chunk: int, groups: int, seed: int) -> None:
    ids = Segments.of(lengths).ids
    exact = [t.requires_grad_() for t in inputs(sum(lengths), 4, groups, seed)]
    ours = [t.detach().float().requires_grad_() for t in exact]
    expected, found = recurrence(*exact, ids), ssd(*ours, ids, chunk)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed))
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    for right, left in zip(exact, ours, strict=True):
        scale = max(1.0, float(right.grad.norm()))
        assert float((left.grad - right.grad).norm()) / scale < 1e-5


@pytest.mark.parametrize(("decay", "longest"), [(0.2, 0.1), (64.0, 0.1), (64.0, 2.0)])
def test_strong_decay_costs_no_accuracy(decay: float, longest: float) -> None:
    """Sums of dt A reach -4096 inside a chunk, and A's gradient is a small difference."""
    ids = Segments.of([200]).ids
    exact = inputs(200, 4, 2)
    exact[1] *= longest / 0.3
    exact[2] = torch.linspace(-decay / 8, -decay, 4, dtype=torch.float64)
    exact = [t.requires_grad_() for t in exact]
    ours = [t.detach().float().requires_grad_() for t in exact]
    expected, found = recurrence(*exact, ids), ssd(*ours, ids)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    assert float((found - expected).norm() / expected.norm()) < 1e-6
    for right, left in zip(exact, ours, strict=True):
        assert float((left.grad - right.grad).norm() / right.grad.norm()) < 5e-6


def test_all_chunks_at_once_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's way through the same code."""
    ids = Segments.of([70, 30, 107]).ids
    blocks = ssd_module._blocks
    found = []
    for one_by_one in (True, False):
        monkeypatch.setattr(
            ssd_module,
            "_blocks",
            lambda tokens, chunk, one_by_one, way=one_by_one: blocks(tokens, chunk, one_by_one=way),
        )
        arguments = [t.float().requires_grad_() for t in inputs(207, 4, 2)]
        y = ssd(*arguments, ids, 16)
        y.square().sum().backward()
        found.append([y, *(t.grad for t in arguments)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("elements", [1, 2**16])  # pieces of 16 tokens, and whole segments
def test_convolution_is_the_sum_over_taps(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_CACHE_ELEMENTS", elements)
    lengths = [1, 2, 3, 4, 49, 1]
    x = torch.randn(60, 5, dtype=torch.float64, requires_grad=True)
    layer = CausalConvolution(5, 4, True).double()
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    pieces = []
    for part in x.split(lengths):
        padded = torch.cat([part.new_zeros(3, 5), part]).t()[None]
        y = torch.nn.functional.conv1d(padded, layer.weight.unsqueeze(1), layer.bias, groups=5)
        pieces.append(torch.nn.functional.silu(y)[0].t())
    expected = torch.cat(pieces)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weight).sum(), [x, *layer.parameters()])
    found = layer(x, Segments.of(lengths))
    torch.testing.assert_close(found, expected)
    grads = torch.autograd.grad((found * weight).sum(), [x, *layer.parameters()])
    torch.testing.assert_close(grads, wanted)
