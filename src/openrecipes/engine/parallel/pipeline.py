"""Layers in stages on other ranks: micro-batches passed from stage to stage, forward and back.

`pipeline_schedule` says who does what in which order; here it is done. All stages of a pipeline
have the same rows, so each knows the shape of what comes next from its own copy of the micro-batch:
neither shapes nor counts need be equal within a step or from step to step. Between stages hidden
travels as it lies between blocks: each rank's own tokens, to the rank that has the same place on
tp, cp and dp.

A stage keeps of a forward what autograd kept of it and what came in. Its output is only sent: the
backward starts from the output's place in the graph.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.batch import Batch
from openrecipes.engine.model import NemotronH
from openrecipes.engine.model.norm import RMSNorm
from openrecipes.engine.parallel.collectives import sum_
from openrecipes.engine.parallel.mesh import Axis, Mesh
from openrecipes.engine.parallel.parts import Read, build
from openrecipes.engine.parallel.pipeline_schedule import Pass, Shape, Turn, Way, turns

#: Results that may be under way before their sender waits for the oldest to arrive.
_MOST_UNDER_WAY = 4


class Stages(nn.Module):
    """The stages of a model that one rank holds, first to last."""

    def __init__(self, stages: Sequence[NemotronH]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)


def build_stages(
    config: NemotronHConfig,
    mesh: Mesh,
    read: Read,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> NemotronH | Stages:
    """This rank's part of a model: of the model itself, or with PP of the rank's stages.

    Args:
        config, mesh, read, dtype, device: as for `parts.build`.
    """
    stages = [
        build(config, mesh, read, dtype=dtype, device=device, layers=layers)
        for layers in mesh.grid.chunks(mesh.pp.rank, config.num_hidden_layers)
    ]
    return Stages(stages) if mesh.pp.size > 1 else stages[0]


#: What the last stage makes of its hidden.
_End = Callable[[NemotronH, Tensor, Batch], Tensor]


class Pipeline:
    """Runs micro-batches through the stages of all ranks of ``pp``; they act together.

    Args:
        stages: what this rank holds.
        mesh: this rank's place, with PP above 1.
    """

    def __init__(self, stages: Stages, mesh: Mesh) -> None:
        self.stages = [stage for stage in stages.stages if isinstance(stage, NemotronH)]
        self.config = self.stages[0].config
        self.mesh = mesh
        self.shape = Shape(mesh.pp.size, len(self.stages))
        # Every stage has a layer, every layer a norm, in the dtype that hidden has.
        norm = next(m for m in self.stages[0].modules() if isinstance(m, RMSNorm))
        self._dtype, self._device = norm.weight.dtype, norm.weight.device
        # NCCL wants all ranks in a group's first call, and not all have mail in the first turn.
        sum_(torch.zeros(1, device=self._device), mesh.pp)

    def train(
        self,
        batches: Sequence[Batch],
        supervised: int,
        entering: Callable[[Way], None],
        passed: Callable[[NemotronH], None],
    ) -> Tensor:
        """Add a step's gradients to those of this rank's parameters.

        Args:
            batches: the micro-batches, padded; the same on all ranks of ``pp``.
            supervised: what the loss is divided by.
            entering: told before each pass which way it goes.
            passed: told after each forward which stage it went through.

        Returns:
            the summed loss, () fp64; 0 where the head is not.
        """
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        share = torch.ones((), device=self._device) / supervised
        kept: dict[tuple[int, int], tuple[Tensor | None, GradientEdge]] = {}

        def work(this: Pass, came: Tensor | None) -> Tensor | None:
            entering(this.way)
            key = (this.stage, this.micro)
            if this.way == "backward":
                entered, out = kept.pop(key)
                torch.autograd.backward(out, share if came is None else came)
                return None if entered is None else entered.grad
            result = self._forward(this, batches[this.micro], came, _loss)
            kept[key] = came, get_gradient_edge(result)
            passed(self._stage(this))
            if this.stage == self.shape.last:
                total.add_(result.detach())
            return result.detach()

        self._run(batches, work, train=True)
        return total

    @torch.no_grad()
    def losses(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Each micro-batch's summed loss, () fp32, without learning; 0 where the head is not."""
        return self._ends(batches, _loss)

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """As `NemotronH.logits`, the same on all ranks of ``pp``. For probes."""
        (found,) = self._ends([batch], _logits)
        shape = (1, batch.input_ids.shape[1], self.config.vocab_size)
        return sum_(found.expand(shape).contiguous(), self.mesh.pp)

    def _ends(self, batches: Sequence[Batch], end: _End) -> list[Tensor]:
        """What ``end`` makes of each micro-batch on the last stage; zeros () elsewhere."""
        found = [torch.zeros((), device=self._device) for _ in batches]

        def work(this: Pass, came: Tensor | None) -> Tensor:
            result = self._forward(this, batches[this.micro], came, end)
            if this.stage == self.shape.last:
                found[this.micro] = result
            return result

        self._run(batches, work, train=False)
        return found

    def _forward(self, this: Pass, batch: Batch, came: Tensor | None, end: _End) -> Tensor:
        """One stage, on the embedded tokens or on what came: hidden, or at the last stage its end.

        What came is a leaf of the graph: its gradient is what goes back.
        """
        stage = self._stage(this)
        if came is not None:
            came.requires_grad_(torch.is_grad_enabled())
        hidden = stage.run(stage.embed(batch) if came is None else came, batch.segments())
        return end(stage, hidden, batch) if this.stage == self.shape.last else hidden

    def _run(
        self,
        batches: Sequence[Batch],
        work: Callable[[Pass, Tensor | None], Tensor | None],
        *,
        train: bool,
    ) -> None:
        """This rank's turns; ``work`` gets a pass with what came for it and gives its result."""

        def room(coming: Pass) -> Tensor:
            tokens = batches[coming.micro].input_ids.shape[1] // self.mesh.token_parts
            size = (tokens, self.config.hidden_size)
            return torch.empty(size, dtype=self._dtype, device=self._device)

        mail = _Mail(self.mesh.pp, self.shape, room)
        for turn in turns(self.shape, len(batches), train=train)[self.mesh.pp.rank]:
            result = None
            if turn.work is not None:
                giver = self.shape.giver(turn.work)
                result = work(turn.work, None if giver is None else mail.take(giver))
            mail.exchange(turn, result)
        mail.settle()

    def _stage(self, this: Pass) -> NemotronH:
        return self.stages[this.stage // self.shape.ranks]


def _loss(stage: NemotronH, hidden: Tensor, batch: Batch) -> Tensor:
    return stage.loss(hidden, batch)[0]


def _logits(stage: NemotronH, hidden: Tensor, batch: Batch) -> Tensor:
    return stage.predict(hidden)


class _Mail:
    """Results on their way between this rank and its neighbours.

    Args:
        axis: the ranks of the pipeline.
        shape: its sizes.
        room: an empty tensor for a result that is coming.
    """

    def __init__(self, axis: Axis, shape: Shape, room: Callable[[Pass], Tensor]) -> None:
        self._axis = axis
        self._shape = shape
        self._room = room
        self._coming: dict[Pass, tuple[Tensor, dist.Work]] = {}
        self._sent: deque[tuple[Tensor, dist.Work]] = deque()

    def exchange(self, turn: Turn, result: Tensor | None) -> None:
        """Send and receive what a turn says, as one batch; nothing is waited for."""
        group = self._axis.group
        operations: list[dist.P2POp] = []
        if turn.receiver is not None and result is not None:
            result = result.contiguous()
            operations.append(dist.P2POp(dist.isend, result, group=group, group_peer=turn.receiver))
        rooms = [self._room(coming) for coming in turn.arriving]
        for coming, room in zip(turn.arriving, rooms, strict=True):
            sender = self._shape.rank(coming)
            operations.append(dist.P2POp(dist.irecv, room, group=group, group_peer=sender))
        if not operations:
            return
        works = dist.batch_isend_irecv(operations)
        if len(works) < len(operations):  # NCCL: one for the whole batch
            works = works * len(operations)
        if len(operations) > len(rooms) and result is not None:
            self._sent.append((result, works.pop(0)))
        self._coming.update(zip(turn.arriving, zip(rooms, works, strict=True), strict=True))
        self.settle(_MOST_UNDER_WAY)

    def take(self, coming: Pass) -> Tensor:
        """A result that was sent here, waited for."""
        room, work = self._coming.pop(coming)
        work.wait()
        return room

    def settle(self, most: int = 0) -> None:
        """Wait until at most so many of this rank's results are under way."""
        while len(self._sent) > most:
            self._sent.popleft()[1].wait()
