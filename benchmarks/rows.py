"""How fast rows are built: against the tokenizer alone, against transformers, and as data grows.

    python benchmarks/rows.py [--shared DIR] [--copies 1,20] [--growth 1000,10000,100000,1000000]

Each measurement runs in a process of its own, one after another, alternating; the best of
``--repeats`` counts (the least disturbed one), and the median is told beside it.

- limit: ``tokenizers.encode_batch`` on the rendered texts, on all cores; rendering not counted.
- build: ``openrecipes rows build`` without ``--rows``: reading, rendering, tokenizing, masking,
  packing, parquet, hashes and report. ``process`` is the whole command from start to exit;
  ``build`` leaves out starting Python, imports and loading the tokenizer, as the limit does.
- transformers: a loop of ``apply_chat_template(tokenize=True, return_assistant_tokens_mask=True)``.

With ``--shared`` (or OPENRECIPES_SHARED) the real Nemotron-3 tokenizer and 1,807 real
conversations; without it the demo's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

DEMO = Path(__file__).parents[1] / "demo"


def main() -> None:
    """Run the benchmarks, or (inside a child) one measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=os.environ.get("OPENRECIPES_SHARED"))
    parser.add_argument("--copies", default="1,20", help="how often the conversations are repeated")
    parser.add_argument("--growth", default="1000,10000,100000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(CHILDREN[options.child[0]](*options.child[1:])))
        return
    tokenizer, template, lines = material(options.shared)
    figures: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "workers": options.workers,
        "tokenizer": str(tokenizer),
        "against": [],
        "growth": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for copies in filter(None, options.copies.split(",")):
            source = write(Path(folder), lines, len(lines) * int(copies))
            figures["against"].append(against(source, tokenizer, template, options))
        for count in filter(None, options.growth.split(",")):
            source = write(Path(folder), lines, int(count))
            figures["growth"].append(growth(source, int(count), tokenizer, template, options))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def material(shared: Path | None) -> tuple[Path, Path, list[bytes]]:
    """Tokenizer, template and conversations (JSON lines)."""
    if shared is None:
        with gzip.open(DEMO / "data" / "conversations.jsonl.gz") as stream:
            lines = stream.read().splitlines()
        return DEMO / "tokenizer", DEMO / "tokenizer" / "chat_template.jinja", lines
    data = Path(shared) / "data"
    lines = (data / "conversations" / "conversations.jsonl").read_bytes().splitlines()
    return data / "tokenizer" / "nemotron-3", data / "templates" / "nemotron_3_nano.jinja", lines


def write(folder: Path, lines: list[bytes], count: int) -> Path:
    """``count`` conversations, the given ones again and again."""
    path = folder / "conversations.jsonl"
    with path.open("wb") as stream:
        for line in islice(cycle(lines), count):
            stream.write(line + b"\n")
    return path


def against(source: Path, tokenizer: Path, template: Path, options: Any) -> dict[str, Any]:
    """Build, limit and transformers on the same conversations."""
    seconds: dict[str, list[float]] = {"limit": [], "build": [], "process": []}
    for _ in range(options.repeats):
        limit = child("limit", source, tokenizer, template)
        seconds["limit"].append(limit["seconds"])
        built = child("build", source, tokenizer, template, options.workers)
        seconds["build"].append(built["seconds"])
        seconds["process"].append(built["process_seconds"])
    loop = child("transformers", source, tokenizer, template)
    used = {"limit": limit, "build": built, "transformers": loop}
    count = limit["conversations"]
    best = {name: min(values) for name, values in seconds.items()}
    rate = {name: count / value for name, value in best.items()}
    rate["transformers"] = loop["conversations"] / loop["seconds"]
    told = {
        "conversations": count,
        "tokens": limit["tokens"],
        "seconds": {
            n: {"best": min(v), "median": statistics.median(v)} for n, v in seconds.items()
        },
        "conversations_per_second": rate,
        "cpu_seconds": {name: one["cpu_seconds"] for name, one in used.items()},
        "build_to_limit": rate["build"] / rate["limit"],
        "process_to_limit": rate["process"] / rate["limit"],
        "build_to_transformers": rate["build"] / rate["transformers"],
    }
    print(f"{count:,} conversations, {limit['tokens']:,} tokens, {options.workers} processes")
    for name, value in rate.items():
        print(f"  {name:<13}{value:>9,.0f} conversations/s")
    told_cpu = ", ".join(f"{name} {one['cpu_seconds']:.2f} s" for name, one in used.items())
    print(f"  processor time: {told_cpu}")
    print(f"  build / limit         {told['build_to_limit']:.2f}   (wanted: 0.6)")
    print(f"  whole process / limit {told['process_to_limit']:.2f}")
    print(f"  build / transformers  {told['build_to_transformers']:.1f}   (wanted: 5)")
    return told


def growth(
    source: Path, count: int, tokenizer: Path, template: Path, options: Any
) -> dict[str, Any]:
    """Time per conversation and resident memory for one size."""
    built = child("build", source, tokenizer, template, options.workers)
    memory = built["peak_rss_bytes"]
    told = {
        "conversations": count,
        "seconds": built["seconds"],
        "microseconds_per_conversation": 1e6 * built["seconds"] / count,
        "peak_rss_bytes": memory,
    }
    print(
        f"{count:>9,} conversations: {told['microseconds_per_conversation']:,.0f} us each, "
        f"{memory['main'] / 2**20:,.0f} MiB resident, largest process of the pool "
        f"{memory['pool_process'] / 2**20:,.0f} MiB"
    )
    return told


def child(*arguments: object) -> dict[str, Any]:
    """One measurement in a fresh process."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def records(source: str) -> list[Any]:
    """The conversations of a file."""
    return [json.loads(line) for line in Path(source).read_bytes().splitlines()]


def cpu_seconds() -> float:
    """Processor time of this process and its finished children: tells more on a busy machine."""
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure_limit(source: str, tokenizer: str, template: str) -> dict[str, Any]:
    """``encode_batch`` on rendered texts."""
    from tokenizers import Tokenizer

    from openrecipes.rows.encoder import Encoder, EncoderSettings

    encoder = Encoder(EncoderSettings(Path(tokenizer), Path(template)))
    talks = [encoder.conversation(record) for record in records(source)]
    texts = [encoder.template.render(talk.messages, talk.tools).text for talk in talks]
    bare = Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json"))
    began, used = time.perf_counter(), cpu_seconds()
    encodings = bare.encode_batch(texts, add_special_tokens=False)
    seconds, used = time.perf_counter() - began, cpu_seconds() - used
    tokens = sum(len(encoding) for encoding in encodings)
    return {
        "seconds": seconds,
        "cpu_seconds": used,
        "conversations": len(texts),
        "tokens": tokens,
    }


def measure_build(source: str, tokenizer: str, template: str, workers: str) -> dict[str, Any]:
    """The whole build, timed inside and outside."""
    from openrecipes.rows import build as room
    from openrecipes.rows.encoder import Encoder, EncoderSettings
    from openrecipes.rows.settings import BuildSettings

    loading = loading_cpu = 0.0

    class Timed(Encoder):
        def __init__(self, settings: EncoderSettings) -> None:
            nonlocal loading, loading_cpu
            began, used = time.perf_counter(), cpu_seconds()
            super().__init__(settings)
            loading, loading_cpu = time.perf_counter() - began, cpu_seconds() - used

    room.Encoder = Timed  # type: ignore[misc]
    with tempfile.TemporaryDirectory(dir=Path(source).parent) as folder:
        settings = BuildSettings(
            (source,),
            Path(folder) / "rows.parquet",
            EncoderSettings(Path(tokenizer), Path(template)),
            workers=int(workers),
            reports=(Path(folder) / "report.json",),
        )
        began, used = time.perf_counter(), cpu_seconds()
        room.build(settings)
        seconds = time.perf_counter() - began - loading
        used = cpu_seconds() - used - loading_cpu
        began = time.perf_counter()
        subprocess.run(
            [
                *(sys.executable, "-m", "openrecipes", "rows", "build", "--input", source),
                *("--tokenizer", tokenizer, "--chat-template", template),
                *("--num-workers", workers, "--output", str(settings.output), "--force"),
            ],
            check=True,
            capture_output=True,
        )
        whole = time.perf_counter() - began
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "seconds": seconds,
        "cpu_seconds": used,
        "process_seconds": whole,
        "peak_rss_bytes": {
            "main": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
            "pool_process": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit,
        },
    }


def measure_transformers(source: str, tokenizer: str, template: str) -> dict[str, Any]:
    """The loop that most people write."""
    import logging

    from transformers import PreTrainedTokenizerFast

    logging.disable(logging.WARNING)
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(Path(tokenizer) / "tokenizer.json"),
        chat_template=Path(template).read_text(encoding="utf-8"),
    )
    talks = records(source)[:2000]
    began, used = time.perf_counter(), cpu_seconds()
    for talk in talks:
        theirs.apply_chat_template(
            talk["messages"],
            tools=talk.get("tools"),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": cpu_seconds() - used,
        "conversations": len(talks),
    }


CHILDREN: dict[str, Any] = {
    "limit": measure_limit,
    "build": measure_build,
    "transformers": measure_transformers,
}

if __name__ == "__main__":
    main()
