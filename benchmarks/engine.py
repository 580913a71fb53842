"""Tokens per second and peak memory of one training step, against transformers.

    python benchmarks/engine.py                        # all four cases, a few minutes
    python benchmarks/engine.py --models 4.5M --rows 2048 --repeats 3

Both sides start from the same checkpoint and train on the same rows in fp32 with AdamW, each in a
fresh process of its own (so that its peak memory is its own), in turn. The other side is
transformers' NemotronHForCausalLM at its best on a CPU: grouped_mm experts, SDPA attention, fused
AdamW. It has no Mamba kernels on a CPU and falls back to its own chunked scan. Its first loss is
compared with ours, so both do the same work.

A row is drawn at random; two thirds of its tokens, in long pieces, are supervised. Neither side
is told more about them than the loss mask (as labels of -100 on the other side).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "architectures": ["NemotronHForCausalLM"],
    "conv_kernel": 4,
    "chunk_size": 128,
    "num_key_value_heads": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "time_step_limit": [0.001, float("inf")],  # what transformers always does
    "dtype": "float32",
}
# Nano's shape made small: its layer order, top 6, eight heads to a group, shared expert twice as
# wide as a routed one.
MODELS = {
    "4.5M": COMMON
    | {
        "vocab_size": 8192,
        "hidden_size": 128,
        "hybrid_override_pattern": "MEM*EM",
        "mamba_num_heads": 16,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 64,
        "num_attention_heads": 4,
        "head_dim": 32,
        "n_routed_experts": 32,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 96,
        "moe_shared_expert_intermediate_size": 192,
    },
    "24M": COMMON
    | {
        "vocab_size": 16384,
        "hidden_size": 256,
        "hybrid_override_pattern": "MEMEM*EME",
        "mamba_num_heads": 16,
        "mamba_head_dim": 32,
        "n_groups": 2,
        "ssm_state_size": 128,
        "num_attention_heads": 8,
        "head_dim": 32,
        "n_routed_experts": 32,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 192,
        "moe_shared_expert_intermediate_size": 384,
    },
}
LR, BETAS, DECAY, CLIP = 1e-4, (0.9, 0.95), 0.1, 1.0


def rows(vocabulary: int, length: int, count: int) -> list[tuple[Any, Any]]:
    """Random rows (ids, mask), each (1, length)."""
    import torch

    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        ids = torch.randint(0, vocabulary, (1, length), generator=generator)
        pieces = torch.rand(length // 64, generator=generator) < 2 / 3
        made.append((ids, pieces.repeat_interleave(64)[None].to(torch.uint8)))
    return made


def train_ours(checkpoint: Path, length: int, steps: int) -> tuple[list[float], list[float]]:
    """Losses and seconds of each step."""
    from openrecipes.engine.batch import Batch
    from openrecipes.engine.model import NemotronH
    from openrecipes.engine.parallel.mesh import Mesh
    from openrecipes.engine.schedule import Schedule
    from openrecipes.engine.step import Trainer
    from openrecipes.engine.weights import Checkpoint, load

    origin = Checkpoint(checkpoint)
    model = NemotronH(origin.config)
    load(model, origin)
    schedule = Schedule(LR, LR, "constant", 0, 1, 1)
    trainer = Trainer(
        model, Mesh.alone(), schedule, clip_grad=CLIP, betas=BETAS, weight_decay=DECAY
    )
    batches = [
        Batch(ids, mask, (length,), (length,))
        for ids, mask in rows(origin.config.vocab_size, length, steps)
    ]
    return timed(lambda step: trainer.step(step, batches[step : step + 1]).loss, steps)


def train_transformers(
    checkpoint: Path, length: int, steps: int
) -> tuple[list[float], list[float]]:
    """The same with transformers."""
    import torch
    from transformers import NemotronHForCausalLM

    model = NemotronHForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, experts_implementation="grouped_mm"
    )
    model.config.use_cache = False
    model.train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=LR,
        betas=BETAS,
        fused=True,
    )
    batches = rows(model.config.vocab_size, length, steps)

    def step(number: int) -> float:
        ids, mask = batches[number]
        labels = torch.where(mask.bool(), ids, -100)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return timed(step, steps)


def timed(step: Callable[[int], float], steps: int) -> tuple[list[float], list[float]]:
    losses, seconds = [], []
    for number in range(steps):
        start = time.perf_counter()
        losses.append(step(number))
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def breakdown(checkpoint: Path, length: int) -> dict[str, float]:
    """Seconds of a forward and a backward pass by kind of module, best of three passes."""
    from openrecipes.engine.batch import Batch
    from openrecipes.engine.model import NemotronH
    from openrecipes.engine.weights import Checkpoint, load

    origin = Checkpoint(checkpoint)
    model = NemotronH(origin.config)
    load(model, origin)
    names = {"M": "mamba", "E": "experts", "*": "attention", "-": "mlp"}
    parts = [(names[layer.kind], layer) for layer in model.backbone.layers]
    parts.append(("head and loss", model.lm_head))
    spent: dict[str, float] = {}
    began: dict[Any, float] = {}

    def start(module: Any, *_: Any) -> None:
        began[module] = time.perf_counter()

    for name, module in parts:

        def stop(module: Any, *_: Any, name: str = name) -> None:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began[module]

        module.register_forward_pre_hook(start)
        module.register_forward_hook(stop)
        module.register_full_backward_pre_hook(start)
        module.register_full_backward_hook(stop)
    passes = []
    for ids, mask in rows(origin.config.vocab_size, length, 4):
        spent.clear()
        begin = time.perf_counter()
        loss, tokens = model(Batch(ids, mask, (length,), (length,)))
        (loss / tokens).backward()
        whole = time.perf_counter() - begin
        passes.append(spent | {"other": whole - sum(spent.values())})
    return {name: min(p[name] for p in passes[1:]) for name in passes[0]}


def matrix_rate() -> float:
    """This machine's fp32 matrix products, FLOP/s, at the size that suits it best."""
    import torch

    best = 0.0
    for size in (512, 1024, 2048):
        a, b = torch.randn(size, size), torch.randn(size, size)
        for _ in range(5):
            start = time.perf_counter()
            a @ b
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def flops_per_token(config: dict[str, Any], length: int) -> float:
    """Model FLOPs of one token's forward and backward pass, routed experts as many as are used.

    6 per weight of a matrix product; attention's and the scan's own products beside it, the scan
    counted as its recurrence (6 heads x head size x state size multiply-adds, forward).
    """
    hidden, pattern = config["hidden_size"], config["hybrid_override_pattern"]
    inner = config["mamba_num_heads"] * config["mamba_head_dim"]
    states = config["n_groups"] * config["ssm_state_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    weights = {
        "M": hidden * (2 * inner + 2 * states + config["mamba_num_heads"]) + inner * hidden,
        "E": hidden * config["n_routed_experts"]
        + 2 * hidden * config["num_experts_per_tok"] * config["moe_intermediate_size"]
        + 2 * hidden * config["moe_shared_expert_intermediate_size"],
        "*": 2 * hidden * (queries + keys),
    }
    total = 6 * sum(weights[kind] for kind in pattern) + 6 * hidden * config["vocab_size"]
    total += pattern.count("M") * 3 * 2 * 3 * inner * config["ssm_state_size"]
    total += pattern.count("*") * 3 * 2 * length * queries  # half of the square, twice
    return float(total)


def run_side(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a fresh process does."""
    import torch

    from openrecipes.engine.allocator import keep_freed_memory

    keep_freed_memory()  # as `openrecipes train` does; both sides gain by it
    torch.set_num_threads(arguments.threads)
    if arguments.side == "rate":
        return {"flops": matrix_rate()}
    checkpoint, length = Path(arguments.checkpoint), arguments.row
    if arguments.side == "breakdown":
        return breakdown(checkpoint, length)
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    train = train_ours if arguments.side == "ours" else train_transformers
    losses, seconds = train(checkpoint, length, arguments.steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"losses": losses, "seconds": seconds, "peak": peak * 1024, "idle": idle * 1024}


def fresh(side: str, threads: int, **options: Any) -> dict[str, Any]:
    """Run one side in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--threads", str(threads)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def write_checkpoint(config: dict[str, Any], folder: Path) -> int:
    """A random model on disk; its number of parameters."""
    from openrecipes.architectures.nemotron_h import NemotronHConfig
    from openrecipes.engine.model import NemotronH, initialise
    from openrecipes.engine.weights import export

    file = folder / "start.json"
    file.write_text(json.dumps(config))
    model = NemotronH(NemotronHConfig.from_hf(config))
    initialise(model, 0)
    export(folder / "checkpoint", model.state_dict().__getitem__, file)
    return sum(p.numel() for p in model.parameters())


def compare(name: str, row: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One case: both sides in turn, then the breakdown."""
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_checkpoint(MODELS[name], Path(folder))
        checkpoint = Path(folder) / "checkpoint"
        options = {"checkpoint": checkpoint, "row": row, "steps": arguments.steps}
        ours, theirs = [], []
        for _ in range(arguments.repeats):
            ours.append(fresh("ours", arguments.threads, **options))
            theirs.append(fresh("transformers", arguments.threads, **options))
        where = fresh("breakdown", arguments.threads, checkpoint=checkpoint, row=row)
    first = [side[0]["losses"][0] for side in (ours, theirs)]
    if abs(first[0] - first[1]) > 1e-4 * first[1]:
        sys.exit(f"the sides disagree about the first loss: {first[0]} and {first[1]}")
    # The fastest step: on a shared machine every other figure tells of the neighbours.
    step = [min(min(s["seconds"][1:]) for s in side) for side in (ours, theirs)]
    peak = [statistics.median(s["peak"] for s in side) for side in (ours, theirs)]
    return {
        "model": name,
        "parameters": parameters,
        "row_tokens": row,
        "tokens_per_s": row / step[0],
        "transformers_tokens_per_s": row / step[1],
        "speedup": step[1] / step[0],
        "peak_bytes": peak[0],
        "transformers_peak_bytes": peak[1],
        "idle_bytes": [ours[0]["idle"], theirs[0]["idle"]],
        "peak_ratio": peak[0] / peak[1],
        "model_flops_per_s": flops_per_token(MODELS[name], row) * row / step[0],
        "seconds_by_module": where,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rows", default="2048,8192")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--output", type=Path, help="also write the figures as JSON")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(run_side(arguments)))
        return
    rate = fresh("rate", arguments.threads)["flops"]
    print(f"fp32 matrix products: {rate / 1e9:.0f} GFLOP/s with {arguments.threads} threads")
    cases = []
    for name in arguments.models.split(","):
        for row in arguments.rows.split(","):
            case = compare(name, int(row), arguments)
            case["matrix_rate_share"] = case["model_flops_per_s"] / rate
            cases.append(case)
            report(case)
    if arguments.output:
        document = {"matrix_flops_per_s": rate, "threads": arguments.threads, "cases": cases}
        arguments.output.write_text(json.dumps(document, indent=2) + "\n")


def report(case: dict[str, Any]) -> None:
    where = case["seconds_by_module"]
    whole = sum(where.values())
    parts = ", ".join(
        f"{name} {100 * seconds / whole:.0f}%"
        for name, seconds in sorted(where.items(), key=lambda item: -item[1])
    )
    print(
        f"{case['model']} ({case['parameters']:,} parameters), rows of {case['row_tokens']}:\n"
        f"  tokens/s     {case['tokens_per_s']:>8.0f}  transformers"
        f" {case['transformers_tokens_per_s']:>8.0f}  {case['speedup']:.2f} times\n"
        f"  peak memory  {case['peak_bytes'] / 2**20:>6.0f}Mi  transformers"
        f" {case['transformers_peak_bytes'] / 2**20:>6.0f}Mi  {case['peak_ratio']:.2f}"
        f" of it (after imports: {case['idle_bytes'][0] / 2**20:.0f}Mi)\n"
        f"  {100 * case['matrix_rate_share']:.0f}% of the matrix rate; forward and backward:"
        f" {parts}",
        flush=True,
    )


if __name__ == "__main__":
    main()
