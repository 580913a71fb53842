"""The learning rate of a step, counted in samples as Megatron counts it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

DecayStyle = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """Warm-up, then decay.

    Args:
        lr: the highest learning rate.
        min_lr: the lowest one after warm-up.
        style: constant, linear or cosine.
        warmup_samples: samples over which the rate rises; 0 is no warm-up.
        decay_samples: samples at which ``min_lr`` is reached.
        batch: samples per step.
        warmup_init: the rate of step 0 during warm-up.
    """

    lr: float
    min_lr: float
    style: DecayStyle
    warmup_samples: float
    decay_samples: float
    batch: int
    warmup_init: float = 0.0

    def at(self, step: int) -> float:
        """The learning rate that step ``step`` (from 0) trains with.

        With n = step x batch samples seen before it: during warm-up
        init + (lr - init) n / warmup, so that step 0 trains with ``warmup_init``; then
        min + (lr - min) c with c = (1 + cos(pi r)) / 2 or 1 - r, r = (n - warmup) / (decay -
        warmup). Source: Megatron-LM's OptimizerParamScheduler.
        """
        seen = step * self.batch
        if self.warmup_samples > 0 and seen <= self.warmup_samples:
            return self.warmup_init + (self.lr - self.warmup_init) * seen / self.warmup_samples
        if self.style == "constant":
            return self.lr
        if seen > self.decay_samples:
            return self.min_lr
        ratio = (seen - self.warmup_samples) / (self.decay_samples - self.warmup_samples)
        share = 1 - ratio if self.style == "linear" else (1 + math.cos(math.pi * ratio)) / 2
        return self.min_lr + (self.lr - self.min_lr) * share
