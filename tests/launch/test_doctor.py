"""The doctor: each thing that can be wrong is found, and has a remedy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openrecipes.cli.main import run
from openrecipes.files import sha256_file
from openrecipes.launch.doctor import GIB, Check, Facts, examine, look
from openrecipes.recipe.schema import Recipe

H200 = {"name": "NVIDIA H200", "memory_mib": 143771, "driver": "580.95.05"}
GOOD = Facts(
    python=(3, 12),
    packages={"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9"},
    gpus=(H200,) * 8,
    nics=({"kind": "EFA", "gbit_per_s": 200},) * 16,
    shared_memory=64 * GIB,
    free_disk=2000 * GIB,
    memory=2000 * GIB,
    locked_memory=None,
    open_files=1_000_000,
    cores=192,
)


def recipe(**changes: Any) -> Recipe:
    """A planned recipe for 16 H200 in two machines, with offload."""
    return Recipe.model_validate(
        {
            "schema_version": 1,
            "model": "Nemotron-3-Super-120B-A12B",
            "gpu": {"type": "H200", "count": 16, "per_node": 8},
            "status": "planned",
            "stack": {"engine": "native"},
            "workload": {"row_tokens": 8192, "global_batch": 128, "precision": "bf16"},
            "layout": {
                "tp": 4,
                "pp": 2,
                "cp": 1,
                "ep": 8,
                "etp": 1,
                "dp": 2,
                "offload": {"optimizer_fraction": 0.55},
            },
            "env": {"FI_PROVIDER": "efa", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            "inputs": {},
            **changes,
        }
    )


def named(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_machine_that_fits_passes_every_check() -> None:
    assert [c for c in examine(GOOD, recipe()) if c.status not in ("ok", "skipped")] == []


@pytest.mark.parametrize(
    ("change", "name", "status"),
    [
        ({"python": (3, 10)}, "python", "fail"),
        ({"packages": {}}, "torch", "fail"),
        ({"packages": {"torch": "2.13.0+cpu"}}, "torch", "fail"),
        ({"gpus": ()}, "driver", "fail"),
        ({"gpus": (H200,) * 4}, "gpus", "fail"),
        ({"gpus": ({**H200, "name": "NVIDIA H100 80GB HBM3"},) * 8}, "gpus", "warning"),
        ({"gpus": (*(H200,) * 7, {**H200, "name": "NVIDIA B200"})}, "gpus", "fail"),
        ({"gpus": ({**H200, "memory_mib": 70000},) * 8}, "gpu-memory", "warning"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0,1"}}, "visible-gpus", "warning"),
        ({"packages": {"torch": "2.11.0"}}, "nccl", "warning"),
        ({"shared_memory": 64 * 2**20}, "shared-memory", "fail"),
        ({"free_disk": 100 * GIB}, "disk", "fail"),
        ({"open_files": 1024}, "open-files", "warning"),
        ({"memory": 300 * GIB}, "host-memory", "fail"),
        ({"nics": ()}, "links", "fail"),
        ({"nics": ({"kind": "RoCE", "gbit_per_s": 400},)}, "links", "fail"),
        ({"locked_memory": 65536}, "locked-memory", "warning"),
        ({"env": {"FI_PROVIDER": "tcp"}}, "environment", "warning"),
    ],
)
def test_what_is_wrong_is_found_with_a_remedy(
    change: dict[str, Any], name: str, status: str
) -> None:
    check = named(examine(replace(GOOD, **change), recipe()), name)
    assert check.status == status
    assert check.remedy and check.found and check.expected


def test_the_engine_of_the_recipe_must_be_there() -> None:
    checks = examine(GOOD, recipe(stack={"engine": "miles"}))
    assert named(checks, "miles").status == named(checks, "ray").status == "fail"


def test_one_machine_needs_no_links_between_machines() -> None:
    one = recipe(gpu={"type": "H200", "count": 8, "per_node": 8}, env={})
    assert "links" not in {c.name for c in examine(replace(GOOD, nics=()), one)}


def test_a_cpu_recipe_asks_for_no_gpu() -> None:
    facts = Facts(packages={"torch": "2.13.0+cpu"}, shared_memory=GIB, free_disk=9 * GIB, cores=2)
    cpu = recipe(
        model="x", gpu={"type": "CPU", "count": 2, "per_node": 2}, env={}, inputs={},
    )  # fmt: skip
    checks = examine(facts, cpu)
    assert {c.status for c in checks} <= {"ok", "skipped"}
    assert named(checks, "processes").found == "2 cores"


def test_inputs_must_be_set_and_there(tmp_path: Path) -> None:
    wanted = recipe(inputs={"A": "a folder", "B": "a file", "C": "a folder"})
    env = {"A": str(tmp_path), "B": str(tmp_path / "absent")}
    checks = examine(replace(GOOD, env=env), wanted)
    assert named(checks, "input A").status == "ok"
    assert named(checks, "input B").status == named(checks, "input C").status == "fail"
    assert named(checks, "input C").remedy == "export C=..."


def test_without_a_list_of_inputs_the_command_tells_them() -> None:
    wanted = recipe(inputs=None, arguments={"hf-checkpoint": "$HF_CKPT"})
    assert named(examine(GOOD, wanted), "input HF_CKPT").status == "fail"


def test_the_inputs_content_is_compared(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    rows = tmp_path / "rows.parquet"
    rows.write_bytes(b"rows")
    workload = {"row_tokens": 8192, "global_batch": 128, "precision": "bf16"}

    def wanted(digest: str) -> Recipe:
        return recipe(
            inputs={"HF_CKPT": "a checkpoint", "SFT_DATA": "rows"},
            workload={**workload, "dataset": {"build": {"parquet_sha256": digest}}},
            result={"active_params": {"count": 12232228864}},
        )

    facts = replace(GOOD, env={"HF_CKPT": str(tmp_path), "SFT_DATA": str(rows)})
    checks = examine(facts, wanted("0f" * 32))
    assert named(checks, "input HF_CKPT").status == "fail"
    assert named(checks, "input SFT_DATA").status == "warning"
    assert named(examine(facts, wanted(sha256_file(rows))), "input SFT_DATA").status == "ok"


def test_looking_at_this_machine_gives_facts(tmp_path: Path) -> None:
    facts = look(tmp_path / "not" / "yet", {"A": "b"})
    assert facts.free_disk and facts.memory and facts.env == {"A": "b"}


def test_the_command_prints_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == 1
    assert code == (0 if document["ok"] else 1)
    assert {"name", "status", "found", "expected", "remedy"} == set(document["checks"][0])
