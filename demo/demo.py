"""The whole path on this machine: conversations, two layouts, a check, a recipe, its page.

`make demo` calls this. Each step is one `openrecipes` command, printed before it runs, so that
the demo can be followed by hand. Everything is written under `demo-out/`; running it again
starts afresh.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEMO = Path("demo")
OUT = Path("demo-out")
STEPS = 20

ROWS = OUT / "rows.parquet"
REFERENCE, CANDIDATE = OUT / "runs" / "reference", OUT / "runs" / "candidate"
RECIPES = OUT / "recipes"
RECIPE = RECIPES / "nemotron-3-demo-5m" / "cpu" / "openrecipes-demo-tp1-pp1-ep2-mt4k.yaml"
SITE = OUT / "site"

timings: list[tuple[str, float]] = []


def step(title: str, *argv: str | Path) -> None:
    """Run one `openrecipes` command, shown as a person would type it."""
    words = [str(word) for word in argv]
    print(f"\n\033[1m{title}\033[0m\n$ openrecipes {shlex.join(words)}", flush=True)
    started = time.monotonic()
    child = subprocess.Popen([sys.executable, "-m", "openrecipes", *words])
    code = None
    while code is None:
        with contextlib.suppress(KeyboardInterrupt):  # the command closes its record, then ends
            code = child.wait()
    timings.append((title, time.monotonic() - started))
    if code:
        print(f"demo: `openrecipes {words[0]}` ended with {code}; `make demo` starts afresh")
        sys.exit(code)


def train(title: str, recipe: str, output: Path) -> None:
    """One training run of a demo recipe on two local processes."""
    step(
        title,
        *("run", DEMO / "recipes" / recipe),
        *("--model-config", DEMO / "model" / "config.json"),
        *("--rows", ROWS, "--steps", str(STEPS), "--output", output),
    )


def main() -> None:
    """Run every step; stop at the first that fails."""
    os.chdir(ROOT)
    if OUT.exists():
        shutil.rmtree(OUT)

    step(
        "1. Conversations become packed rows with a loss mask",
        *("rows", "build", "--input", DEMO / "data" / "conversations.jsonl.gz"),
        *("--tokenizer", DEMO / "tokenizer" / "tokenizer.json"),
        *("--chat-template", DEMO / "tokenizer" / "chat_template.jinja"),
        *("--loss-mask-type", "qwen3_5", "--packing", "concat"),
        *("--row-tokens", "1024", "--seed", "42", "--output", ROWS),
        *("--name", "openrecipes-demo-1024-v1", "--dataset-name", "OpenRecipes demo conversations"),
        *("--dataset-source", "demo/data/conversations.jsonl.gz"),
        *("--license", "Apache-2.0 or MIT, stated per row"),
    )
    train(
        "2a. The reference layout trains: one row at a time, full recompute",
        "reference.yaml",
        REFERENCE,
    )
    train(
        "2b. The candidate layout trains: experts spread, four rows at a time",
        "candidate.yaml",
        CANDIDATE,
    )
    step("3a. What the reference measured", "measure", REFERENCE)
    step("3b. What the candidate measured", "measure", CANDIDATE)
    step("4. Is it still the same training?", "check", CANDIDATE, REFERENCE)
    step(
        "5a. From the evidence to a recipe",
        *("publish", CANDIDATE, "--reference", REFERENCE, "--output", RECIPE, "--bundle"),
        *("--author-name", "OpenRecipes demo"),
    )
    step("5b. The recipe holds together", "lint", RECIPE)
    step(
        "6. The recipe's page",
        *("site", "build", "--recipes", RECIPES, "--runs", OUT / "runs", "--output", SITE),
    )

    print("\n\033[1mSeconds\033[0m")
    for title, seconds in timings:
        print(f"{seconds:7.1f}  {title}")
    print(f"{sum(seconds for _, seconds in timings):7.1f}  in all")
    print(f"\nOpen {(SITE / 'index.html').resolve().as_uri()}")


if __name__ == "__main__":
    main()
