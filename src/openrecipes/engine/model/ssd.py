"""Mamba-2's selective scan as matrix products over chunks (state space duality), per segment.

The recurrence, for each head with its group's B and C:

    S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t + D x_t

with S zero at the start of each segment. Inside a chunk of q tokens it is a masked, decayed
attention; between chunks only the state is passed on (Dao and Gu 2024, "Transformers are SSMs",
section 6). Kept for the backward pass are the inputs, the output and the state entering each chunk;
the decay matrices are made again. All of it is fp32, on a GPU with TF32 products for a bf16 model.

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
        sums: sum of dt A from the chunk's first token on.
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
        sums, entering, leaving = (torch.empty_like(steps) for _ in range(3))
        across = []
        before = torch.cat([ids.new_full((1,), -1), ids[:-1]])
        for q in dict.fromkeys(block.q for block in blocks):
            alike = [block for block in blocks if block.q == q]
            at = slice(alike[0].first, alike[-1].end)
            part = steps[at].unflatten(0, (-1, q)).cumsum(1)
            here, total = ids[at].view(-1, q, 1), part[:, -1:]
            previous, last = before[at].view(-1, q, 1)[:, :1], here[:, -1:]
            sums[at] = part.flatten(0, 1)
            entering[at] = (part.exp() * (here == previous)).flatten(0, 1)
            leaving[at] = ((total - part).exp() * (here == last)).flatten(0, 1)
            across.append((total.exp() * (last == previous)).squeeze(1))
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

    0 above the diagonal, where the exponential of a growth would stand.
    """
    n, q, groups, r, _ = sums.shape
    rows = _per_head(sums).contiguous()  # or the result would take over its strides
    return (rows - rows.transpose(1, 2)).exp_().tril_().view(n * groups, r, q, q)


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
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    states = y.new_empty(len(across) + 1, groups, r * p, s)
    states[0] = 0
    number = 0
    for block, divided, x_, y_, b_, c_, *factors in zip(
        blocks,
        decays.divided,
        _cut(x.float().contiguous(), blocks, groups, r, p),
        _cut(y, blocks, groups, r, p),
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
        torch.addcmul(_from_heads(inside, x_), _from_groups(outside, x_), entering, out=y_)
        y_.addcmul_(x_, skip_)
        number = after
    ctx.save_for_backward(x, dt, decay, b, c, skip, y, states)
    ctx.blocks, ctx.decays = blocks, decays
    return y


def _backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    x, dt, decay, b, c, skip, y, states = ctx.saved_tensors
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
        _cut(t, blocks, groups, r, p) for t in (x.float().contiguous(), grad_y, y, grad_x)
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
        x_, gy, y_, grad_x_ = (t[index] for t in heads_wide)
        b_, c_, grad_b_, grad_c_ = (t[index] for t in states_wide)
        step, sums, entering, leaving, by_step_, by_written_, by_skip_ = (
            t[index] for t in one_wide
        )
        n = block.n
        number -= n
        bb, cc = _per_group(b_), _per_group(c_)
        written = x_ * step
        products = decays.clear(cc.bmm(bb.transpose(1, 2)), block, divided).unsqueeze(1)
        inside = _inside(sums)
        mixed = (inside * products).flatten(0, 1)

        # Through the products inside chunks.
        gy_heads = _per_head(gy)
        grad_written = mixed.transpose(1, 2).bmm(gy_heads)
        grad_mixed = gy_heads.bmm(_per_head(written).transpose(1, 2)).view_as(inside)
        grad_products = decays.clear(grad_mixed.mul_(inside).sum(1), block, divided)

        # Through the states, from the last chunk to the first.
        read = _per_group(gy * entering)
        kept = _per_group(written.mul_(leaving))
        grad_entering = read.transpose(1, 2).bmm(cc).view(n, *grad_state.shape)
        grads_leaving = [grad_state] * n
        for i in reversed(range(n)):
            grads_leaving[i] = grad_state
            grad_state = grad_entering[i].addcmul_(across[number + i], grad_state)
        grad_leaving = grads_leaving[0] if n == 1 else torch.cat(grads_leaving)
        states_in = states[number : number + n].flatten(0, 1)
        states_out = states[number + 1 : number + n + 1].flatten(0, 1)
        grad_c_.copy_(_from_groups(grad_products.bmm(bb).baddbmm_(read, states_in), c_))
        grad_products = grad_products.transpose(1, 2)
        grad_b_.copy_(_from_groups(grad_products.bmm(cc).baddbmm_(kept, grad_leaving), b_))
        by_state = _from_groups(bb.bmm(grad_leaving.transpose(1, 2)), x_)
        written_ = torch.addcmul(_from_heads(grad_written, x_), by_state, leaving)

        # A chunk's sums of dt A are exponents: a token's sum scales what it reads and unscales
        # what it writes; the last one scales the state that leaves.
        torch.sum(written_ * x_, -1, keepdim=True, out=by_written_)
        torch.sum(gy * x_, -1, keepdim=True, out=by_skip_)
        torch.sum(gy * y_, -1, keepdim=True, out=by_step_)
        by_step_.addcmul_(by_skip_, skip_, value=-1).addcmul_(by_written_, step, value=-1)
        by_step_[:, -1] += (states_out * grad_leaving).view(n, groups, r, -1).sum(-1, True)
        by_step_.copy_(by_step_.flip(1).cumsum(1).flip(1))
        grad_x_.copy_(written_.mul_(step).addcmul_(gy, skip_))
    grad_dt = torch.addcmul(by_written, by_step, decay)
    grad_decay = (by_step * dt).sum(0)
    return grad_x, grad_dt, grad_decay, grad_b, grad_c, by_skip.sum(0), None, None
