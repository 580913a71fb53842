"""Weights in and out: Hugging Face safetensors directories, exact in both directions."""

from openrecipes.engine.weights.checkpoint import Checkpoint
from openrecipes.engine.weights.exporting import export, shapes
from openrecipes.engine.weights.loading import load, read_part

__all__ = ["Checkpoint", "export", "load", "read_part", "shapes"]
