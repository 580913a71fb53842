"""What a parity probe records at a step: each layer's activations and gradients, a few logits.

A probed step is slower and must not count in a rate. Norms come as sums of squares, which add over
micro-batches and ranks; `ProbeLine` takes the roots at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from openrecipes.engine.batch import Batch
from openrecipes.engine.model import NemotronH
from openrecipes.engine.parallel.pipeline import Pipeline
from openrecipes.engine.parallel.recompute import again

PROBE_TOKENS = 32
PROBE_POSITIONS = 4
PROBE_CANDIDATES = 16


class NormProbe:
    """Sums of squares of what each layer puts out and of the loss's gradient there.

    Used around the forward and backward passes of a step's micro-batches:

        with NormProbe(model) as probe:
            ...
        probe.layers()  # {layer number: (activations, gradients)}

    Args:
        model: a model, or a module that holds stages of one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._stages = [stage for stage in model.modules() if isinstance(stage, NemotronH)]
        self._handles: list[RemovableHandle] = []
        self._squares: dict[int, list[Tensor]] = {}

    def __enter__(self) -> NormProbe:
        for stage in self._stages:
            for number, layer in zip(stage.stage_layers, stage.backbone.layers, strict=True):
                self._squares[number] = [torch.zeros((), dtype=torch.float64) for _ in range(2)]
                self._handles.append(layer.register_forward_hook(self._watch(number)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def layers(self) -> dict[int, tuple[float, float]]:
        """Layer number to the sums of squares of its activations and of their gradients."""
        return {n: (float(a), float(g)) for n, (a, g) in self._squares.items()}

    def _watch(self, number: int) -> Any:
        def add(index: int, tensor: Tensor) -> None:
            self._squares[number][index] += tensor.detach().double().square().sum().cpu()

        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            if output.requires_grad and torch.is_grad_enabled() and not again():
                add(0, output)
                output.register_hook(lambda gradient: add(1, gradient))

        return hook


def probe_batch(vocabulary: int) -> Batch:
    """The fixed tokens that every run is asked about: spread over the vocabulary by a hash."""
    numbers = torch.arange(1, PROBE_TOKENS + 1, dtype=torch.int64)
    ids = (numbers * 2654435761) % 2**32 % vocabulary
    lengths = (PROBE_TOKENS,)
    return Batch(ids[None], torch.ones_like(ids)[None], lengths, lengths)


def probe_logits(
    model: NemotronH | Pipeline, device: torch.device | str = "cpu"
) -> list[list[float]]:
    """Logits after the last positions of the fixed tokens, for a few fixed candidates."""
    batch = probe_batch(model.config.vocab_size).to(device)
    candidates = batch.input_ids[0, :PROBE_CANDIDATES]
    logits = model.logits(batch)[0, -PROBE_POSITIONS:]
    return [[float(value) for value in row] for row in logits[:, candidates].cpu()]


@dataclass(frozen=True)
class ProbeLine:
    """One line of ``probe.jsonl``.

    Attributes:
        step: the training step, from 0.
        layers: layer number to the sums of squares, over all ranks.
        kinds: layer number to its letter.
        logits: from `probe_logits`, before the step's update.
    """

    step: int
    layers: Mapping[int, tuple[float, float]]
    kinds: str
    logits: list[list[float]]

    def as_json(self) -> dict[str, Any]:
        """The line's object; a value that is not finite is null."""
        return {
            "step": self.step,
            "layers": [
                {
                    "layer": number,
                    "kind": self.kinds[number],
                    "activation_norm": _finite(math.sqrt(activations)),
                    "gradient_norm": _finite(math.sqrt(gradients)),
                }
                for number, (activations, gradients) in sorted(self.layers.items())
            ],
            "logits": [[_finite(value) for value in row] for row in self.logits],
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
