"""How long a site of many recipes takes to build, to rebuild unchanged, and what its pages weigh.

    python benchmarks/site.py [--recipes 1000]

Prints one line per figure; needs no GPU and no browser.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from openrecipes.site.build import build

REGISTRY = Path(__file__).parents[1] / "recipes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=1000)
    count = parser.parse_args().recipes
    texts = [path.read_text(encoding="utf-8") for path in sorted(REGISTRY.rglob("*.yaml"))]
    with tempfile.TemporaryDirectory() as folder:
        recipes, site = Path(folder, "recipes"), Path(folder, "site")
        recipes.mkdir()
        for i in range(count):
            (recipes / f"recipe-{i:04}.yaml").write_text(texts[i % len(texts)], encoding="utf-8")
        for what in ("build", "unchanged rebuild"):
            start, busy = time.perf_counter(), time.process_time()
            report = build(recipes, site)
            took, busy = time.perf_counter() - start, time.process_time() - busy
            done = f"{report.rendered} of {report.recipes} pages rendered"
            print(f"{what}: {took:.2f} s ({busy:.2f} s of CPU), {done}")
        pages = [path.stat().st_size for path in (site / "recipes").rglob("*.html")]
        shared = sum(
            (site / "static" / n).stat().st_size for n in ("site.css", "site.js", "inter.woff2")
        )
        print(f"heaviest page: {(max(pages) + shared) / 1000:.0f} kB with style, script and font")
        print(f"index: {(site / 'index.html').stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
