"""Activations computed again in the backward pass instead of being kept, as the flags say.

    full, uniform, N    every N layers are one unit that keeps only its input
    full, block, N      the first N layers of the stage are such units, the others keep everything
    selective           only the named modules:
        core_attn       attention between its projections
        layernorm       the norm before each mixer: its output is made again where it is needed
        mlp             dense MLP layers
        moe             whole mixture-of-experts layers
        shared_experts  the shared expert in them
        mamba           Mamba mixers
        moe_act         the experts' activation: this engine never keeps it, with or without

What a unit keeps is what enters its ``forward``, after the tokens of a tensor parallel block were
joined (a hook before it): that collective is not done twice. Those inside a unit are, except the
last one, behind which nothing is needed.

**Decisions are never made twice.** Which experts a token goes to, and how many tokens travel, is
written down in the first pass and read in the second (`decided`), so a tie or a rounding cannot
route a token elsewhere, and the ranks need not tell each other the sizes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from openrecipes.architectures.nemotron_h import MAMBA, MOE
from openrecipes.architectures.nemotron_h import MLP as DENSE
from openrecipes.engine.batch import Segments
from openrecipes.engine.model.attention import Attention
from openrecipes.engine.model.moe import MoE, Router
from openrecipes.engine.model.nemotron_h import Block, NemotronH
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.parallel.tensor_parallel import Region, enters
from openrecipes.layouts.recompute import DEFAULT_MODULES

T = TypeVar("T")
Forward = Callable[..., Any]


class _Tape:
    """The decisions of one unit's first pass."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.left: deque[Any] | None = None  # in a second pass: what is still to be read


_tape: ContextVar[_Tape | None] = ContextVar("tape", default=None)


def decided(decide: Callable[[], T]) -> T:
    """What ``decide`` says; inside a recomputed unit it is asked in the first pass only."""
    tape = _tape.get()
    if tape is None:
        return decide()
    if tape.left is None:
        tape.kept.append(decide())
        return cast(T, tape.kept[-1])
    return cast(T, tape.left.popleft())


def again() -> bool:
    """Whether what runs now runs for the second time."""
    tape = _tape.get()
    return tape is not None and tape.left is not None


@contextmanager
def _with(tape: _Tape, *, again: bool) -> Iterator[None]:
    tape.left = deque(tape.kept) if again else None
    token = _tape.set(tape)
    try:
        yield
    finally:
        _tape.reset(token)


def recomputed(forward: Forward) -> Forward:
    """The same function; in training it keeps its inputs only, and is computed again."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        tape = _Tape()
        return _with(tape, again=False), _with(tape, again=True)

    def run(*arguments: Any) -> Any:
        if not torch.is_grad_enabled() or _tape.get() is not None:  # an outer unit does it
            return forward(*arguments)
        return checkpoint(
            forward,
            *arguments,
            use_reentrant=False,
            preserve_rng_state=False,  # nothing here is random
            context_fn=contexts,
        )

    return run


def recompute(model: NemotronH, mesh: Mesh) -> None:
    """Make a stage recompute what its layout asks for; everything else must be in place already."""
    asked = mesh.layout.recompute
    if asked is None:
        return
    for module in model.modules():
        if isinstance(module, Router):
            _replace(module, "choose", _remembering(module.choose))
    if asked.granularity == "full":
        unit = asked.num_layers or 1
        _replace(model, "run", _in_units(model, unit, only_first=asked.method == "block"))
    else:
        named = DEFAULT_MODULES if asked.modules is None else asked.modules
        for layer in model.backbone.layers:
            _selective(cast(Block, layer), named, Region.of(mesh))


def _replace(owner: nn.Module, name: str, function: Forward) -> None:
    setattr(owner, name, function)


def _remembering(choose: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda scores: decided(lambda: choose(scores))


def _in_units(
    model: NemotronH, unit: int, *, only_first: bool
) -> Callable[[Tensor, Segments], Tensor]:
    layers = list(model.backbone.layers)

    def through(some: list[nn.Module]) -> Forward:
        def forward(hidden: Tensor, segments: Segments) -> Tensor:
            for layer in some:
                hidden = layer(hidden, segments)
            return hidden

        return forward

    if only_first:
        units = [recomputed(through([layer])) for layer in layers[:unit]]
        units.append(through(layers[unit:]))
    else:
        starts = range(0, len(layers), unit)
        units = [recomputed(through(layers[start : start + unit])) for start in starts]

    def run(hidden: Tensor, segments: Segments) -> Tensor:
        for forward in units:
            hidden = forward(hidden, segments)
        return hidden

    return run


def _selective(layer: Block, named: Collection[str], region: Region) -> None:
    mixer = layer.mixer
    whole = {MAMBA: "mamba", DENSE: "mlp", MOE: "moe"}.get(layer.kind)
    if whole in named:
        unit = layer if "layernorm" in named else mixer
        _replace(unit, "forward", recomputed(unit.forward))
        return
    if "core_attn" in named and isinstance(mixer, Attention):
        _replace(mixer, "attend", recomputed(mixer.attend))
    if "shared_experts" in named and isinstance(mixer, MoE):
        _replace(mixer.shared_experts, "forward", recomputed(mixer.shared_experts.forward))
    if "layernorm" in named:
        _replace(layer, "forward", _Forgetful(layer, region).forward)


class _Forgetful:
    """A layer that does not keep its norm's output: whoever wants it back gets it made again.

    Its users are found by the memory that they keep: the norm's output itself, or, where tokens
    are joined on the way into shared matrices, the joined tokens; these are joined again too. What
    was made again is held until the norm's gradient is known, as several projections ask for it.

    Args:
        layer: the layer.
        region: what joins tokens.
    """

    def __init__(self, layer: Block, region: Region) -> None:
        self.layer = layer
        self.region = region
        self.joined: dict[_Memory, bool] = {}
        if region.axis.size > 1:
            for module in layer.modules():
                if enters(module):
                    module.register_forward_pre_hook(self._note)

    def _note(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.joined[_memory(arguments[0])] = True

    def forward(self, hidden: Tensor, segments: Segments) -> Tensor:
        """As the layer's own."""
        if not torch.is_grad_enabled():
            return Block.forward(self.layer, hidden, segments)
        normalised = self.layer.norm(hidden)
        entering = hidden.detach()
        found = self.joined = {_memory(normalised): False}
        again: dict[bool, Tensor] = {}

        def pack(kept: Tensor) -> Tensor | bool:
            return found.get(_memory(kept), kept)

        def unpack(kept: Tensor | bool) -> Tensor:
            if isinstance(kept, Tensor):
                return kept
            if kept not in again:
                with torch.no_grad():
                    made = self.layer.norm(entering)
                    again[kept] = self.region.enter(made) if kept else made
            return again[kept]

        normalised.register_hook(lambda gradient: again.clear())
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return hidden + self.layer.mixer(normalised, segments)


_Memory = tuple[int, torch.Size, tuple[int, ...], torch.dtype]


def _memory(tensor: Tensor) -> _Memory:
    """What tells a tensor from all others that are alive."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
