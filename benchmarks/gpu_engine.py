"""Speed of the engine's model on one H200, with nothing installed but torch.

    python benchmarks/gpu_engine.py                      # one H200, torch >= 2.11, about 3 minutes
    python benchmarks/gpu_engine.py --device cpu --tiny  # the same path, small, on a CPU

First parity: a small model with the same weights on the CPU in fp32 and on the device in fp32 and
bf16. Then a slice of Nemotron-3-Nano at real width: what one pipeline stage of PP 2 with EP 4
holds, 26 of 52 layers with 32 of 128 experts each, plus embedding and head, which a stage would
have one of. All six experts of a token are among the 32, so a layer's experts do as much work as
on a rank of EP 4. bf16 weights, fp32 gradient accumulation, masters and AdamW moments, one row of
8,192 tokens per micro-batch.

The rate is scaled to the model: GPU-seconds of a token = the layers' share times (52 / 26), plus
embedding and head once, plus the optimizer spread over --accumulate micro-batches. Sending tokens
between ranks and the pipeline's bubble are not in it. MFU = 6 N x tokens/s / peak, N the active
parameters of the whole model, as recipes give it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from openrecipes.architectures.configs import find
from openrecipes.architectures.describe import describe
from openrecipes.architectures.nemotron_h import NemotronHConfig
from openrecipes.engine.batch import Batch
from openrecipes.engine.model import NemotronH, initial_value, initialise

PEAK = {"H200": 989e12, "H100": 989e12}  # dense bf16 FLOP/s, from NVIDIA's data sheets
SEED_MFU, GOAL_MFU = 0.153, 0.40
SMALL: dict[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": 512,
    "hidden_size": 128,
    "hybrid_override_pattern": "MEM*E",
    "mamba_num_heads": 8,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "ssm_state_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 128,
    "routed_scaling_factor": 2.5,
}


def row(vocabulary: int, length: int, device: str, seed: int, segments: tuple[int, ...]) -> Batch:
    """Random tokens; two thirds, in pieces of 64, are supervised."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (1, length), generator=generator)
    mask = (torch.rand((length + 63) // 64, generator=generator) < 2 / 3).repeat_interleave(64)
    return Batch(ids, mask[None, :length].to(torch.uint8), segments, (length,)).to(device)


# Parity


def small_run(device: str, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits and gradients of the small model, in fp64 on the CPU for comparison."""
    model = NemotronH(NemotronHConfig.from_hf(SMALL))
    initialise(model, 0)
    with torch.no_grad():  # unevenly loaded experts, strongly and weakly decaying heads
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.dim() > 1:
                tensor.mul_(4)
            if name.endswith("correction_bias"):
                tensor.copy_(torch.linspace(-0.2, 0.2, tensor.numel()))
            if name.endswith("dt_bias"):
                tensor[0] = -9.0
    model.to_precision(dtype).to(device)
    batch = row(512, 700, device, 1, (300, 1, 399))
    loss, tokens = model(batch)
    (loss / tokens).backward()
    grads = {n: p.grad.double().cpu() for n, p in model.named_parameters() if p.grad is not None}
    return model.logits(batch)[0].double().cpu(), grads


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def parity(device: str) -> dict[str, Any]:
    """Relative errors against the CPU in fp32; bf16 may be 1.5 times as far as the CPU's bf16."""
    exact, exact_grads = small_run("cpu", torch.float32)
    single, single_grads = small_run(device, torch.float32)
    half, _ = small_run(device, torch.bfloat16)
    cpu_half, _ = small_run("cpu", torch.bfloat16)
    worst = max(exact_grads, key=lambda name: relative(single_grads[name], exact_grads[name]))
    found = {
        "fp32_logits": relative(single, exact),
        "fp32_gradient": relative(single_grads[worst], exact_grads[worst]),
        "fp32_gradient_of": worst,
        "bf16_logits": relative(half, exact),
        "cpu_bf16_logits": relative(cpu_half, exact),
    }
    found["passed"] = (
        found["fp32_logits"] < 1e-4
        and found["fp32_gradient"] < 1e-3
        and found["bf16_logits"] < 1.5 * found["cpu_bf16_logits"]
    )
    return found


# The slice


def slice_config(tiny: bool) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The whole model's config, the slice's, and how many slices make the model."""
    if tiny:
        whole = SMALL | {"hybrid_override_pattern": "MEM*EMEM*E"}
        parts = 2
    else:
        model = find("Nemotron-3-Nano-30B-A3B")
        assert model is not None
        whole, parts = model.config(), 2
    pattern = whole["hybrid_override_pattern"]
    part = whole | {
        "hybrid_override_pattern": pattern[: len(pattern) // parts],
        "n_routed_experts": whole["n_routed_experts"] // 4,
    }
    part.pop("num_hidden_layers", None)
    return whole, part, parts


def build(config: NemotronHConfig, device: str) -> NemotronH:
    """A random bf16 model, made on the device."""
    with torch.device("meta"):
        model = NemotronH(config)
    model.to_empty(device=device).to_precision(torch.bfloat16)
    generator = torch.Generator(device=device).manual_seed(0)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.dim() > 1 and "conv" not in name:
                tensor.normal_(0, 0.02, generator=generator)
            else:
                tensor.copy_(initial_value(config, name, tensor.shape, 0))
    return model


class Masters:
    """AdamW on fp32 masters with fp32 gradients, summed over micro-batches as they come."""

    def __init__(self, model: nn.Module) -> None:
        self.pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        for parameter in model.parameters():
            master = nn.Parameter(parameter.detach().float().clone())
            master.grad = torch.zeros_like(master)
            self.pairs.append((parameter, master))
            parameter.register_post_accumulate_grad_hook(self._accumulate(master))
        masters = [master for _, master in self.pairs]
        self.adam = torch.optim.AdamW(masters, lr=1e-5, weight_decay=0.1, fused=True)

    @staticmethod
    def _accumulate(master: nn.Parameter) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            assert parameter.grad is not None and master.grad is not None
            master.grad.add_(parameter.grad)
            parameter.grad = None

        return hook

    @torch.no_grad()
    def step(self) -> None:
        grads = [master.grad for _, master in self.pairs]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads if g is not None]))
        torch._foreach_mul_(grads, (1.0 / (norm + 1e-6)).clamp(max=1.0))
        self.adam.step()
        torch._foreach_copy_([p for p, _ in self.pairs], [master for _, master in self.pairs])
        torch._foreach_zero_(grads)


@dataclass
class Clock:
    """Marks on the device's own time line; seconds between marks are read at the end."""

    device: str
    spans: list[tuple[str, Any, Any]] = field(default_factory=list)

    def mark(self) -> Any:
        if self.device == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, name: str, start: Any) -> None:
        self.spans.append((name, start, self.mark()))

    def seconds(self) -> dict[str, float]:
        if self.device != "cpu":
            torch.cuda.synchronize()
        total: dict[str, float] = {}
        for name, start, stop in self.spans:
            span = stop - start if self.device == "cpu" else start.elapsed_time(stop) / 1e3
            total[name] = total.get(name, 0.0) + span
        self.spans.clear()
        return total


def watch(model: NemotronH, clock: Clock) -> None:
    """Time every layer and the head, forward and backward."""
    kinds = {"M": "mamba", "E": "experts", "*": "attention", "-": "mlp"}
    parts: list[tuple[str, nn.Module]] = [
        (kinds[layer.kind], layer) for layer in model.backbone.layers
    ]
    assert model.lm_head is not None
    parts.append(("head and loss", model.lm_head))
    for name, module in parts:
        began: list[Any] = []

        def start(*_: Any, began: list[Any] = began) -> None:
            began.append(clock.mark())

        def stop(*_: Any, began: list[Any] = began, name: str = name) -> None:
            clock.add(name, began.pop())

        module.register_forward_pre_hook(start)
        module.register_forward_hook(stop)
        module.register_full_backward_pre_hook(start)
        module.register_full_backward_hook(stop)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time steps of the slice and scale them to the model."""
    device, length = arguments.device, 512 if arguments.tiny else 8192
    whole, part, parts = slice_config(arguments.tiny)
    config = NemotronHConfig.from_hf(part)
    model = build(config, device)
    masters, clock = Masters(model), Clock(device)
    watch(model, clock)
    batches = [row(config.vocab_size, length, device, seed, (length,)) for seed in range(4)]
    passes, updates, modules = [], [], []
    for step in range(arguments.steps + 2):
        for batch in batches[: 1 if step < 2 else None]:
            begin = clock.mark()
            loss, tokens = model(batch)
            (loss / tokens).backward()
            clock.add("micro-batch", begin)
            modules.append(clock.seconds())
            passes.append(modules[-1].pop("micro-batch"))
        begin = clock.mark()
        masters.step()
        clock.add("optimizer", begin)
        updates.append(clock.seconds()["optimizer"])
        if not torch.isfinite(loss):
            sys.exit("the loss is not finite")
    warm = slice(2, None)  # the first two steps warm up, with one micro-batch each
    middle = sorted(range(2, len(passes)), key=passes.__getitem__)[len(passes[warm]) // 2]
    where = modules[middle]
    layers = sum(seconds for name, seconds in where.items() if name != "head and loss")
    ends = passes[middle] - layers
    optimizer = sorted(updates[warm])[len(updates[warm]) // 2] * parts / arguments.accumulate
    rate = length / (layers * parts + ends + optimizer)
    described = describe(whole)
    flops = described.flops_per_token * rate
    peak = next((p for name, p in PEAK.items() if name in gpu_name(device)), None)
    return {
        "device": gpu_name(device),
        "torch": torch.__version__,
        "slice_parameters": sum(p.numel() for p in model.parameters()),
        "micro_batch_s": passes[middle],
        "micro_batch_s_all": passes[warm],
        "optimizer_s": updates[warm],
        "seconds_by_module": where | {"other": passes[middle] - sum(where.values())},
        "tokens_per_s_per_gpu": rate,
        "model_tflops_per_s": flops / 1e12,
        "mfu": flops / peak if peak else None,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if device != "cpu" else None,
    }


def gpu_name(device: str) -> str:
    return "CPU" if device == "cpu" else torch.cuda.get_device_name()


def report(found: dict[str, Any], same: dict[str, Any]) -> None:
    verdict = "passed" if same["passed"] else "FAILED"
    print(f"parity {verdict}: {json.dumps(same)}")
    print(f"{found['device']}, torch {found['torch']}, {found['slice_parameters']:,} parameters")
    print(f"one micro-batch {found['micro_batch_s'] * 1e3:.1f} ms, by module:")
    whole = found["micro_batch_s"]
    for name, seconds in sorted(found["seconds_by_module"].items(), key=lambda item: -item[1]):
        print(f"  {name:14} {seconds * 1e3:8.1f} ms  {100 * seconds / whole:4.0f}%")
    print(
        f"scaled to the model: {found['tokens_per_s_per_gpu']:.0f} tokens/s per GPU,"
        f" {found['model_tflops_per_s']:.1f} model TFLOP/s"
    )
    if found["mfu"] is not None:
        print(f"MFU {100 * found['mfu']:.1f}% (seed {100 * SEED_MFU}%, goal {100 * GOAL_MFU:.0f}%)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="a small slice, to try the script")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of 4 micro-batches")
    parser.add_argument(
        "--accumulate", type=int, default=32, help="micro-batches that share an optimizer step"
    )
    parser.add_argument("--output", type=Path, help="also write the figures as JSON")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device: pass --device cpu --tiny to try the script")
    same = parity(arguments.device)
    found = measure(arguments)
    report(found, same)
    if arguments.output:
        document = {"parity": same, **found}
        arguments.output.write_text(json.dumps(document, indent=2) + "\n")
    sys.exit(0 if same["passed"] else 1)


if __name__ == "__main__":
    main()
