"""The GPU benchmark's whole path, small and on a CPU, with no package but torch to be had."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu_engine.py"
BARE = """
import runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.argv = ["gpu_engine.py", "--device", "cpu", "--tiny", "--steps", "1", "--output", {output!r}]
runpy.run_path({script!r}, run_name="__main__")
"""
ABSENT = {"pydantic", "safetensors", "transformers", "pyarrow", "typer", "ruamel", "tokenizers"}


def test_it_runs_small_with_torch_alone(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    code = BARE.format(absent=ABSENT, output=str(output), script=str(SCRIPT))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"OMP_NUM_THREADS": "1", "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "parity passed" in done.stdout and "MFU" not in done.stdout  # a CPU has no peak
    found = json.loads(output.read_text())
    assert found["parity"]["passed"] and found["mfu"] is None
    assert found["tokens_per_s_per_gpu"] > 0
    modules = {"mamba", "experts", "attention", "head and loss", "other"}
    assert set(found["seconds_by_module"]) == modules
