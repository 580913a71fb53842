"""The blocks of machine and software: ``gpu`` and ``stack``."""

from __future__ import annotations

from typing import Literal

from openrecipes.layouts.block import MOST_GPUS, Block, field

Engine = Literal["native", "miles", "automodel"]


class Gpu(Block):
    """The GPUs that the recipe is for."""

    type: str = field("GPU model; CPU for processes without one.", example="H200", min_length=1)
    memory_gb: int | float | None = field(
        "Memory on the label of one GPU; the catalogue holds the usable bytes.",
        unit="GB",
        example=141,
        default=None,
        gt=0,
    )
    count: int = field("GPUs of the whole job.", unit="GPUs", example=8, ge=1, le=MOST_GPUS)
    per_node: int = field("GPUs of one machine.", unit="GPUs", example=8, ge=1, le=MOST_GPUS)
    instance: str | None = field(
        "Cloud instance of one machine.", example="AWS p5en.48xlarge", default=None
    )


class Image(Block):
    """The container image of the measured run."""

    name: str = field("Image and tag.", example="radixark/miles:v0.1.0", min_length=1)
    digest: str | None = field(
        "Digest of the image.",
        example="sha256:45ae7833f97a01369dbd8f336784830a87d94587bc010c7b8065291cc15cd7ca",
        default=None,
    )
    changes: str | None = field(
        "What was added to the image.", example="EFA 1.49 added", default=None
    )


class Stack(Block):
    """The software of the measured run, as captured on the machine."""

    engine: Engine | None = field(
        "Engine; where absent, the first word of ``framework``.", example="miles", default=None
    )
    framework: str | None = field(
        "Training framework with version and commit.",
        example="miles 0.1.0 (radixark/miles commit 78527b91, a slime fork), no local changes",
        default=None,
    )
    megatron_lm: str | None = field(
        "Megatron-LM with commit.",
        example="radixark/Megatron-LM commit 37f91617 (megatron-core 0.16.0rc0)",
        default=None,
    )
    megatron_bridge: str | None = field(
        "Megatron-Bridge with commit.", example="0.5.0 (commit 7f0fb345)", default=None
    )
    transformer_engine: str | None = field(
        "Transformer Engine version.", example="2.17.0", default=None
    )
    pytorch: str | None = field(
        "PyTorch version and build.", example="2.11.0 (CUDA 13.0 build)", default=None
    )
    cuda: str | None = field("CUDA version.", example="13.0", default=None)
    nccl: str | None = field("NCCL version.", example="2.28.9", default=None)
    deepep: str | None = field("DeepEP version.", example="1.2.1", default=None)
    driver: str | None = field("GPU driver version.", example="580.95.05", default=None)
    python: str | None = field("Python version.", example="3.12.3", default=None)
    network: str | None = field(
        "Links inside and between machines.",
        example="8 GPUs per node, EFA (aws-ofi-nccl 1.20), 3.2 Tb/s RDMA per node",
        default=None,
    )
    source: str | None = field(
        "Where and when these versions were captured.",
        example="openrecipes stack on the measured run's machine, 2026-10-13",
        default=None,
    )
    image: Image | None = field(
        "Container image.", example={"name": "radixark/miles:v0.1.0"}, default=None
    )


def engine_of(framework: str | None) -> Engine | None:
    """The engine that a framework's description begins with, if it is one of ours."""
    words = (framework or "").split()
    names: dict[str, Engine] = {
        "miles": "miles",
        "native": "native",
        "openrecipes": "native",
        "automodel": "automodel",
        "nemo_automodel": "automodel",
    }
    return names.get(words[0].lower()) if words else None
