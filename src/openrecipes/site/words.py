"""Numbers and names as a reader sees them: one formatter for each kind of value."""

from __future__ import annotations

import datetime as dt
import math
import re
from urllib.parse import urlsplit

from openrecipes.hardware.catalogue import CPU

#: What stands where a value is not known; it is never guessed.
UNKNOWN = "unknown"

_SAFE_SCHEMES = frozenset({"http", "https"})


def number(value: float | None, decimals: int | None = None) -> str:
    """``value`` with thousands separators; its own digits unless ``decimals`` is given."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return UNKNOWN
    if decimals is not None:
        return f"{value:,.{decimals}f}"
    return f"{value:,}"


def plain(value: float | None) -> str:
    """``value`` with its own shortest digits and no separators (``4.3e-05``, ``0.9999997``)."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return UNKNOWN
    return str(value)


def dollars(value: float | None) -> str:
    """USD with two decimals, more digits below one cent."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if 0 < abs(value) < 0.01:
        return f"${value:.2g}"
    return f"${value:,.2f}"


def percent(fraction: float | None, digits: int = 3) -> str:
    """A fraction as a percentage with ``digits`` significant digits (0.153 gives ``15.3%``)."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    return f"{significant(fraction * 100, digits)}%"


def significant(value: float, digits: int = 3) -> str:
    """``value`` rounded to ``digits`` significant digits, thousands separated, never in e-notation
    above 1e-4."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else UNKNOWN
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    if decimals > digits + 3:
        return f"{value:.{digits - 1}e}"
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def change(candidate: float | None, reference: float | None) -> str:
    """The candidate's gain over the reference, signed (``+49.4%``); empty where unknown."""
    if candidate is None or reference is None or reference == 0:
        return ""
    ratio = candidate / reference - 1
    if abs(ratio) < 0.0005:
        return "same"
    sign = "+" if ratio > 0 else "−"
    return f"{sign}{significant(abs(ratio) * 100)}%"


def on_machine(text: str, gpu: str) -> str:
    """``text`` about GPUs as it is said of ``gpu``: on a CPU each of them is a process.

    ``Tokens/s per GPU`` becomes ``Tokens/s per process``, ``GPU-hours`` becomes ``Process-hours``.
    """
    if gpu != CPU:
        return text

    def process(match: re.Match[str]) -> str:
        word = "processes" if match[1] else "process"
        return word if match.start() else word.capitalize()

    return re.sub(r"\bGPU(s?)\b", process, text)


def plural(count: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{ending}"


def seconds(value: float | None) -> str:
    """A duration in seconds with a unit that suits it."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) < 1:
        return f"{significant(value * 1000)} ms"
    if abs(value) < 120:
        return f"{significant(value)} s"
    if abs(value) < 7200:
        return f"{significant(value / 60)} min"
    if abs(value) < 172_800:
        return f"{significant(value / 3600)} h"
    return f"{significant(value / 86_400)} days"


def gibibytes(value: float | None) -> str:
    """Bytes as GiB (2^30 bytes), or MiB when small."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) < 2**30:
        return f"{significant(value / 2**20)} MiB"
    return f"{significant(value / 2**30)} GiB"


def day(value: dt.date | str | None) -> str:
    """An ISO date, or ``unknown``."""
    return UNKNOWN if value is None else str(value)[:10]


def safe_link(address: str | None) -> str | None:
    """``address`` when it is an http(s) link with a host, else None (shown as text then)."""
    if not address:
        return None
    if any(ord(c) < 33 or ord(c) == 127 for c in address):
        return None
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    return address if parts.scheme.lower() in _SAFE_SCHEMES and parts.hostname else None
