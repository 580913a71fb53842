"""Throughput, utilisation, price and GPU-hours.

Every function takes and returns finite numbers; a value that makes no sense (not finite, zero or
negative where the formula divides by it) raises ValueError, so no NaN ever leaves this module.
"""

from __future__ import annotations

import math

#: FLOPs per active parameter and token: 2 forward, 4 backward.
FLOPS_PER_PARAMETER = 6


def tokens_per_second_per_gpu(tokens: float, seconds: float, gpus: int) -> float:
    """Rate = tokens / seconds / GPUs.

    Args:
        tokens: token slots (or non-padding, or supervised tokens) of the measured window.
        seconds: sum of the window's step times.
        gpus: number of GPUs of the run.
    """
    return _finite(
        _at_least_zero("tokens", tokens) / _positive("seconds", seconds) / _positive("gpus", gpus)
    )


def mfu(active_parameters: float, tokens_per_s_per_gpu: float, peak_flops: float) -> float:
    """Model FLOPs utilisation = 6 x N x rate / peak, a fraction.

    Attention's quadratic term and recompute are not counted (with recompute it would be HFU).

    Args:
        active_parameters: N, the matrix parameters that take part in one token's forward pass.
        tokens_per_s_per_gpu: the rate.
        peak_flops: the GPU's dense peak in FLOP/s for the precision of the run.
    """
    return _finite(
        FLOPS_PER_PARAMETER
        * _positive("active_parameters", active_parameters)
        * _at_least_zero("tokens_per_s_per_gpu", tokens_per_s_per_gpu)
        / _positive("peak_flops", peak_flops)
    )


def usd_per_million_tokens(usd_per_gpu_hour: float, tokens_per_s_per_gpu: float) -> float:
    """Price = USD per GPU-hour / (rate x 3600) x 1e6."""
    rate = _positive("tokens_per_s_per_gpu", tokens_per_s_per_gpu)
    return _finite(_at_least_zero("usd_per_gpu_hour", usd_per_gpu_hour) / (rate * 3600) * 1e6)


def gpu_hours(gpus: int, seconds: float) -> float:
    """GPUs x hours, from the scheduler's admission to the finish, start-up included."""
    return _finite(_positive("gpus", gpus) * _at_least_zero("seconds", seconds) / 3600)


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, found {value}")
    return value


def _at_least_zero(name: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and not negative, found {value}")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("the result is too large to be a number")
    return value
