"""Tiny models shaped like Nano, Super and the 4B, and transformers' NemotronH as the oracle."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch
from torch import Tensor

from openrecipes.engine.batch import Batch
from openrecipes.engine.model import NemotronH
from openrecipes.engine.weights import Checkpoint, load
from openrecipes.engine.weights.names import Stack, source

COMMON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "architectures": ["NemotronHForCausalLM"],
    "vocab_size": 96,
    "mamba_head_dim": 8,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "chunk_size": 16,
    "head_dim": 16,
    "num_key_value_heads": 2,
    "norm_topk_prob": True,
    "dtype": "float32",
}
NANO = COMMON | {
    "hidden_size": 48,
    "hybrid_override_pattern": "MEM*E",
    "mamba_num_heads": 8,
    "n_groups": 4,
    "num_attention_heads": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}
SUPER = NANO | {
    "hybrid_override_pattern": "ME*EM",
    "moe_latent_size": 16,
    "routed_scaling_factor": 5.0,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "time_step_limit": [0.0, float("inf")],
    "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E",
}
FOUR_B = COMMON | {
    "hidden_size": 56,
    "hybrid_override_pattern": "M-M*-",
    "mamba_num_heads": 8,
    "n_groups": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "intermediate_size": 100,
    "time_step_limit": [0.01, 0.2],
}
CONFIGS = {"nano": NANO, "super": SUPER, "4b": FOUR_B}


@dataclass
class Oracle:
    """transformers' model and its checkpoint on disk."""

    model: Any
    path: Path

    def ours(self, dtype: torch.dtype = torch.float32) -> NemotronH:
        checkpoint = Checkpoint(self.path)
        model = NemotronH(checkpoint.config)
        load(model, checkpoint)
        return model.to_precision(dtype)

    def logits(self, batch: Batch) -> Tensor:
        """Each segment by itself: (T, vocabulary) fp32."""
        pieces = batch.input_ids.split(list(batch.segment_lengths), dim=1)
        return torch.cat([self.model(input_ids=ids).logits[0] for ids in pieces])

    def loss(self, batch: Batch) -> Tensor:
        """Summed over tokens with a mask that have a predecessor in their segment."""
        total = torch.zeros(())
        lengths = list(batch.segment_lengths)
        pieces = self.logits(batch).split(lengths)
        for logits, ids, mask in zip(
            pieces,
            batch.input_ids[0].split(lengths),
            batch.loss_mask[0].split(lengths),
            strict=True,
        ):
            losses = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
            total = total + (losses * mask[1:]).sum()
        return total

    def gradient(self, ours: NemotronH, name: str) -> Tensor:
        """The oracle's gradient of the parameter that our model calls ``name``."""
        gradients = dict(self.model.named_parameters())
        kept = source(ours.config, name)
        if isinstance(kept, Stack):
            return gradients[name.replace("backbone.", "model.")].grad
        grad = gradients[kept.tensor.replace("backbone.", "model.")].grad[kept.start : kept.stop]
        return grad.squeeze(1) if kept.channel_first else grad


def make_oracle(config: dict[str, Any], folder: Path, seed: int = 0) -> Oracle:
    """A transformers model with random weights in every corner, saved to ``folder``."""
    from transformers import NemotronHConfig, NemotronHForCausalLM

    torch.manual_seed(seed)
    arguments = {key: value for key, value in config.items() if key != "model_type"}
    model = NemotronHForCausalLM(NemotronHConfig(**arguments, use_cache=False))
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            leaf = name.rsplit(".", 1)[-1]
            if leaf == "A_log":
                tensor.uniform_(-2, 2)
            elif leaf == "dt_bias":
                tensor.uniform_(-5, 1)
                tensor[0] = -9.0
            elif leaf == "e_score_correction_bias":
                tensor.uniform_(-0.5, 0.5)
            elif tensor.dim() == 1:
                tensor.normal_(1.0, 0.2)
            elif leaf in ("up_proj", "down_proj"):
                tensor.normal_(0.0, tensor.shape[-1] ** -0.5)
            else:
                tensor.normal_(0.0, tensor[0].numel() ** -0.5)
    limit_time_steps(model, config)
    model.save_pretrained(folder)
    return Oracle(model, folder)


def limit_time_steps(model: Any, config: dict[str, Any]) -> None:
    """transformers limits dt to (time_step_min, infinity); the config says otherwise."""
    limit = tuple(config.get("time_step_limit", (0.0, float("inf"))))
    for layer in model.model.layers:
        if hasattr(layer.mixer, "time_step_limit"):
            layer.mixer.time_step_limit = limit


def random_batch(
    vocabulary: int, segments: tuple[int, ...], rows: tuple[int, ...] | None = None, seed: int = 1
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(segments)
    ids = torch.randint(0, vocabulary, (1, tokens), generator=generator)
    mask = (torch.rand(1, tokens, generator=generator) < 0.7).to(torch.uint8)
    return Batch(ids, mask, segments, rows or segments)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random numbers in every run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", params=list(CONFIGS))
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    folder = tmp_path_factory.mktemp(request.param)
    return make_oracle(CONFIGS[request.param], folder)


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest value."""
    scale = expected.abs().max().clamp(min=1e-30)
    return float(((found - expected).abs().max() / scale).detach())
