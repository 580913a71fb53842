"""The pictures of what runs measured: step times, losses, memory, and where a step's time goes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openrecipes.metrics.steps import spread
from openrecipes.recipe.schema import Recipe
from openrecipes.runs.record import Step
from openrecipes.site import charts, memory, words
from openrecipes.site.evidence import Run
from openrecipes.site.shapes import Chart


@dataclass(frozen=True)
class Picture:
    """A chart on a page with its id, size class and legend."""

    chart: Chart
    id: str
    kind: str = ""
    legend: tuple[tuple[str, str], ...] = ()


def pictures(recipe: Recipe, candidate: Run | None, reference: Run | None) -> list[Picture]:
    """The charts that the runs allow."""
    if candidate is None:
        return []
    window = recipe.result.window if recipe.result else None
    found: list[Picture] = []
    times = charts.step_times(candidate.step_times, window, _median(candidate, window))
    if times:
        found.append(Picture(times, "step-times"))
    there = reference.losses if reference else []
    losses = charts.losses(candidate.losses, there)
    if losses:
        legend = (("candidate", "this recipe"), ("reference", "reference")) if there else ()
        found.append(Picture(losses, "losses", "", legend))
    difference = charts.loss_difference(candidate.losses, there, noise_floor(candidate.verdict))
    if difference:
        found.append(Picture(difference, "loss-difference", "low"))
    peaks = _memory(recipe, candidate.steps)
    if peaks:
        found.append(Picture(peaks, "memory", "half"))
    return found


def _median(run: Run, window: tuple[int, int] | None) -> float | None:
    if window is None:
        return None
    times = [t for s, t in run.step_times if t is not None and window[0] <= s <= window[1]]
    try:
        return spread(times).p50
    except ValueError:
        return None


def noise_floor(verdict: Mapping[str, Any] | None) -> float | None:
    """The noise floor of the loss (relative) in a verdict; None where it was not measured."""
    convergence = (verdict or {}).get("convergence")
    floor = convergence.get("noise_floor") if isinstance(convergence, dict) else None
    loss = floor.get("loss") if isinstance(floor, dict) else None
    found = loss.get("floor") if isinstance(loss, dict) else None
    return float(found) if isinstance(found, int | float) and 0 < found < 10 else None


def _memory(recipe: Recipe, steps: Sequence[Step]) -> Chart | None:
    """Peak memory of each rank; ranks of one pipeline stage stand together in one colour."""
    allocated = _peaks(s.peak_memory_bytes for s in steps)
    peaks = allocated or _peaks(s.peak_rss_bytes for s in steps)
    what = "allocated on the GPU" if allocated else "of the process (resident)"
    stage_size = recipe.layout.stage_size
    named = [(rank // stage_size, value) for rank, value in enumerate(peaks)]
    return memory.memory(named, what)


def _peaks(lists: Iterable[list[int | None] | None]) -> list[int | None]:
    """The highest value of each rank over all steps; empty where nothing was recorded."""
    peaks: list[int | None] = []
    for values in lists:
        for rank, value in enumerate(values or ()):
            if rank == len(peaks):
                peaks.append(value)
            elif value is not None:
                peaks[rank] = max(value, peaks[rank] or 0)
    return peaks if any(value is not None for value in peaks) else []


_STATES = ("weights", "gradients", "master", "optimizer", "activations")


def splits(recipe: Recipe, candidate: Run | None) -> list[memory.Split]:
    """What the fullest rank's memory and a step's time are made of, where the run tells."""
    if candidate is None:
        return []
    found = [
        _memory_split(candidate.record.manifest.memory),
        _time_split(candidate.steps, recipe.result.window if recipe.result else None),
    ]
    return [split for split in found if split is not None]


def _memory_split(told: Mapping[str, Any] | None) -> memory.Split | None:
    known = {name: (told or {}).get(name) for name in _STATES}
    parts = [
        ("master weights" if name == "master" else name, float(value))
        for name, value in known.items()
        if isinstance(value, int | float) and value > 0
    ]
    rank = (told or {}).get("rank")
    title = "Memory of the fullest rank" + (f" ({rank})" if isinstance(rank, int) else "")
    note = ""
    if known["activations"] is None:
        note = "Activations were not measured."
    offloaded = (told or {}).get("offloaded")
    if isinstance(offloaded, int | float) and offloaded > 0:
        note = f"{note} Of these, {words.gibibytes(offloaded)} lie in the CPU's memory.".strip()
    return memory.split(title, parts, words.gibibytes, note)


def _time_split(steps: Sequence[Step], window: tuple[int, int] | None) -> memory.Split | None:
    inside = [s for s in steps if window is None or window[0] <= s.step <= window[1]]
    known = [s for s in inside if s.step_time_s and s.data_time_s is not None]
    if not known:
        return None
    step = statistics.fmean([s.step_time_s or 0.0 for s in known])
    data = statistics.fmean([s.data_time_s or 0.0 for s in known])
    if data > step:
        return None
    parts = [("forward, backward, optimizer", step - data), ("fetching rows", data)]
    return memory.split("Time of a step", parts, words.seconds, "")
