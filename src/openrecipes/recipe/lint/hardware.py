"""Lint rules about GPUs, machines and prices."""

from __future__ import annotations

from collections.abc import Iterator

from openrecipes.hardware import catalogue
from openrecipes.metrics.rounding import half_digit
from openrecipes.metrics.throughput import usd_per_million_tokens
from openrecipes.recipe.lint.context import Context
from openrecipes.recipe.lint.finding import Broken, LintRule


def _gpu_known(context: Context) -> Iterator[Broken]:
    name = context.recipe.gpu.type
    if name != catalogue.CPU and context.gpu is None:
        known = ", ".join(catalogue.catalogue().gpus)
        yield Broken("gpu.type", name, known, "the catalogue does not know this GPU")


def _instance_known(context: Context) -> Iterator[Broken]:
    gpu = context.recipe.gpu
    if gpu.instance is None:
        return
    instance = catalogue.catalogue().instance(gpu.instance)
    if instance is None:
        known = ", ".join(catalogue.catalogue().instances)
        message = "the catalogue does not know this instance"
        yield Broken("gpu.instance", gpu.instance, known, message, "warning")
        return
    if context.gpu is not None and instance.gpu != context.gpu.name:
        message = "the instance has other GPUs"
        yield Broken("gpu.type", gpu.type, instance.gpu, message)
    whole = gpu.per_node == instance.gpus
    if not whole and (gpu.per_node > instance.gpus or gpu.count > gpu.per_node):
        message = "the instance has another number of GPUs"
        yield Broken("gpu.per_node", gpu.per_node, instance.gpus, message)


def _memory(context: Context) -> Iterator[Broken]:
    label = None if context.gpu is None else context.gpu.label_gb
    found = context.recipe.gpu.memory_gb
    if found is not None and label is not None and found != label:
        message = f"the label of {context.recipe.gpu.type} says another size"
        yield Broken("gpu.memory_gb", found, label, message)


def _nodes(context: Context) -> Iterator[Broken]:
    gpu = context.recipe.gpu
    if gpu.count > gpu.per_node and gpu.count % gpu.per_node:
        expected = f"a multiple of {gpu.per_node}, or at most that"
        yield Broken("gpu.count", gpu.count, expected, "GPUs do not fill whole machines")


def price_per_gpu_hour(context: Context) -> float | None:
    """The price that the cost is held against: the recipe's own, else that of the measured day."""
    result = context.recipe.result
    if result is None:
        return None
    if result.price is not None:
        return result.price.usd_per_gpu_hour
    instance = context.recipe.gpu.instance
    if instance is None or result.measured is None:
        return None
    known = catalogue.price(instance, result.measured)
    return None if known is None else known.usd_per_gpu_hour


def _price(context: Context) -> Iterator[Broken]:
    result = context.recipe.result
    if result is None or result.usd_per_million_tokens is None:
        return
    found, rate = result.usd_per_million_tokens, result.tokens_per_s_per_gpu
    price = price_per_gpu_hour(context)
    field = "result.usd_per_million_tokens"
    if price is None or rate is None:
        message = "no price is known to check it with; give result.price"
        yield Broken(field, found, "a price per GPU-hour", message, "warning")
        return
    expected = usd_per_million_tokens(price, rate)
    if abs(found - expected) > half_digit("usd_per_million_tokens", found) * (1 + 1e-9):
        message = f"at {price:g} USD per GPU-hour the rate gives {expected:.2f}"
        yield Broken(field, found, round(expected, 2), message)


def _price_of_day(context: Context) -> Iterator[Broken]:
    result, instance = context.recipe.result, context.recipe.gpu.instance
    if result is None or result.price is None or instance is None or result.measured is None:
        return
    known = catalogue.price(instance, result.measured)
    found = result.price.usd_per_gpu_hour
    if known is not None and abs(known.usd_per_gpu_hour - found) > 0.005 * found:
        message = f"the catalogue has {known.usd_per_gpu_hour:g} for that day ({known.source})"
        yield Broken("result.price.usd_per_gpu_hour", found, known.usd_per_gpu_hour, message)


HARDWARE_RULES = (
    LintRule("gpu-known", "warning", "gpu.type is in the catalogue, or CPU", _gpu_known),
    LintRule(
        "instance-agrees",
        "error",
        "gpu.instance is in the catalogue (else a warning); it has gpu.type and gpu.per_node GPUs",
        _instance_known,
    ),
    LintRule(
        "gpu-memory", "error", "gpu.memory_gb = the label of the GPU in the catalogue", _memory
    ),
    LintRule("nodes", "error", "gpu.count % gpu.per_node = 0, or gpu.count < gpu.per_node", _nodes),
    LintRule(
        "price",
        "error",
        "usd_per_million_tokens = USD per GPU-hour / (tokens_per_s_per_gpu x 3600) x 10^6; the "
        "price is result.price, else the catalogue's of the measured day (unknown: a warning)",
        _price,
    ),
    LintRule(
        "price-of-day",
        "note",
        "result.price is within 0.5% of the catalogue's price of the measured day",
        _price_of_day,
    ),
)
