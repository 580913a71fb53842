"""NemotronH as single-process code: modules that read like the paper, fast on CPU and GPU."""

from openrecipes.engine.model.initialise import global_name, initial_value, initialise
from openrecipes.engine.model.nemotron_h import Block, Head, NemotronH, keeps_fp32

__all__ = ["Block", "Head", "NemotronH", "global_name", "initial_value", "initialise", "keeps_fp32"]
