"""Every layout held against one process: the table of greatest relative differences.

    python benchmarks/layouts.py                      # the full matrix and the recipes' shapes
    python benchmarks/layouts.py --shapes             # the recipes' shapes alone, 4 to 16 processes
    python benchmarks/layouts.py --only "CP2 TP2"     # layouts with this in their name

A small model is trained for ten steps in fp32 at a constant learning rate of 1e-4, with random
router weights and correction bias, in each layout, with every recompute, with rows of one length
and of several. Losses must agree within 1e-6, gradient norms within 1e-5, and at step 0 each
parameter's gradient within 1e-5. Rows on which a token is within 5e-6 of another choice of experts
are replaced, since rounding would decide there. One world of each size runs all its layouts. Exit
code 1 where a layout is farther away.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.engine.parallel.compare import GRADIENT, LOSS, NORM, Distance, distance
from tests.engine.parallel.matrix import LAYOUTS, RECOMPUTES, SHAPES, run_of
from tests.engine.parallel.trial import Run, alone, layout, train, without_ties
from tests.engine.step.gang import Gang

Case = tuple[str, str, str, Run]


def matrix() -> Iterator[Case]:
    """Every layout with every recompute and both kinds of rows."""
    for name, (chosen, model) in LAYOUTS.items():
        for recompute in RECOMPUTES:
            for ragged in (False, True):
                run = run_of(chosen, model, recompute, ragged=ragged)
                yield name, recompute, "ragged" if ragged else "even", run


def shapes() -> Iterator[Case]:
    """The recipes' shapes, each rank with at least two micro-batches."""
    for name, chosen, model, recompute, rows in SHAPES:
        for ragged in (False, True):
            run = run_of(chosen, model, recompute, ragged=ragged, rows=rows)
            batch = 2 * rows * chosen.dp
            yield name, recompute, "ragged" if ragged else "even", replace(run, batch=batch)


def tell(name: str, ranks: int, recompute: str, rows: str, apart: Distance, seconds: float) -> None:
    """One line of the table."""
    parameter, gradient = apart.worst
    worst = f"{gradient:.1e} {parameter.removeprefix('backbone.')}"
    print(
        f"| {name} | {ranks} | {recompute} | {rows} | {apart.loss:.1e} | {apart.norm:.1e} | "
        f"{worst} | {seconds:.1f} |",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", action="store_true", help="the recipes' shapes alone")
    parser.add_argument("--only", default="", help="layouts with this in their name")
    parser.add_argument("--most", type=int, default=16, help="most processes")
    chosen = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    cases = [*([] if chosen.shapes else matrix()), *shapes()]
    cases = [case for case in cases if chosen.only in case[0]]
    cases = [case for case in cases if case[3].layout.world_size <= chosen.most]
    one_process = cache(train)
    print("| layout | ranks | recompute | rows | loss | gradient norm | worst gradient | s |")
    print("|---|---|---|---|---|---|---|---|")
    for model in dict.fromkeys(case[3].model for case in cases):
        # What the order of additions alone does.
        run = Run(layout(), model, batch=8, ragged=True)
        started = time.perf_counter()
        found = train(replace(run, rows_per_microbatch=2))
        seconds = time.perf_counter() - started
        name = f"one process, {model} model, 1 and 2 rows"
        tell(name, 1, "none", "ragged", distance(found, one_process(run)), seconds)
    far = 0
    for size in sorted({case[3].layout.world_size for case in cases}):
        gang = Gang(size)
        try:
            for name, recompute, rows, run in cases:
                if run.layout.world_size != size:
                    continue
                run = without_ties(run, one_process)
                expected = one_process(alone(run))
                started = time.perf_counter()
                found = gang.run(train, run)[0]
                seconds = time.perf_counter() - started
                apart = distance(found, expected)
                far += not apart.within
                tell(name, size, recompute, rows, apart, seconds)
        finally:
            gang.close()
    print(f"\n{len(cases)} runs; {far} beyond {LOSS:g} / {NORM:g} / {GRADIENT:g}")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
