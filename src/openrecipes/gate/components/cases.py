"""What is run of each component: inputs, the engine's kernel, the formula, and the error's size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.batch import IGNORE, Segments
from openrecipes.engine.loss import head_cross_entropy
from openrecipes.engine.model.attention import attend
from openrecipes.engine.model.moe import MoE
from openrecipes.engine.model.ssd import ssd
from openrecipes.engine.optimizer import AdamW
from openrecipes.engine.parallel.data_parallel import buckets
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.gate.components import formulas

Inputs = Mapping[str, Tensor]
Function = Callable[[Inputs], Tensor]

_LENGTHS = (70, 31, 59)  # no multiple of a chunk; segments that end inside one
_TOKENS = sum(_LENGTHS)
_MOE = NemotronHConfig.from_hf(
    {
        "model_type": "nemotron_h",
        "vocab_size": 8,
        "hidden_size": 64,
        "hybrid_override_pattern": "E",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "moe_shared_expert_intermediate_size": 32,
        "routed_scaling_factor": 2.5,
    }
)
_ADAM: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-8}
_DECAY = 0.1


@dataclass(frozen=True)
class Case:
    """One component.

    Attributes:
        inputs: fp32 tensors by name.
        engine: the engine's kernel.
        formula: the same function, plainly; called with fp64 tensors.
        rounded: inputs that have the run's precision; the others are fp32 in the engine, always.
        roundings: values rounded to the run's precision, one after another, on the longest path.
        terms: the most terms that one sum has.
        first: tokens of the first segment, whose output must not depend on the others; 0 where
            that has no meaning.
        differentiated: inputs whose gradients are compared.
    """

    inputs: Inputs
    engine: Function
    formula: Function
    rounded: frozenset[str]
    roundings: int
    terms: int
    first: int
    differentiated: tuple[str, ...]


def cases(device: torch.device | str = "cpu") -> dict[str, Case]:
    """Every component's case, by the names of ``gate.rules.COMPONENTS``; inputs on ``device``."""
    made = {
        "SSD": _ssd(),
        "attention": _attention(),
        "router and dispatch": _experts(),
        "cross entropy": _cross_entropy(),
        "optimizer": _optimizer(),
    }
    for case in made.values():
        moved = {name: tensor.to(device) for name, tensor in case.inputs.items()}
        object.__setattr__(case, "inputs", moved)
    return made


def _draw(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator)


def _ids(tokens: int) -> Tensor:
    return Segments.of(_LENGTHS).ids[:tokens]


def _segments(tokens: int, device: torch.device) -> Segments:
    return Segments.of(_LENGTHS if tokens == _TOKENS else (tokens,), device)


def _ssd() -> Case:
    draw = _draw(1)
    heads, p, groups, s = 4, 16, 2, 16
    inputs = {
        "x": draw(_TOKENS, heads, p),
        "dt": F.softplus(draw(_TOKENS, heads) - 2),
        "decay": -draw(heads).exp(),
        "b": draw(_TOKENS, groups, s),
        "c": draw(_TOKENS, groups, s),
        "skip": draw(heads),
    }

    def engine(given: Inputs) -> Tensor:
        x, dt, decay, b, c, skip = (given[name] for name in inputs)
        return ssd(x, dt, decay, b, c, skip, _ids(x.shape[0]).to(x.device))

    def formula(given: Inputs) -> Tensor:
        return formulas.scan(**given, ids=_ids(given["x"].shape[0]).to(given["x"].device))

    rounded = frozenset({"x", "b", "c"})
    return Case(inputs, engine, formula, rounded, 1, _TOKENS * s, _LENGTHS[0], tuple(inputs))


def _attention() -> Case:
    draw = _draw(2)
    inputs = {
        "q": draw(_TOKENS, 4, 16),
        "k": draw(_TOKENS, 2, 16),
        "v": draw(_TOKENS, 2, 16),
    }

    def engine(given: Inputs) -> Tensor:
        return attend(**given, segments=_segments(given["q"].shape[0], given["q"].device))

    def formula(given: Inputs) -> Tensor:
        return formulas.attention(**given, ids=_ids(given["q"].shape[0]).to(given["q"].device))

    return Case(inputs, engine, formula, frozenset(inputs), 4, _TOKENS, _LENGTHS[0], tuple(inputs))


def _experts() -> Case:
    draw = _draw(3)
    experts, h, w, shared = 8, _MOE.hidden_size, _MOE.moe_intermediate_size, 32
    names = {
        "gate.weight": draw(experts, h) / h**0.5,
        "gate.e_score_correction_bias": 0.1 * draw(experts),
        "experts.up_proj": draw(experts, w, h) / h**0.5,
        "experts.down_proj": draw(experts, h, w) / w**0.5,
        "shared_experts.up_proj.weight": draw(shared, h) / h**0.5,
        "shared_experts.down_proj.weight": draw(h, shared) / shared**0.5,
    }
    hidden = _decided(draw(4 * _TOKENS, h).bfloat16().float(), names)
    module = MoE(_MOE)

    def engine(given: Inputs) -> Tensor:
        weights = {name: given[name] for name in names}
        moved = module.to(given["hidden"].device)
        return cast(Tensor, torch.func.functional_call(moved, weights, (given["hidden"],)))

    def formula(given: Inputs) -> Tensor:
        gate, bias, up, down, shared_up, shared_down = (given[name] for name in names)
        return formulas.experts(
            given["hidden"], gate, bias, up, down, shared_up, shared_down, top_k=2, scaling=2.5
        )

    inputs = {"hidden": hidden, **names}
    rounded = frozenset(inputs) - {"gate.weight", "gate.e_score_correction_bias"}
    differentiated = tuple(name for name in inputs if "bias" not in name)
    return Case(inputs, engine, formula, rounded, 5, _TOKENS, _LENGTHS[0], differentiated)


def _decided(hidden: Tensor, names: Inputs) -> Tensor:
    """Tokens whose choice of experts is no close call, so that rounding cannot change it."""
    gate, bias = names["gate.weight"], names["gate.e_score_correction_bias"]
    scores = (hidden @ gate.T).sigmoid() + bias
    ordered = scores.sort(dim=-1, descending=True).values
    return hidden[ordered[:, 1] - ordered[:, 2] > 0.01][:_TOKENS].contiguous()


def _cross_entropy() -> Case:
    draw = _draw(4)
    vocabulary, h = 512, 64
    inputs = {"hidden": draw(_TOKENS, h), "weight": draw(vocabulary, h) / h**0.5}
    targets = (torch.arange(_TOKENS) * 2654435761) % vocabulary
    targets[::7] = IGNORE

    def engine(given: Inputs) -> Tensor:
        chosen = targets[: given["hidden"].shape[0]].to(given["hidden"].device)
        return head_cross_entropy(given["hidden"], given["weight"], chosen)

    def formula(given: Inputs) -> Tensor:
        chosen = targets[: given["hidden"].shape[0]].to(given["hidden"].device)
        return formulas.cross_entropy(given["hidden"], given["weight"], chosen, IGNORE)

    return Case(inputs, engine, formula, frozenset(inputs), 3, vocabulary, 0, tuple(inputs))


def _optimizer() -> Case:
    draw = _draw(5)
    inputs = {"matrix": draw(32, 16), "vector": draw(16)}
    gradients = [{"matrix": draw(32, 16), "vector": draw(16)} for _ in range(5)]

    def engine(given: Inputs) -> Tensor:
        model = nn.ParameterDict({n: nn.Parameter(t.detach().clone()) for n, t in given.items()})
        owned = buckets(model, Mesh.alone())
        optimizer = AdamW(owned, betas=_ADAM["betas"], eps=_ADAM["eps"], weight_decay=_DECAY)
        for gradient in gradients:
            for bucket in owned:
                for slot in bucket.slots:
                    end = slot.start + slot.parameter.numel()
                    bucket.gradients[slot.start : end] = gradient[slot.name].flatten()
            optimizer.step(_ADAM["lr"])
        masters = [bucket.master for bucket in owned]
        return torch.cat([master.flatten() for master in masters])

    def formula(given: Inputs) -> Tensor:
        # Decayed parameters lie first in the engine's buffer; one-dimensional ones are not decayed.
        parts = [("matrix", _DECAY), ("vector", 0.0)]
        updated = [
            formulas.adamw(
                given[name], [g[name].to(given[name]) for g in gradients], decay=decay, **_ADAM
            )
            for name, decay in parts
        ]
        return torch.cat([part.flatten() for part in updated])

    return Case(inputs, engine, formula, frozenset(inputs), 0, 5, 0, ())
