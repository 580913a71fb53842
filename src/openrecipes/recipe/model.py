"""What is known about a recipe's model by its name."""

from __future__ import annotations

from functools import lru_cache

from openrecipes.architectures import configs
from openrecipes.architectures.nemotron_h import NemotronHConfig

#: ``model_type`` of the models that the engines train.
TRAINED = "nemotron_h"


@lru_cache(maxsize=64)
def nemotron_config(name: str) -> NemotronHConfig | None:
    """The config of a NemotronH model that the table of names knows; ``None`` for all others."""
    model = configs.find(name)
    config = None if model is None else model.config()
    if config is None or config.get("model_type") != TRAINED:
        return None
    return NemotronHConfig.from_hf(config)


@lru_cache(maxsize=64)
def active_parameters(name: str) -> int | None:
    """N of a model that the table of names knows."""
    model = configs.find(name)
    if model is None:
        return None
    from openrecipes.architectures.describe import describe

    return describe(model.config()).active_parameters


def trained_models() -> list[str]:
    """Names of the models that an engine trains."""
    return [model.name for model in configs.models() if nemotron_config(model.name) is not None]
