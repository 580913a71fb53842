"""Which planted faults the published procedure catches, and which the gate's noise floor.

Prints a Markdown table for fp32 and bf16. About a minute on one core:

    OMP_NUM_THREADS=1 python benchmarks/gate.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from openrecipes.gate.check import Verdict, check
from tests.gate.training import FAULTS, NONE, train


def row(name: str, verdict: Verdict) -> str:
    assert verdict.convergence is not None and verdict.convergence.floor is not None
    figures = verdict.convergence.floor.figures
    cells = [name, verdict.convergence.figures.result, verdict.verdict]
    for figure in ("loss", "grad_norm"):
        found = figures[figure]
        cells += [
            f"{found.difference:.1e}",
            f"{found.multiple:.3g} ({found.low:.3g} to {found.high:.3g})",
        ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("fp32", "bf16"):
            path, bf16 = Path(folder, precision), precision == "bf16"
            reference = train(path / "reference", bf16=bf16)
            again = [
                train(path / f"again{seed}", bf16=bf16, row_order=seed, micro_rows=seed)
                for seed in (1, 2, 4)
            ]
            print(f"\n{precision}\n")
            print("| fault | published | gate | loss (RMS) | floors | norm (RMS) | floors |")
            print("|---|---|---|---|---|---|---|")
            for number, fault in enumerate([NONE, *FAULTS]):
                candidate = train(path / f"fault{number}", fault, micro_rows=4, bf16=bf16)
                print(row(fault.name, check(candidate, reference, again)))
            floors = check(candidate, reference, again).convergence
            assert floors is not None and floors.floor is not None
            told = {name: f"{value.floor:.1e}" for name, value in floors.floor.figures.items()}
            print(f"\nnoise floors: {told}")
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
