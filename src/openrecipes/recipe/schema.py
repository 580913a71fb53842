"""Schema version 1 of a recipe: every block, every field, with its meaning, unit and an example.

The larger blocks have modules of their own: ``stack``, ``workload``, ``result``,
``correctness``, and ``layouts.layout``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Strict, model_validator
from pydantic_core import PydanticCustomError

from openrecipes.layouts.block import Block, field
from openrecipes.layouts.layout import Layout
from openrecipes.recipe.correctness import Correctness
from openrecipes.recipe.result import Result
from openrecipes.recipe.stack import Engine, Gpu, Stack, engine_of
from openrecipes.recipe.workload import Workload

SCHEMA_VERSION = 1

Status = Literal["planned", "measured", "verified", "withdrawn"]

#: A flag's value as typed on the command line: text, ``True`` for a switch, a list for several.
Argument = str | Literal[True] | Annotated[tuple[str, ...], Strict(False)]

#: What each status needs beside the fields that are always required.
REQUIRED: dict[str, tuple[str, ...]] = {
    "planned": (),
    "measured": (
        "stack.framework",
        "stack.pytorch",
        "stack.python",
        "run",
        "env",
        "result.tokens_per_s_per_gpu",
    ),
    "verified": (
        "stack.framework",
        "stack.pytorch",
        "stack.python",
        "run",
        "env",
        "result.tokens_per_s_per_gpu",
        "correctness.result",
    ),
    "withdrawn": ("superseded_by",),
}


class Author(Block):
    """Who published the recipe."""

    name: str = field("Name that the page shows.", example="ATTUNE", min_length=1)
    url: str | None = field(
        "Page, paper or profile of the author.",
        example="https://arxiv.org/abs/2610.17528",
        default=None,
    )


class Patch(Block):
    """A change to the code of the stack."""

    repo: str = field("Repository that is changed.", example="radixark/miles", min_length=1)
    commit: str | None = field("Commit it applies to.", example="78527b91", default=None)
    file: str | None = field("The patch file.", example="patches/offload.patch", default=None)
    sha256: str | None = field("sha256 of the patch file.", example="0f" * 32, default=None)
    why: str = field("Why it is needed.", example="frees the pinned buffers", min_length=1)


class Trial(Block):
    """A layout that was tried on the way, also when it failed."""

    layout: Layout = field(
        "The layout that was tried.",
        example={"tp": 4, "pp": 2, "cp": 1, "ep": 8, "etp": 1, "dp": 2},
    )
    outcome: Literal["ok", "oom", "nan", "crash", "timeout", "lost_node", "stopped"] = field(
        "How it ended.", example="oom"
    )
    phase: str | None = field("Phase that it failed in.", example="step", default=None)
    step: int | None = field("Step that it failed at.", unit="step", example=2, default=None, ge=0)
    rank: int | None = field("Rank that failed.", unit="rank", example=0, default=None, ge=0)
    note: str | None = field(
        "What is worth knowing.", example="optimizer offload fraction 0.45", default=None
    )


class Evidence(Block):
    """Where the run records behind the figures lie."""

    path: str | None = field(
        "Folder beside the recipe.", example="attune-tp1-pp2-ep4.evidence", default=None
    )
    url: str | None = field(
        "Address of the folder or archive.", example="https://example.org/nano", default=None
    )
    sha256: str = field("sha256 of the evidence's SHA256SUMS file.", example="0f" * 32)


class Recipe(Block):
    """A training recipe: how to train one model on one kind of GPU, and the proof."""

    schema_version: int = field("Version of this schema.", unit="1", example=1, ge=1, le=1)
    model: str = field(
        "Display name of the model.", example="Nemotron-3-Nano-30B-A3B", min_length=1
    )
    gpu: Gpu = field("The GPUs.", example={"type": "H200", "count": 8, "per_node": 8})
    author: Author | None = field("Who published it.", example={"name": "ATTUNE"}, default=None)
    status: Status = field(
        "planned: not yet run; measured: the figures are from a run; verified: measured, and "
        "trains as its reference does; withdrawn: replaced.",
        example="verified",
    )
    superseded_by: str | None = field(
        "Path of the recipe that replaces a withdrawn one.",
        example="recipes/nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4.yaml",
        default=None,
    )
    stack: Stack | None = field(
        "The software.", example={"engine": "native", "framework": "openrecipes"}, default=None
    )
    workload: Workload = field(
        "What is trained on.",
        example={"row_tokens": 8192, "global_batch": 128, "precision": "bf16"},
    )
    layout: Layout = field(
        "How the work is split.",
        example={"tp": 1, "pp": 2, "cp": 1, "ep": 4, "etp": 1, "dp": 4},
    )
    arguments: dict[str, Argument] | None = field(
        "Every Megatron argument that no field holds, by its long name without dashes: text as "
        "typed, true for a switch, a list for several values.",
        example={"lr": "1e-5", "calculate-per-token-loss": True},
        default=None,
    )
    inputs: dict[str, str] | None = field(
        "Shell variables that the reader sets, each with a sentence.",
        example={"HF_CKPT": "folder of the Hugging Face checkpoint"},
        default=None,
    )
    result: Result | None = field(
        "What was measured.", example={"tokens_per_s_per_gpu": 7814.02}, default=None
    )
    correctness: Correctness | None = field(
        "The proof that it trains as its reference does.", example={"result": "pass"}, default=None
    )
    trials: Annotated[tuple[Trial, ...], Strict(False)] | None = field(
        "Layouts that were tried.",
        example=[
            {
                "layout": {"tp": 1, "pp": 2, "cp": 1, "ep": 4, "etp": 1, "dp": 4},
                "outcome": "oom",
            }
        ],
        default=None,
    )
    env: dict[str, str] | None = field(
        "Environment variables of the run.",
        example={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        default=None,
    )
    patches: Annotated[tuple[Patch, ...], Strict(False)] | None = field(
        "Changes to the stack's code.", example=[], default=None
    )
    run: str | None = field(
        "The command as one copies it; derived from arguments, fields and env.",
        example="torchrun --standalone --nproc-per-node 8 -m openrecipes train --lr 1e-5",
        default=None,
    )
    evidence: Evidence | None = field(
        "Run records behind the figures.",
        example={"path": "attune-tp1-pp2-ep4.evidence", "sha256": "0f" * 32},
        default=None,
    )
    notes: str | None = field(
        "Markdown; HTML in it is shown as text.",
        example="- 0.55 is the lowest offload fraction that fits.",
        default=None,
    )

    @model_validator(mode="after")
    def _status(self) -> Recipe:
        missing = missing_for_status(self)
        if missing:
            raise PydanticCustomError(
                "status",
                "status {status} needs {fields}",
                {"status": self.status, "fields": ", ".join(missing), "missing": missing},
            )
        return self

    @property
    def engine(self) -> Engine | None:
        """The engine: ``stack.engine``, else told by the first word of ``stack.framework``."""
        if self.stack is None:
            return None
        if self.stack.engine is not None:
            return self.stack.engine
        return engine_of(self.stack.framework)


def missing_for_status(recipe: Recipe) -> list[str]:
    """Fields that the recipe's status requires and that are absent or null."""
    return [path for path in REQUIRED[recipe.status] if _value(recipe, path) is None]


def _value(block: Any, path: str) -> Any:
    for name in path.split("."):
        if block is None:
            return None
        block = getattr(block, name)
    return block
