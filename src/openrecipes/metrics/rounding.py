"""How figures are rounded when they are written: the one place that knows.

A relation between written figures holds within half of the last digit written: ``half_digit`` gives
that half for any written value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rounding:
    """A fixed number of decimals, or else of significant digits."""

    decimals: int | None = None
    significant: int | None = None

    def places(self, value: float) -> int:
        """Decimals that are written of ``value``."""
        if self.decimals is not None:
            return self.decimals
        assert self.significant is not None
        if value == 0:
            return self.significant
        return self.significant - 1 - math.floor(math.log10(abs(value)))


#: Figure (its recipe field's last name) to rounding.
ROUNDING = {
    "tokens_per_s_per_gpu": Rounding(decimals=2),
    "nonpadding_tokens_per_s_per_gpu": Rounding(decimals=2),
    "supervised_tokens_per_s_per_gpu": Rounding(decimals=2),
    "usd_per_million_tokens": Rounding(decimals=2),
    "step_time_cv_percent": Rounding(decimals=2),
    "mfu": Rounding(significant=3),
    "gpu_hours": Rounding(significant=3),
    "step_time_s": Rounding(significant=6),
    "usd_per_gpu_hour": Rounding(decimals=4),
    "supervised_token_ratio": Rounding(decimals=3),
    "correlation": Rounding(decimals=7),
    "final_loss_difference": Rounding(significant=3),
}


def written(figure: str, value: float) -> float:
    """``value`` as it is written for ``figure``; raises ValueError unless finite."""
    if not math.isfinite(value):
        raise ValueError(f"{figure} must be finite, found {value}")
    return float(round(value, ROUNDING[figure].places(value)))


def half_digit(figure: str, value: float) -> float:
    """Half of the last digit of ``value`` as it is written for ``figure``."""
    return 0.5 * 10.0 ** -ROUNDING[figure].places(value)
