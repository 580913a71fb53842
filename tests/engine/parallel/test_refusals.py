"""A layout that breaks a rule is refused before a process starts, with the nearest valid value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openrecipes.engine.job import prepare
from openrecipes.errors import InputError
from tests.engine.parallel.trial import MODELS
from tests.launch.conftest import write_rows


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("job")
    (folder / "config.json").write_text(json.dumps(MODELS["moe"]))
    rows: Path = write_rows(folder / "rows.parquet", 60)
    return {
        "model-config": str(folder / "config.json"),
        "prompt-data": str(rows),
        "global-batch-size": 60,
        "train-iters": 1,
        "lr": 1e-4,
    }


@pytest.mark.parametrize(
    ("world", "flags", "rule", "nearest"),
    [
        (2, {"tensor-model-parallel-size": 2}, "moe-tp-needs-sequence-parallel", "True"),
        (3, {"tensor-model-parallel-size": 3, "sequence-parallel": True}, "heads-divide-tp", "2"),
        (4, {"tensor-model-parallel-size": 4, "sequence-parallel": True}, "mamba-groups", "2"),
        (3, {"context-parallel-size": 3}, "heads-divide-tp-cp", "2"),
        (5, {"expert-tensor-parallel-size": 5}, "moe-ffn-divides-etp", "4"),
        (4, {"expert-model-parallel-size": 3}, "expert-world-divides", "2"),
        (3, {"expert-model-parallel-size": 3}, "experts-divide-ep", "2"),
        (1, {"recompute-granularity": "full"}, "recompute-arguments", "uniform"),
        (
            1,
            {"recompute-granularity": "selective", "recompute-method": "block"},
            "recompute-arguments",
            "",
        ),
    ],
)
def test_a_broken_rule_is_named(
    given: dict[str, object], world: int, flags: dict[str, object], rule: str, nearest: str
) -> None:
    with pytest.raises(InputError) as caught:
        prepare({**given, **flags}, world)  # type: ignore[dict-item]
    assert f"the rule {rule}" in str(caught.value)
    assert f"nearest valid: {nearest}" in str(caught.value) or not nearest


def test_a_layout_that_fits_is_taken(given: dict[str, object]) -> None:
    flags = {
        "tensor-model-parallel-size": 2,
        "sequence-parallel": True,
        "context-parallel-size": 2,
        "expert-model-parallel-size": 4,
        "expert-tensor-parallel-size": 1,
        "recompute-granularity": "selective",
        "recompute-modules": ["moe", "mamba"],
    }
    job = prepare({**given, **flags}, 8)  # type: ignore[dict-item]
    assert job.layout.label is None and job.layout.dp == 2 and job.layout.stage_size == 8
