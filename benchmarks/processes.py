"""Two processes of one thread against one process of two: what spreading costs on this machine.

    python benchmarks/processes.py            # about two minutes

The same model, rows and global batch as `make demo`; `openrecipes train` in turn as one process
with two threads, and as two processes with one thread each, data parallel and expert parallel. The
figure is the ratio of the rates; 1.0 says that the second process costs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

DEMO = Path(__file__).parents[1] / "demo"
LAYOUTS = {
    "one process": ("1", "1"),
    "DP2": ("2", "1"),
    "EP2": ("2", "2"),
}
WARM = 2


def openrecipes(threads: int, *argv: str | Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "openrecipes", *map(str, argv)],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        check=True,
    )


def rows(folder: Path) -> Path:
    output = folder / "rows.parquet"
    openrecipes(
        *(1, "rows", "build", "--input", DEMO / "data" / "conversations.jsonl.gz"),
        *("--tokenizer", DEMO / "tokenizer", "--row-tokens", "1024", "--output", output),
    )
    return output


def step_seconds(name: str, data: Path, output: Path, steps: int) -> list[float]:
    """Step times of one run, the first ones left out."""
    processes, expert_parallel = LAYOUTS[name]
    openrecipes(
        *(2 // int(processes), "train", "--model-config", DEMO / "model" / "config.json"),
        *("--prompt-data", data, "--output", output, "--nproc-per-node", processes),
        *("--expert-model-parallel-size", expert_parallel, "--global-batch-size", "8"),
        *("--use-dynamic-batch-size", "--max-tokens-per-gpu", "4096", "--lr", "1e-4"),
        *("--train-iters", str(WARM + steps)),
    )
    lines = (output / "steps.jsonl").read_text().splitlines()[WARM:]
    return [json.loads(line)["step_time_s"] for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = rows(folder)
        for repeat in range(arguments.repeats):
            for layout in LAYOUTS:
                run = folder / f"{layout}-{repeat}"
                times[layout] += step_seconds(layout, data, run, arguments.steps)
    base = times["one process"]
    for layout, seconds in times.items():
        print(
            f"{layout:12} {8192 / statistics.median(seconds):7.0f} tokens/s"
            f"   rate against one process: median {_ratio(base, seconds, statistics.median):.2f},"
            f" fastest steps {_ratio(base, seconds, min):.2f}"
        )


def _ratio(base: list[float], seconds: list[float], figure: object) -> float:
    assert callable(figure)
    return float(figure(base) / figure(seconds))


if __name__ == "__main__":
    main()
