"""Mamba-2's selective scan as matrix products over chunks (state space duality), per segment.

The recurrence, for each head with its group's B and C:

    S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t + D x_t

with S zero at the start of each segment. Inside a chunk of q tokens it is a masked, decayed
attention; between chunks only the state is passed on (Dao and Gu 2024, "Transformers are SSMs",
section 6). Kept for the backward pass are the inputs, the states entering each chunk and what they
give; the decay matrices are made again.

Products are fp32, on a GPU TF32 for a bf16 model. Two things keep strongly decaying heads exact:
sums whose small differences matter (of dt A, and of its gradient) are fp64, and what a token reads
of its own input, which no decay touches, is kept out of them.

On a CPU chunks are worked on one by one: all but the states then stays in the cache, and every
operand of a product is a view. On a GPU all chunks go at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Tokens of a chunk: the decay matrices cost T x chunk x heads, the states T / chunk.
CHUNK = 64
GPU_CHUNK = 128


def ssd(
    x: Tensor,
    dt: Tensor,
    decay: Tensor,
    b: Tensor,
    c: Tensor,
    skip: Tensor,
    segment_ids: Tensor,
    chunk: int | None = None,
) -> Tensor:
    """Scan a sequence of T tokens.

    Args:
        x: (T, heads, head size).
        dt: (T, heads) fp32, time steps, not negative.
        decay: (heads,) fp32, A, negative.
        b: (T, groups, state size); head h belongs to group h // (heads / groups).
        c: like b.
        skip: (heads,) fp32, D.
        segment_ids: (T,), non-decreasing; the state is zero where it changes.
        chunk: tokens of a chunk, the device's best by default; affects speed and rounding only.

    Returns:
        (T, heads, head size), fp32.
    """
    chunk = chunk or (CHUNK if x.device.type == "cpu" else GPU_CHUNK)
    return _SSD.apply(x, dt, decay, b, c, skip, segment_ids, chunk)


@contextmanager
def _tf32(wanted: bool) -> Iterator[None]:
    """fp32 products on a GPU's tensor cores, with 10 bits where bf16 has 7."""
    if not wanted:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class _Block:
    """``n`` chunks of ``q`` tokens from token ``first`` on, worked on at once."""

    first: int
    n: int
    q: int

    @property
    def end(self) -> int:
        return self.first + self.n * self.q


def _blocks(tokens: int, chunk: int, *, one_by_one: bool) -> list[_Block]:
    """The whole sequence; tokens that do not fill a chunk are a shorter one."""
    chunks, rest = divmod(tokens, chunk)
    most = 1 if one_by_one else max(1, chunks)
    blocks = [_Block(i * chunk, min(most, chunks - i), chunk) for i in range(0, chunks, most)]
    return [*blocks, _Block(chunks * chunk, 1, rest)] if rest else blocks


def _cut(t: Tensor, blocks: list[_Block], *shape: int) -> list[Tensor]:
    """Views (n, q, *shape) of a (T, ...) tensor, one per block."""
    return [t[block.first : block.end].view(block.n, block.q, *shape) for block in blocks]


# Below, r heads of size p make a group, and a block's tokens are (n, q, groups, r, p). A product
# runs over one matrix per head or per group; with n = 1 its operands are views.


def _per_head(t: Tensor) -> Tensor:
    """(n, q, groups, r, p) to (n heads, q, p)."""
    return t.permute(0, 2, 3, 1, 4).flatten(0, 2)


def _per_group(t: Tensor) -> Tensor:
    """(n, q, groups, ...) to (n groups, q, ...), the rest as one dimension."""
    return t.flatten(3).transpose(1, 2).flatten(0, 1)


def _from_heads(t: Tensor, like: Tensor) -> Tensor:
    """(n heads, q, p) to (n, q, groups, r, p), a view."""
    n, q, groups, r, p = like.shape
    return t.view(n, groups, r, q, p).permute(0, 3, 1, 2, 4)


def _from_groups(t: Tensor, like: Tensor) -> Tensor:
    """(n groups, q, ...) to the shape (n, q, groups, ...) of ``like``, a view."""
    n, q, groups, *rest = like.shape
    return t.view(n, groups, q, *rest).transpose(1, 2)


@dataclass(frozen=True)
class _Decays:
    """What depends on dt A and the segments alone; per token (T, heads), per chunk (chunks, heads).

    Attributes:
        sums: fp64 sum of dt A from the chunk's first token on.
        entering: what is left at the token of the state entering the chunk.
        leaving: what is left of the token's input in the state leaving the chunk.
        across: what is left of the state entering the chunk in the one leaving it.
        ids: (T,), segments.
        divided: for each block, whether a segment starts inside one of its chunks.
    """

    sums: Tensor
    entering: Tensor
    leaving: Tensor
    across: Tensor
    ids: Tensor
    divided: list[bool]

    @classmethod
    def of(cls, steps: Tensor, ids: Tensor, blocks: list[_Block]) -> _Decays:
        """From dt A (T, heads)."""
        sums = torch.empty_like(steps, dtype=torch.float64)
        entering, leaving = torch.empty_like(steps), torch.empty_like(steps)
        across = []
        before = torch.cat([ids.new_full((1,), -1), ids[:-1]])
        for q in dict.fromkeys(block.q for block in blocks):
            alike = [block for block in blocks if block.q == q]
            at = slice(alike[0].first, alike[-1].end)
            part = steps[at].unflatten(0, (-1, q)).cumsum(1, dtype=torch.float64)
            here, total = ids[at].view(-1, q, 1), part[:, -1:]
            previous, last = before[at].view(-1, q, 1)[:, :1], here[:, -1:]
            sums[at] = part.flatten(0, 1)
            entering[at] = (part.exp() * (here == previous)).flatten(0, 1)
            leaving[at] = ((total - part).exp() * (here == last)).flatten(0, 1)
            across.append((total.exp() * (last == previous)).squeeze(1).float())
        return cls(sums, entering, leaving, torch.cat(across), ids, _divided(ids, blocks))

    def rows_across(self, groups: int, p: int) -> Tensor:
        """``across`` for each row of a state: (chunks, groups, r p, 1)."""
        return self.across.unflatten(1, (groups, -1)).repeat_interleave(p, 2).unsqueeze(-1)

    def clear(self, t: Tensor, block: _Block, divided: bool) -> Tensor:
        """Zero, in place, the pairs of tokens (n groups, q, q) of different segments."""
        if divided:
            ids = self.ids[block.first : block.end].view(block.n, 1, block.q)
            apart = ids.unsqueeze(-1) != ids.unsqueeze(-2)
            t.view(block.n, -1, block.q, block.q).masked_fill_(apart, 0)
        return t


def _divided(ids: Tensor, blocks: list[_Block]) -> list[bool]:
    if ids.device.type != "cpu":  # to ask would be to wait
        return [True] * len(blocks)
    ends = torch.tensor([(block.first, block.end - 1) for block in blocks])
    first, last = ids[ends].unbind(1)
    return (first != last).tolist()


def _inside(sums: Tensor) -> Tensor:
    """(n, q, groups, r, 1) to (n groups, r, q, q): what token i has left of token j's input.

    0 on the diagonal, and above it, where the exponential of a growth would stand.
    """
    n, q, groups, r, _ = sums.shape
    rows = _per_head(sums).contiguous()  # or the result would take over its strides
    exponents = torch.empty(n * groups * r, q, q, dtype=torch.float32, device=sums.device)
    torch.sub(rows, rows.transpose(1, 2), out=exponents)
    return exponents.exp_().tril_(-1).view(n * groups, r, q, q)


def _diagonal(products: Tensor, n: int) -> Tensor:
    """(n groups, q, q) to its diagonal as (n, q, groups, 1, 1): C_i . B_i."""
    q = products.shape[-1]
    return products.diagonal(dim1=1, dim2=2).reshape(n, -1, q, 1, 1).transpose(1, 2)


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
        ctx.tf32 = x.device.type != "cpu" and x.dtype != torch.float32
        with _tf32(ctx.tf32):
            return _forward(ctx, x, dt, decay, b, c, skip, ids, chunk)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with _tf32(ctx.tf32):
            return _backward(ctx, grads[0].contiguous())


def _forward(
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
    groups, s = b.shape[1:]
    r = heads // groups
    blocks = _blocks(tokens, chunk, one_by_one=x.device.type == "cpu")
    decays = _Decays.of(dt * decay, ids, blocks)
    across = decays.rows_across(groups, p)
    skip_ = skip.view(groups, r, 1)
    y, read = (torch.empty(x.shape, dtype=torch.float32, device=x.device) for _ in range(2))
    states = y.new_empty(len(across) + 1, groups, r * p, s)
    states[0] = 0
    number = 0
    for block, divided, x_, y_, read_, b_, c_, *factors in zip(
        blocks,
        decays.divided,
        _cut(x.float().contiguous(), blocks, groups, r, p),
        _cut(y, blocks, groups, r, p),
        _cut(read, blocks, groups, r, p),
        _cut(b.float().contiguous(), blocks, groups, s),
        _cut(c.float().contiguous(), blocks, groups, s),
        *(
            _cut(t, blocks, groups, r, 1)
            for t in (dt, decays.sums, decays.entering, decays.leaving)
        ),
        strict=True,
    ):
        step, sums, entering, leaving = factors
        bb, cc = _per_group(b_), _per_group(c_)
        written = x_ * step
        products = decays.clear(cc.bmm(bb.transpose(1, 2)), block, divided)
        mixed = _inside(sums).mul_(products.unsqueeze(1)).flatten(0, 1)
        inside = mixed.bmm(_per_head(written))
        # The states: first what each chunk adds, then what it leaves of the one before.
        kept = _per_group(written.mul_(leaving))
        after = number + block.n
        torch.bmm(kept.transpose(1, 2), bb, out=states[number + 1 : after + 1].flatten(0, 1))
        for i in range(number, after):
            states[i + 1].addcmul_(across[i], states[i])
        outside = cc.bmm(states[number:after].flatten(0, 1).transpose(1, 2))
        torch.mul(_from_groups(outside, x_), entering, out=read_)
        torch.add(_from_heads(inside, x_), read_, out=y_)
        y_.addcmul_(x_, torch.addcmul(skip_, _diagonal(products, block.n), step))
        number = after
    ctx.save_for_backward(x, dt, decay, b, c, skip, read, states)
    ctx.blocks, ctx.decays = blocks, decays
    return y


def _backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    x, dt, decay, b, c, skip, read, states = ctx.saved_tensors
    _, heads, p = x.shape
    groups, s = b.shape[1:]
    r = heads // groups
    blocks, decays = ctx.blocks, ctx.decays
    across = decays.rows_across(groups, p)
    skip_ = skip.view(groups, r, 1)
    grad_x, grad_b, grad_c = (
        torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, b, c)
    )
    # Each token's sums over the head size, of which dt's, A's and D's gradients are made.
    by_step, by_written, by_skip = (torch.empty_like(dt) for _ in range(3))
    grad_state = torch.zeros_like(states[0])  # of the state leaving the block
    number = len(across)
    heads_wide = [
        _cut(t, blocks, groups, r, p) for t in (x.float().contiguous(), grad_y, read, grad_x)
    ]
    states_wide = [
        _cut(t, blocks, groups, s)
        for t in (b.float().contiguous(), c.float().contiguous(), grad_b, grad_c)
    ]
    one_wide = [
        _cut(t, blocks, groups, r, 1)
        for t in (
            dt,
            decays.sums,
            decays.entering,
            decays.leaving,
            by_step,
            by_written,
            by_skip,
        )
    ]
    for index in reversed(range(len(blocks))):
        block, divided = blocks[index], decays.divided[index]
        x_, gy, read_, grad_x_ = (t[index] for t in heads_wide)
        b_, c_, grad_b_, grad_c_ = (t[index] for t in states_wide)
        step, sums, entering, leaving, by_step_, by_written_, by_skip_ = (
            t[index] for t in one_wide
        )
        n = block.n
        number -= n
        bb, cc = _per_group(b_), _per_group(c_)
        written = x_ * step
        products = decays.clear(cc.bmm(bb.transpose(1, 2)), block, divided)
        own = _diagonal(products, n)
        inside = _inside(sums)
        mixed = (inside * products.unsqueeze(1)).flatten(0, 1)

        # Through what a token reads of itself, y = (C . B dt + D) x, which no decay touches.
        torch.sum(gy * x_, -1, keepdim=True, out=by_skip_)
        grad_own = (by_skip_ * step).sum(3).transpose(1, 2).reshape(products.shape[:2])

        # Through the products inside chunks.
        gy_heads = _per_head(gy)
        inner = _from_heads(mixed.transpose(1, 2).bmm(gy_heads), x_)
        grad_mixed = gy_heads.bmm(_per_head(written).transpose(1, 2)).view_as(inside).mul_(inside)
        grad_products = decays.clear(grad_mixed.sum(1), block, divided)
        grad_products.diagonal(dim1=1, dim2=2).add_(grad_own)
        pairs = grad_mixed.mul_(products.unsqueeze(1))
        balance = pairs.sum(3, dtype=torch.float64) - pairs.sum(2, dtype=torch.float64)
        balance = balance.view(n, groups, r, -1, 1).permute(0, 3, 1, 2, 4)

        # Through the states, from the last chunk to the first.
        asked = _per_group(gy * entering)
        kept = _per_group(written.mul_(leaving))
        grad_entering = asked.transpose(1, 2).bmm(cc).view(n, *grad_state.shape)
        grads_leaving = [grad_state] * n
        for i in reversed(range(n)):
            grads_leaving[i] = grad_state
            grad_state = grad_entering[i].addcmul_(across[number + i], grad_state)
        grad_leaving = grads_leaving[0] if n == 1 else torch.cat(grads_leaving)
        states_in = states[number : number + n].flatten(0, 1)
        grad_c_.copy_(_from_groups(grad_products.bmm(bb).baddbmm_(asked, states_in), c_))
        grad_products = grad_products.transpose(1, 2)
        grad_b_.copy_(_from_groups(grad_products.bmm(cc).baddbmm_(kept, grad_leaving), b_))
        outer = _from_groups(bb.bmm(grad_leaving.transpose(1, 2)), x_) * leaving
        by_state = (outer * x_).sum(-1, keepdim=True)
        grad_written = outer.add_(inner)
        torch.sum(grad_written * x_, -1, keepdim=True, out=by_written_)
        torch.addcmul(by_written_, by_skip_, own, out=by_written_)
        coefficient = torch.addcmul(skip_, own, step)
        grad_x_.copy_(grad_written.mul_(step).addcmul_(gy, coefficient))

        # dt A of token k decays all that passes it: from earlier tokens of the chunk to k and
        # later ones, from the state to k and later ones, from earlier ones to the next state, and
        # from state to state.
        from_state = (gy * read_).sum(-1, keepdim=True)
        by_step_.copy_((balance + from_state).flip(1).cumsum(1).flip(1))
        by_step_[:, 1:] += (by_state * step).cumsum(1)[:, :-1]
        through = (states_in * grad_leaving).view(n, 1, groups, r, -1).sum(-1, keepdim=True)
        by_step_ += through * decays.across[number : number + n].view(n, 1, groups, r, 1)
    grad_dt = torch.addcmul(by_written, by_step, decay)
    grad_decay = (by_step * dt).sum(0)
    return grad_x, grad_dt, grad_decay, grad_b, grad_c, by_skip.sum(0), None, None
