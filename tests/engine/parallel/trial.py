"""A small model trained for some steps in some layout: what the tests and the benchmark compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.batch import Batch
from openrecipes.engine.microbatches import Cutting
from openrecipes.engine.model import initial_value
from openrecipes.engine.model.moe import Router
from openrecipes.engine.parallel import context_parallel, expert_parallel, parts
from openrecipes.engine.parallel.collectives import gather
from openrecipes.engine.parallel.mesh import Axis, Mesh
from openrecipes.engine.parallel.parts import Read
from openrecipes.engine.parallel.pipeline import build_stages
from openrecipes.engine.parallel.placement import Placement, cut
from openrecipes.engine.parallel.tensor_parallel import Region
from openrecipes.engine.parallel.whole import whole_tensors
from openrecipes.engine.schedule import Schedule
from openrecipes.engine.step import Trainer
from openrecipes.layouts.grid import Coordinates, RankGrid
from openrecipes.layouts.layout import Layout
from openrecipes.layouts.memory import Recompute

#: All kinds of layers, biases everywhere, a latent space; key-value heads and groups are few.
MOE: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "ME*E-M",
    "vocab_size": 96,
    "initializer_range": 0.15,
    "hidden_size": 32,
    "mamba_num_heads": 8,
    "mamba_head_dim": 4,
    "n_groups": 2,
    "ssm_state_size": 8,
    "conv_kernel": 4,
    "chunk_size": 16,
    "use_bias": True,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "attention_bias": True,
    "intermediate_size": 48,
    "mlp_bias": True,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 32,
    "moe_latent_size": 16,
    "routed_scaling_factor": 2.5,
}
DENSE = MOE | {"hybrid_override_pattern": "M-*M"}
#: Nano and Super made small: the order of layers, eight groups, two key-value heads, no biases.
NANO = MOE | {
    "hybrid_override_pattern": "MEM*EM*E",
    "initializer_range": 0.1,  # at 0.15 eight layers are near chaos: 6e-6 from reordering alone
    "n_groups": 8,
    "use_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "n_routed_experts": 16,
    "num_experts_per_tok": 6,
    "moe_latent_size": None,
}
SUPER = NANO | {
    "mamba_num_heads": 16,
    "num_attention_heads": 8,
    "n_routed_experts": 32,
    "num_experts_per_tok": 8,
    "moe_latent_size": 16,
    "routed_scaling_factor": 5.0,
}
MODELS = {
    "moe": MOE,
    "dense": DENSE,
    "no latent": MOE | {"moe_latent_size": None},
    "nano": NANO,
    "super": SUPER,
    "wide": MOE | {"n_groups": 4, "moe_intermediate_size": 32},
}


#: Nearest to another choice of experts that a token may come: rounding moves scores by 1e-7, and
#: by 1e-6 after some layers.
MARGIN = 5e-6


@dataclass(frozen=True)
class Run:
    """How to train: model, layout, rows, and a fault to plant."""

    layout: Layout
    model: str = "moe"
    steps: int = 10
    batch: int = 4
    rows_per_microbatch: int = 1
    ragged: bool = False
    seed: int = 3
    bf16: bool = False
    fault: str | None = None


@dataclass
class Outcome:
    """What a run came to.

    ``margin`` is how near a token came to another choice of experts: where rounding changes a
    choice, two trainings part without a fault.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    supervised: list[int] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    margin: float = 1.0


def layout(**sizes: Any) -> Layout:
    """A layout from the sizes above 1; the expert tensor size is given or 1."""
    return Layout(**{"tp": 1, "pp": 1, "ep": 1, "etp": 1, "dp": 1, **sizes})


def without_ties(run: Run, one_process: Callable[[Run], Outcome]) -> Run:
    """The run on rows where no token is so near two choices of experts that rounding decides.

    Args:
        one_process: trains on one process.
    """
    for seed in range(3, 20):
        seeded = replace(run, seed=seed)
        if one_process(alone(seeded)).margin > MARGIN:
            return seeded
    raise RuntimeError("no rows without ties")


def alone(run: Run) -> Run:
    """The same training on one process, a row at a time."""
    return replace(run, layout=layout(), rows_per_microbatch=1, fault=None)


def recompute(*modules: str) -> Recompute:
    """Selective recompute of these modules."""
    return Recompute(granularity="selective", modules=modules)


def full(layers: int = 1, method: Any = "uniform") -> Recompute:
    """Full recompute."""
    return Recompute(granularity="full", method=method, num_layers=layers)


def train(run: Run) -> Outcome:
    """Train in this process, or as one rank of its process group."""
    with planted(run.fault):
        return _train(run)


def _train(run: Run) -> Outcome:
    mesh = Mesh.build(run.layout)
    config = NemotronHConfig.from_hf(MODELS[run.model])
    dtype = torch.bfloat16 if run.bf16 else torch.float32
    model = build_stages(config, mesh, values(config), dtype=dtype)
    trainer = Trainer(
        model,
        mesh,
        Schedule(1e-4, 1e-4, "constant", 0, 1e9, run.batch),
        betas=(0.9, 0.98),
        weight_decay=0.1,
    )
    data = rows(run.batch * run.steps, config.vocab_size, run.ragged, run.seed)
    cutting = Cutting(mesh.dp.size, run.rows_per_microbatch)
    outcome = Outcome()
    for module in model.modules():
        if isinstance(module, Router):
            module.register_forward_hook(_watch_margin(outcome))
    for number in range(run.steps):
        step = data[number * run.batch : (number + 1) * run.batch]
        cuts = cutting.cut([row.input_ids.shape[1] for row in step])[mesh.dp.rank]
        result = trainer.step(number, [join([step[i] for i in micro]) for micro in cuts])
        if number == 0:
            outcome.gradients = whole_gradients(trainer, mesh)
        outcome.losses.append(result.loss)
        outcome.norms.append(result.grad_norm)
        outcome.supervised.append(result.supervised_tokens)
    outcome.weights = whole_tensors(model, mesh)
    return outcome


def values(config: NemotronHConfig, seed: int = 7) -> Read:
    """Random weights as the engine's own, but nothing at 0 or 1: biases, norms and D too."""

    def read(name: str, shape: torch.Size, slices: tuple[slice, ...]) -> Tensor:
        whole = initial_value(config, name, shape, seed)
        noise = initial_value(config, f"{name}.noise", shape, seed)
        if len(shape) == 1:
            whole = whole + noise * (0.1 if name.endswith("correction_bias") else 0.5)
        return cut(whole, slices)

    return read


def _watch_margin(outcome: Outcome) -> Any:
    def hook(router: Router, arguments: tuple[Tensor], _: Any) -> None:
        with torch.no_grad():
            scores = (arguments[0].float() @ router.weight.float().t()).sigmoid()
            best = (scores + router.e_score_correction_bias).topk(router.top_k + 1).values
            outcome.margin = min(outcome.margin, float((best[:, -2] - best[:, -1]).min()))

    return hook


def rows(count: int, words: int, ragged: bool, seed: int = 3) -> list[Batch]:
    """Random rows, some of two documents, that differ in how much of them is supervised."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        length = 40 if not ragged else 17 + (number * 13) % 40
        ids = torch.randint(words, (1, length), generator=generator)
        mask = torch.rand(1, length, generator=generator) < 0.2 + 0.7 * (number % 4) / 3
        mask[0, 1] = True
        documents = (length - 9, 9) if number % 3 == 1 else (length,)
        made.append(Batch(ids, mask.to(torch.uint8), documents, (length,)))
    return made


def join(parts: list[Batch]) -> Batch:
    """Rows laid end to end."""
    return Batch(
        torch.cat([part.input_ids for part in parts], 1),
        torch.cat([part.loss_mask for part in parts], 1),
        tuple(n for part in parts for n in part.segment_lengths),
        tuple(n for part in parts for n in part.row_lengths),
    )


def whole_gradients(trainer: Trainer, mesh: Mesh) -> dict[str, Tensor]:
    """The last step's gradients (clipped), by parameter, of the whole model."""
    local: dict[int, Tensor] = {}
    for bucket in trainer.buckets:
        flat = bucket.gradient.clone()
        if bucket.axis.size > 1:
            flat = torch.empty_like(bucket.gradients)
            gather(flat, bucket.gradient, bucket.axis)
        for slot in bucket.slots:
            end = slot.start + slot.parameter.numel()
            local[id(slot.parameter)] = flat[slot.start : end].view(slot.parameter.shape)
    return whole_tensors(trainer.model, mesh, local)


@contextmanager
def planted(fault: str | None) -> Iterator[None]:
    """Put a fault into this process while the block runs."""
    patches: dict[str, Any] = {
        "tp: norms not summed": lambda: patch.object(Mesh, "holders", _by_data),
        "tp: norms counted twice": lambda: patch.object(
            parts, "share_repeated_gradient", lambda parameter, mesh: None
        ),
        "tp: output not summed": lambda: patch.object(Region, "leave", _without_sum),
        "cp: heads in another order": lambda: patch.object(
            context_parallel, "tokens_for_heads", _other_order
        ),
        "etp: one part forgotten": lambda: patch.object(
            expert_parallel.SpreadExperts, "_sum_parts", _first_part
        ),
        "ep: wrong rank in the expert grid": lambda: patch.object(
            RankGrid, "coordinates", _experts_inside_out
        ),
        "dp: lost micro-batch": lambda: patch.object(Cutting, "cut", _lose_one),
    }
    with patches[fault]() if fault else nullcontext():
        yield


def _by_data(self: Mesh, placement: Placement, holders: Any = Mesh.holders) -> Axis:
    return holders(self, placement) if placement.splits else self.data


def _without_sum(self: Region, partial: Tensor) -> Tensor:
    share = partial.shape[0] // self.axis.size
    return partial[self.axis.rank * share : (self.axis.rank + 1) * share] * self.axis.size


def _other_order(heads: Tensor, axis: Axis, way: Any = context_parallel.tokens_for_heads) -> Any:
    return way(heads, axis).unflatten(1, (axis.size, -1)).flip(1).flatten(1)


def _first_part(self: Any, out: Tensor, send: list[int]) -> Tensor:
    return torch.cat(out.split(send)[:: self.parts]) * self.parts


def _experts_inside_out(
    self: RankGrid, rank: int, coordinates: Any = RankGrid.coordinates
) -> Coordinates:
    place = coordinates(self, rank)
    return replace(place, ep=self.layout.ep - 1 - place.ep)


def _lose_one(self: Cutting, lengths: Any, cut: Any = Cutting.cut) -> Any:
    return [micro[:-1] for micro in cut(self, lengths)]
