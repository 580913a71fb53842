"""The table of model names, and the models' Hugging Face configs as package data."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Model:
    """One model under all its names.

    Attributes:
        name: as a recipe's ``model`` field has it.
        hugging_face: the id of the checkpoint to train from.
        quantized: ids of its quantized checkpoints, which cannot be trained from.
        revision: of ``hugging_face``, None where unknown.
        miles: the name of miles' arguments script, None where there is none.
        config_path: its ``config.json``.
        source: where the config was published.
    """

    name: str
    hugging_face: str
    quantized: tuple[str, ...]
    revision: str | None
    miles: str | None
    config_path: Path
    source: str

    def config(self) -> dict[str, Any]:
        """The Hugging Face config."""
        loaded: dict[str, Any] = json.loads(self.config_path.read_text(encoding="utf-8"))
        return loaded


@cache
def models() -> tuple[Model, ...]:
    """The whole table."""
    table = tomllib.loads((_FOLDER / "models.toml").read_text(encoding="utf-8"))
    return tuple(
        Model(
            entry["name"],
            entry["hugging_face"],
            tuple(entry["quantized"]),
            entry.get("revision"),
            entry.get("miles"),
            _FOLDER / entry["config"],
            entry["source"],
        )
        for entry in table["model"]
    )


def find(name: str) -> Model | None:
    """The model that goes by this name: a recipe's, miles', or a Hugging Face id or folder name.

    An id may stand without its organisation, or as the hub's cache spells it
    (``models--nvidia--...``); letter case does not matter.
    """
    wanted = re.sub(r"^models--", "", name.strip().rstrip("/")).replace("--", "/").lower()
    for model in models():
        ids = (model.hugging_face, *model.quantized)
        names = (model.name, model.miles or "", *ids, *(i.split("/")[-1] for i in ids))
        if wanted in {known.lower() for known in names if known}:
            return model
    return None
