"""Mamba-2's selective scan as matrix products over chunks (state space duality), per segment.

The recurrence, for each head with its group's B and C:

    S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t + D x_t

with S zero at the start of each segment. Inside a chunk of Q tokens it is a masked, decayed
attention; between chunks only the state is passed on (Dao and Gu 2024, "Transformers are SSMs",
section 6). Chunks are worked on in blocks, small enough for a CPU's cache, and the backward pass
makes each block's decay matrices and states again: what is kept is the inputs, the output and one
state per block. All of it is fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK = 64  # tokens of a chunk on a CPU: the decay matrices cost T x CHUNK x heads
_CACHE_BYTES = 2**20  # a block's decay matrices on a CPU


def ssd(
    x: Tensor,
    dt: Tensor,
    decay: Tensor,
    b: Tensor,
    c: Tensor,
    skip: Tensor,
    segment_ids: Tensor,
    chunk: int = CHUNK,
) -> Tensor:
    """Scan a sequence of T tokens.

    Args:
        x: (T, heads, head size).
        dt: (T, heads) fp32, positive time steps.
        decay: (heads,) fp32, A, negative.
        b: (T, groups, state size); head h belongs to group h // (heads / groups).
        c: like b.
        skip: (heads,) fp32, D.
        segment_ids: (T,), non-decreasing; the state is zero where it changes.
        chunk: tokens of a chunk; affects speed and rounding only.

    Returns:
        (T, heads, head size), fp32.
    """
    return _SSD.apply(x, dt, decay, b, c, skip, segment_ids, chunk)


def _blocks(tokens: int, chunk: int, heads: int, on_cpu: bool) -> list[tuple[int, int, int]]:
    """(first token, chunks, tokens of a chunk) of each block; a remainder is a shorter chunk."""
    chunks = tokens // chunk
    most = max(1, _CACHE_BYTES // (4 * heads * chunk * chunk)) if on_cpu else max(1, chunks)
    blocks = [(first * chunk, min(most, chunks - first), chunk) for first in range(0, chunks, most)]
    rest = tokens - chunks * chunk
    return [*blocks, (chunks * chunk, 1, rest)] if rest else blocks


@dataclass
class _Shape:
    """n chunks of q tokens, g groups of r heads of size p, states of size s."""

    n: int
    q: int
    g: int
    r: int
    p: int
    s: int

    def tokens_first(self, t: Tensor) -> Tensor:
        """(n q, g r, p) to (n, g, q, r p): one product serves a group's heads."""
        view = t.view(self.n, self.q, self.g, self.r * self.p)
        return view.transpose(1, 2)

    def heads_first(self, t: Tensor) -> Tensor:
        """(n q, g r, p) to (n, g r, q, p): one product per head."""
        return t.view(self.n, self.q, self.g * self.r, self.p).transpose(1, 2)

    def groups_first(self, t: Tensor) -> Tensor:
        """(n q, g, s) to (n, g, q, s), contiguous fp32."""
        return t.float().view(self.n, self.q, self.g, self.s).transpose(1, 2).contiguous()

    def per_head(self, t: Tensor) -> Tensor:
        """(n q, heads) to (n, heads, q), contiguous."""
        return t.view(self.n, self.q, -1).transpose(1, 2).contiguous()

    def spread(self, t: Tensor) -> Tensor:
        """(n, heads, q) to (n q, heads, 1), to scale a token's head with."""
        return t.transpose(1, 2).reshape(self.n * self.q, -1, 1)


@dataclass
class _Decays:
    """The decays of one block, from exact sums of dt A inside each chunk."""

    inside: Tensor  # (n, heads, q, q): from token j to token i of the chunk, 0 across segments
    entering: Tensor  # (n q, heads, 1): from the state entering the chunk to the token
    leaving: Tensor  # (n q, heads, 1): from the token to the state leaving the chunk
    across: Tensor  # (n, heads): from the state entering to the state leaving


def _decays(shape: _Shape, steps: Tensor, ids: Tensor, before: Tensor) -> _Decays:
    """Decays of a block.

    Args:
        shape: the block's.
        steps: (n q, heads), dt A.
        ids: (n q,), segments of the block's tokens.
        before: (), segment of the token before the block; -1 at the start.
    """
    sums = shape.per_head(steps).cumsum(-1)  # (n, heads, q)
    ids = ids.view(shape.n, shape.q)
    last = ids[:, -1:]
    previous = torch.cat([before.view(1, 1), last[:-1]])
    apart = torch.ones(shape.q, shape.q, dtype=torch.bool, device=ids.device).triu(1)
    apart = apart | (ids.unsqueeze(-1) != ids.unsqueeze(-2))
    closed = sums.new_zeros(apart.shape).masked_fill_(apart, -torch.inf)
    inside = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).add_(closed.unsqueeze(1)).exp_()
    total = sums[..., -1:]
    return _Decays(
        inside,
        shape.spread(sums.exp() * (ids == previous).unsqueeze(1)),
        shape.spread((total - sums).exp() * (ids == last).unsqueeze(1)),
        (total.exp() * (last == previous).unsqueeze(1)).squeeze(-1),
    )


def _states(
    shape: _Shape, entering: Tensor, added: Tensor, across: Tensor
) -> tuple[Tensor, Tensor]:
    """States entering each chunk of a block, and the one leaving the block.

    Args:
        shape: the block's.
        entering: (g, r p, s), the state entering the block.
        added: (n, g, r p, s), what each chunk adds.
        across: (n, heads), what a chunk leaves of the state entering it.
    """
    states, state = torch.empty_like(added), entering
    factors = across.view(shape.n, shape.g, shape.r, 1).expand(-1, -1, -1, shape.p)
    factors = factors.reshape(shape.n, shape.g, -1, 1)
    for i in range(shape.n):
        states[i] = state
        state = torch.addcmul(added[i], state, factors[i])
    return states, state


class _SSD(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dt: Tensor,
        decay: Tensor,
        b: Tensor,
        c: Tensor,
        skip: Tensor,
        ids: Tensor,
        chunk: int,
    ) -> Tensor:
        tokens, heads, p = x.shape
        g, s = b.shape[1:]
        y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        state = y.new_zeros(g, heads // g * p, s)
        before = ids.new_full((), -1)
        entering_states = []
        blocks = _blocks(tokens, chunk, heads, x.device.type == "cpu")
        for first, n, q in blocks:
            at = slice(first, first + n * q)
            shape = _Shape(n, q, g, heads // g, p, s)
            d = _decays(shape, dt[at] * decay, ids[at], before)
            bb, cc = shape.groups_first(b[at]), shape.groups_first(c[at])
            xd = x[at] * dt[at].unsqueeze(-1)
            mixed = _mix(shape, cc, bb, d.inside)
            inside = mixed @ shape.heads_first(xd)
            added = shape.tokens_first(xd * d.leaving).transpose(-1, -2) @ bb
            entering_states.append(state)
            states, state = _states(shape, state, added, d.across)
            out = y[at]
            shape.tokens_first(out).copy_(cc @ states.transpose(-1, -2))
            out.mul_(d.entering)
            shape.heads_first(out).add_(inside)
            out.addcmul_(x[at], skip.unsqueeze(-1))
            before = ids[at.stop - 1]
        ctx.save_for_backward(x, dt, decay, b, c, skip, ids, y, *entering_states)
        ctx.chunk = chunk
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, dt, decay, b, c, skip, ids, y, *entering_states = ctx.saved_tensors
        tokens, heads, p = x.shape
        g, s = b.shape[1:]
        grad_y = grads[0]
        grad_x, grad_b, grad_c = (torch.empty_like(t) for t in (x, b, c))
        grad_dt, grad_steps = torch.empty_like(dt), torch.empty_like(dt)
        grad_state = torch.zeros_like(entering_states[0])
        on_x = torch.empty_like(dt)
        blocks = _blocks(tokens, ctx.chunk, heads, x.device.type == "cpu")
        for (first, n, q), state in zip(reversed(blocks), reversed(entering_states), strict=True):
            at = slice(first, first + n * q)
            shape = _Shape(n, q, g, heads // g, p, s)
            before = ids[first - 1] if first else ids.new_full((), -1)
            d = _decays(shape, dt[at] * decay, ids[at], before)
            bb, cc = shape.groups_first(b[at]), shape.groups_first(c[at])
            xx, gy, dt_ = x[at].float(), grad_y[at], dt[at].unsqueeze(-1)
            xd = xx * dt_
            mixed = _mix(shape, cc, bb, d.inside)
            leaving = shape.tokens_first(xd * d.leaving)
            added = leaving.transpose(-1, -2) @ bb
            states, last_state = _states(shape, state, added, d.across)

            # Through the products inside chunks.
            gy_heads = shape.heads_first(gy)
            grad_xd = torch.empty_like(xd)
            shape.heads_first(grad_xd).copy_(mixed.transpose(-1, -2) @ gy_heads)
            grad_mixed = (gy_heads @ shape.heads_first(xd).transpose(-1, -2)).mul_(d.inside)
            grad_cb = grad_mixed.view(n, g, heads // g, q, q).sum(2)
            # Through the states, from the last chunk to the first.
            gy_entering = shape.tokens_first(gy * d.entering)
            grad_entering = gy_entering.transpose(-1, -2) @ cc
            grad_leaving, grad_state = _states(
                shape, grad_state, grad_entering.flip(0), d.across.flip(0)
            )
            grad_leaving = grad_leaving.flip(0)
            grad_c[at] = _tokens(grad_cb @ bb + gy_entering @ states)
            grad_b[at] = _tokens(grad_cb.transpose(-1, -2) @ cc + leaving @ grad_leaving)
            from_state = torch.empty_like(xd)
            shape.tokens_first(from_state).copy_(bb @ grad_leaving.transpose(-1, -2))
            grad_xd.addcmul_(from_state, d.leaving)

            # dt A enters as exponents: each token's sum scales what it reads and unscales what it
            # writes, a chunk's whole sum scales the state that leaves it.
            on_x[at] = (grad_xd * xx).sum(-1)
            grad_x[at] = grad_xd.mul_(dt_).addcmul_(gy, skip.unsqueeze(-1))
            gy_x = (gy * xx).sum(-1)
            grad_sums = (gy * y[at]).sum(-1) - gy_x * skip - on_x[at] * dt[at]
            after = torch.cat([states[1:], last_state.unsqueeze(0)])
            of_total = (after * grad_leaving).view(n, heads, -1).sum(-1)
            grad_sums = grad_sums.view(n, q, heads)
            grad_sums[:, -1] += of_total
            grad_steps[at] = grad_sums.flip(1).cumsum(1).flip(1).view(-1, heads)
        grad_dt = torch.addcmul(on_x, grad_steps, decay)
        grad_decay = (grad_steps * dt).sum(0)
        grad_skip = (grad_y * x).sum((0, 2))
        return grad_x, grad_dt, grad_decay, grad_b, grad_c, grad_skip, None, None


def _mix(shape: _Shape, c: Tensor, b: Tensor, inside: Tensor) -> Tensor:
    """(n, heads, q, q): how much of token j's input token i reads."""
    products = (c @ b.transpose(-1, -2)).unsqueeze(2)
    return (inside.view(shape.n, shape.g, shape.r, shape.q, shape.q) * products).flatten(1, 2)


def _tokens(t: Tensor) -> Tensor:
    """(n, g, q, s) to (n q, g, s)."""
    return t.transpose(1, 2).flatten(0, 1)
