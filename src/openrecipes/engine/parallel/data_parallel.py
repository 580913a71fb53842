"""Optimizer state sharded over ranks (ZeRO-1, Megatron's distributed optimizer).

Parameters that the same ranks hold (`Mesh.holders`) lie end to end in one flat buffer, their
gradients in another, and each of these ranks owns an equal slice of both. A step sums the gradients
into the owners' slices once, after the last micro-batch; each owner updates its slice of fp32
masters; then the slices are gathered again. Nothing is averaged: the loss is divided beforehand.

Every gradient element has exactly one owner, so the squared gradient norm is the plain sum of the
owners' squares over all ranks, whatever axes the parameters lie along.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from openrecipes.engine.parallel.collectives import gather, sum_, sum_shard
from openrecipes.engine.parallel.mesh import Axis, Mesh
from openrecipes.engine.parallel.parts import held


@dataclass(frozen=True, eq=False)
class Slot:
    """Where a parameter lies in its bucket: elements ``start`` to ``start`` + numel - 1."""

    name: str
    parameter: nn.Parameter
    start: int


class Bucket:
    """Parameters of one dtype that the same ranks hold.

    Args:
        named: the parameters; those with weight decay come to lie first.
        axis: their holders: gradients are summed along it, state is sharded over it.

    Attributes:
        weights: all parameters, flat, in their dtype; the parameters are views of it.
        gradients: their gradients, flat, fp32; micro-batches add up in it.
        master: this rank's slice of the weights, fp32 (the weights themselves where they are fp32).
        gradient: this rank's slice of the summed gradients.
        decayed: how many elements of the slice have weight decay.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], axis: Axis) -> None:
        self.axis = axis
        ordered = sorted(named, key=lambda item: not decays(*item))
        self.slots: list[Slot] = []
        size = decayed = 0
        for name, parameter in ordered:
            self.slots.append(Slot(name, parameter, size))
            size += parameter.numel()
            decayed = size if decays(name, parameter) else decayed
        first = ordered[0][1]
        self.held = -(-size // axis.size)
        self.start = axis.rank * self.held
        self.weights = torch.zeros(self.held * axis.size, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros_like(self.weights, dtype=torch.float32)
        for slot in self.slots:
            self._adopt(slot)
        own = slice(self.start, self.start + self.held)
        alone = axis.size == 1
        self.gradient = self.gradients if alone else torch.zeros_like(self.gradients[own])
        self.master = self.weights[own]
        if first.dtype != torch.float32:
            self.master = self.master.float()
        self.decayed = min(max(decayed - self.start, 0), self.held)

    def _adopt(self, slot: Slot) -> None:
        """Make the parameter a view of the flat weights and let its gradients add up in fp32."""
        parameter, end = slot.parameter, slot.start + slot.parameter.numel()
        place = self.weights[slot.start : end].view(parameter.shape)
        place.copy_(parameter.detach())
        parameter.data = place
        gradient = self.gradients[slot.start : end].view(parameter.shape)
        if parameter.dtype == torch.float32:
            parameter.grad = gradient  # autograd adds to a gradient that is there, in place
            return

        def add(finished: Tensor) -> None:
            if finished.grad is not None:
                gradient.add_(finished.grad)
                finished.grad = None

        parameter.register_post_accumulate_grad_hook(add)

    def reduce(self) -> None:
        """Sum the gradients of all ranks into their owners' slices."""
        sum_shard(self.gradients, self.gradient, self.axis)

    def publish(self) -> None:
        """Bring every rank the owners' new weights."""
        own = self.weights[self.start : self.start + self.held]
        if self.master.dtype != own.dtype:
            own.copy_(self.master)
        # gloo and NCCL both gather in place; a copy keeps input and output apart all the same
        gather(self.weights, own.clone() if self.axis.size > 1 else own, self.axis)

    def zero(self) -> None:
        """Begin a step."""
        self.gradients.zero_()


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: not to biases, nor to what has one dimension (norms, A_log)."""
    return parameter.dim() > 1 and not name.endswith("bias")


def buckets(model: nn.Module, mesh: Mesh) -> list[Bucket]:
    """The trainable parameters of ``model``, by the ranks that hold the same part, dtypes apart."""
    groups: dict[tuple[Axis, torch.dtype], list[tuple[str, nn.Parameter]]] = {}
    for part in held(model, mesh):
        if isinstance(part.tensor, nn.Parameter) and part.tensor.requires_grad:
            key = (mesh.holders(part.placement), part.tensor.dtype)
            groups.setdefault(key, []).append((part.name, part.tensor))
    return [Bucket(named, axis) for (axis, _), named in groups.items()]


_NORM_ELEMENTS = 2**20  # summed at a time: fp64 squares of a whole bucket would be twice its size


def gradient_norm(owned: Iterable[Bucket], mesh: Mesh) -> float:
    """The L2 norm of the whole gradient, fp64; every element counted once, at its owner."""
    squares = [
        torch.linalg.vector_norm(part, dtype=torch.float64) ** 2
        for b in owned
        for part in b.gradient.split(_NORM_ELEMENTS)
    ]
    return float(sum_(torch.stack(squares).sum(0, keepdim=True), mesh.world).sqrt())
