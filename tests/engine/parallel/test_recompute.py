"""What is recomputed is what the flags say, and no decision is made twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.model import NemotronH, attention, mamba, moe
from openrecipes.engine.model.norm import RMSNorm
from openrecipes.engine.parallel import collectives
from openrecipes.engine.parallel.mesh import Mesh
from openrecipes.engine.parallel.parts import build
from openrecipes.layouts.recompute import effective_recompute
from tests.engine.parallel.matrix import RECOMPUTES, run
from tests.engine.parallel.trial import MODELS, layout, recompute, rows, values
from tests.engine.step.gang import Gang

#: The test model has M E * E - M: calls of one forward pass.
ONCE = {"scan": 2, "attend": 1, "experts": 2, "mlp": 3, "norm": 7, "choose": 2}


@pytest.mark.parametrize(
    ("modules", "twice"),
    [
        ((), {}),
        (("core_attn",), {"attend": 1}),
        (("mamba",), {"scan": 2}),
        (("mlp",), {"mlp": 1}),
        (("shared_experts",), {"mlp": 2}),
        (("moe",), {"experts": 2, "mlp": 2}),
        (("layernorm",), {"norm": 6}),
        (("moe_act", "mla_up_proj"), {}),
        (("moe", "shared_experts", "layernorm"), {"experts": 2, "mlp": 2, "norm": 6}),
    ],
)
def test_selective_recomputes_the_named_modules(
    modules: tuple[str, ...], twice: dict[str, int]
) -> None:
    with counted() as calls:
        step(layout(recompute=recompute(*modules)))
    assert calls == Counter(ONCE) + Counter(twice)


@pytest.mark.parametrize(
    ("name", "twice"),
    [
        ("full, uniform, 1", {"scan": 2, "attend": 1, "experts": 2, "mlp": 3, "norm": 6}),
        ("full, uniform, 2", {"scan": 2, "attend": 1, "experts": 2, "mlp": 3, "norm": 6}),
        ("full, block, 3", {"scan": 1, "attend": 1, "experts": 1, "mlp": 1, "norm": 3}),
    ],
)
def test_full_recomputes_layers_but_not_what_was_decided(name: str, twice: dict[str, int]) -> None:
    with counted() as calls:
        step(layout(recompute=RECOMPUTES[name]))
    assert calls == Counter(ONCE) + Counter(twice)


def test_without_gradients_nothing_is_recomputed() -> None:
    with counted() as calls, torch.no_grad():
        step(layout(recompute=RECOMPUTES["full, uniform, 1"]))
    assert calls == Counter(ONCE)


@pytest.mark.parametrize("name", ["full, uniform, 1", "moe mamba layernorm", "layernorm"])
def test_less_is_kept(name: str) -> None:
    assert kept_bytes(layout(recompute=RECOMPUTES[name])) < kept_bytes(layout())


def test_a_unit_of_more_layers_keeps_less() -> None:
    one = kept_bytes(layout(recompute=RECOMPUTES["full, uniform, 1"]))
    assert kept_bytes(layout(recompute=RECOMPUTES["full, uniform, 2"])) < one


@pytest.mark.parametrize(("model", "way_back"), [("no latent", 0), ("moe", 1)])
def test_collectives_are_repeated_only_where_they_must(
    two: Gang, model: str, way_back: int
) -> None:
    """Tokens and weights travel again; the way back only where the latent projection reads it."""

    def sent(name: str) -> Counter[str]:
        chosen = replace(run("TP2 EP2 ETP1", name), model=model)
        found: Counter[str] = two.run(count_collectives, chosen)[0]
        return found

    plain = sent("none")
    moe_layers, shared_matrices = 2, 4 + 2
    travel = moe_layers * (2 + way_back)
    # What entered a unit is there: only the shared experts inside it join tokens again, and sum
    # them, as they come before the routed ones. Sizes are not exchanged again.
    again = Counter(join=moe_layers, sum=moe_layers, exchange=travel)
    assert sent("moe core_attn") - plain == again
    # Only a layer's own tokens are there: all blocks join them again, but do not sum at the end.
    again["join"] = shared_matrices
    assert sent("full, uniform, 1") - plain == again
    assert sent("mamba mlp shared_experts") == plain


@pytest.mark.parametrize(
    ("modules", "layers"),
    [
        (("moe_act", "mla_up_proj"), {"M": "none", "E": "selective", "*": "none", "-": "none"}),
        (("mamba",), {"M": "selective", "E": "none", "*": "none", "-": "none"}),
    ],
)
def test_the_record_names_what_is_in_force(
    modules: tuple[str, ...], layers: dict[str, str]
) -> None:
    found = effective_recompute(layout(recompute=recompute(*modules)), "native", "ME*E-M")
    assert found["layers"] == layers
    assert found["modules"] == [name for name in modules if name != "mla_up_proj"]


def step(chosen: Any) -> NemotronH:
    config = NemotronHConfig.from_hf(MODELS["moe"])
    model = build(config, Mesh.build(chosen), values(config))
    loss, _ = model(rows(1, config.vocab_size, False)[0])
    if loss.requires_grad:
        loss.backward()
    return model


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Calls of the model's parts."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **named)

        return call

    places = [
        (mamba, "ssd", "scan"),
        (attention, "_causal", "attend"),
        (moe.Experts, "compute", "experts"),
        (moe.MLP, "forward", "mlp"),
        (moe.Router, "choose", "choose"),
        (RMSNorm, "forward", "norm"),
    ]
    with pytest.MonkeyPatch.context() as patched:
        for owner, attribute, name in places:
            patched.setattr(owner, attribute, counting(name, getattr(owner, attribute)))
        yield calls


def kept_bytes(chosen: Any) -> int:
    """Bytes of storages that autograd holds after a forward pass, weights left out."""
    config = NemotronHConfig.from_hf(MODELS["moe"])
    model = build(config, Mesh.build(chosen), values(config))
    alive: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        alive[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(rows(1, config.vocab_size, False)[0])
    return sum(size for place, size in alive.items() if place not in weights)


def count_collectives(chosen: Any) -> Counter[str]:
    """Collectives of one forward and backward pass on this rank."""
    config = NemotronHConfig.from_hf(MODELS[chosen.model])
    model = build(config, Mesh.build(chosen.layout), values(config))
    batch = rows(1, config.vocab_size, False)[0]
    calls: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return function(*arguments)

        return call

    names = {"_join": "join", "_sum_part": "sum", "_all_to_all": "exchange"}
    with pytest.MonkeyPatch.context() as patched:
        for attribute, name in names.items():
            patched.setattr(collectives, attribute, counting(name, getattr(collectives, attribute)))
        loss, _ = model(batch)
        loss.backward()
    return calls
