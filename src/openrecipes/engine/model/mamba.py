"""The Mamba-2 mixer, with its input projection and convolution kept in parts (z, x, B, C, dt)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.batch import Segments
from openrecipes.engine.model.convolution import CausalConvolution
from openrecipes.engine.model.norm import GatedRMSNorm
from openrecipes.engine.model.ssd import ssd


class Mamba2Mixer(nn.Module):
    """Selective state space layer: project, convolve, scan, gate and normalise, project back.

    Hugging Face fuses the five projections into one ``in_proj`` and the three convolutions into
    one ``conv1d``; here each is a module of its own, so that heads and groups can be sliced. Head
    and group counts come from the weights' own shapes.
    """

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.mamba_inner_size, config.use_bias
        heads, states = config.mamba_num_heads, config.n_groups * config.ssm_state_size
        self.head_dim = config.mamba_head_dim
        self.state_size = config.ssm_state_size
        self.chunk_size = config.chunk_size
        self.time_step_limit = config.time_step_limit

        self.z_proj = nn.Linear(hidden, inner, bias=bias)
        self.x_proj = nn.Linear(hidden, inner, bias=bias)
        self.B_proj = nn.Linear(hidden, states, bias=bias)
        self.C_proj = nn.Linear(hidden, states, bias=bias)
        self.dt_proj = nn.Linear(hidden, heads, bias=bias)
        self.x_conv = CausalConvolution(inner, config.conv_kernel, config.use_conv_bias)
        self.B_conv = CausalConvolution(states, config.conv_kernel, config.use_conv_bias)
        self.C_conv = CausalConvolution(states, config.conv_kernel, config.use_conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads))
        self.D = nn.Parameter(torch.empty(heads))
        self.norm = GatedRMSNorm(inner, inner // config.n_groups, config.layer_norm_epsilon)
        self.out_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, hidden: Tensor, segments: Segments) -> Tensor:
        """(T, hidden) to (T, hidden)."""
        x = self.x_conv(self.x_proj(hidden), segments).unflatten(-1, (-1, self.head_dim))
        b = self.B_conv(self.B_proj(hidden), segments).unflatten(-1, (-1, self.state_size))
        c = self.C_conv(self.C_proj(hidden), segments).unflatten(-1, (-1, self.state_size))
        y = ssd(
            x,
            self.time_step(self.dt_proj(hidden)),
            -self.A_log.float().exp(),
            b,
            c,
            self.D.float(),
            segments.ids,
        )
        return self.out_proj(self.norm(y.flatten(1), self.z_proj(hidden)))

    def time_step(self, dt: Tensor) -> Tensor:
        """softplus(dt + bias) within the config's limits: (T, heads) to fp32."""
        low, high = self.time_step_limit
        step = F.softplus(dt.float() + self.dt_bias.float())
        # Some configs write "no limit" as a number beyond fp32's range.
        top = high if high < torch.finfo(torch.float32).max else None
        return step.clamp(low, top) if low > 0 or top is not None else step


def initial_dt_bias(config: NemotronHConfig, uniform: Tensor) -> Tensor:
    """softplus^-1 of a step drawn log-uniformly from (time_step_min, time_step_max).

    Args:
        config: holds the range and the floor.
        uniform: (heads,) numbers in [0, 1).
    """
    low, high = math.log(config.time_step_min), math.log(config.time_step_max)
    step = torch.exp(uniform * (high - low) + low).clamp(min=config.time_step_floor)
    return step + torch.log(-torch.expm1(-step))
