"""Running trainings as a page: progress, curves, trials, read from run records as they grow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openrecipes.errors import InputError
from openrecipes.runs.record import STEPS, Manifest, Step
from openrecipes.site import charts, evidence, render, words
from openrecipes.site.shapes import Chart

#: Runs that are drawn with their curves; older ones stay lines of the table.
_MOST_CARDS = 4
#: Steps that the current rate is taken from.
_RECENT = 5
#: A folder of trials within a tune's.
_TRIALS = "trials"


@dataclass(frozen=True)
class Live:
    """A run as the live page shows it."""

    name: str
    group: str
    state: str
    engine: str
    layout: str
    done: int
    total: int | None
    loss: str
    rate: str
    left: str
    quiet: str
    failure: str
    losses: Chart | None
    times: Chart | None

    @property
    def share(self) -> float:
        """Steps done of all, in percent."""
        return round(100 * self.done / self.total, 1) if self.total else 0.0

    @property
    def told(self) -> str:
        """Progress in words."""
        return (
            f"{self.done:,} of {words.plural(self.total, 'step')}"
            if self.total
            else (words.plural(self.done, "step"))
        )


class Watch:
    """The runs below a folder, read again only where their files changed."""

    def __init__(self, root: Path, now: Callable[[], float] = time.time) -> None:
        self.root = root
        self._now = now
        self._known: dict[Path, tuple[Any, evidence.Run | None, str]] = {}

    def runs(self) -> list[Live]:
        """Every run, those that go on first, then the newest."""
        found = []
        for path in evidence.records(self.root):
            run, fault = self._read(path)
            found.append(self._broken(path, fault) if run is None else self._live(path, run))
        order = {"running": 0, "failed": 1, "stopped": 1, "done": 1}
        return sorted(found, key=lambda live: order.get(live.state, 2))

    def part(self) -> str:
        """The part of the page that changes, as HTML."""
        runs = self.runs()
        going = [live for live in runs if live.state == "running"]
        shown = (going or runs[-1:])[:_MOST_CARDS]
        groups: dict[str, list[Live]] = {}
        for live in runs:
            groups.setdefault(live.group, []).append(live)
        template = render.environment().get_template("_live.html")
        return template.render(cards=shown, groups=groups, count=len(runs), root="../")

    def _read(self, path: Path) -> tuple[evidence.Run | None, str]:
        stamp = evidence.stamp(path)
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            try:
                known = (stamp, evidence.read(path), "")
            except InputError as error:
                # a manifest that is being replaced, or a record that needs a look: shown as such
                known = (stamp, None, str(error))
            self._known[path] = known
        return known[1], known[2]

    def _group(self, path: Path) -> str:
        folder = path.parent.parent if path.parent.name == _TRIALS else path.parent
        return folder.relative_to(self.root).as_posix() if folder.is_relative_to(self.root) else ""

    def _broken(self, path: Path, fault: str) -> Live:
        return Live(
            name=path.name,
            group=self._group(path),
            state="unreadable",
            engine="",
            layout="",
            done=0,
            total=None,
            loss="",
            rate="",
            left="",
            quiet="",
            failure=fault,
            losses=None,
            times=None,
        )

    def _live(self, path: Path, run: evidence.Run) -> Live:
        manifest = run.record.manifest
        recent = [s for s in run.steps[-_RECENT:] if s.step_time_s]
        total = total_steps(manifest)
        done = run.steps[-1].step + 1 if run.steps else 0
        pace = statistics.median([s.step_time_s or 0.0 for s in recent]) if recent else None
        going = manifest.state == "running"
        left = words.seconds(pace * max(total - done, 0)) if going and pace and total else ""
        losses = charts.losses(run.losses)
        times = charts.step_times(run.step_times, None, pace)
        return Live(
            name=manifest.id,
            group=self._group(path),
            state=manifest.state,
            engine=manifest.engine,
            layout=_layout(manifest),
            done=done,
            total=total,
            loss=_last_loss(run.steps),
            rate=_rate(recent, manifest.world_size),
            left=left,
            quiet=self._quiet(path, pace) if going else "",
            failure=_failure(manifest),
            losses=replace(losses, table=()) if losses else None,
            times=replace(times, table=()) if times else None,
        )

    def _quiet(self, path: Path, pace: float | None) -> str:
        """Says so when a running run has written no step for far longer than one takes."""
        try:
            silent = self._now() - (path / STEPS).stat().st_mtime
        except OSError:
            return ""
        if silent < max(60.0, 5 * (pace or 0.0)):
            return ""
        return f"no step for {words.seconds(silent)}"


def total_steps(manifest: Manifest) -> int | None:
    """Steps that the run was asked for."""
    for name in ("steps", "train-iters", "num-rollout"):
        value = manifest.flags.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _layout(manifest: Manifest) -> str:
    layout = manifest.layout or {}
    if layout.get("label"):
        return str(layout["label"])
    axes = ("tp", "pp", "ep", "dp")
    return " ".join(f"{axis.upper()}{layout[axis]}" for axis in axes if axis in layout)


def _last_loss(steps: tuple[Step, ...]) -> str:
    known = [s.loss for s in steps if s.loss is not None]
    return words.significant(known[-1], 4) if known else ""


def _rate(recent: list[Step], gpus: int | None) -> str:
    slots = sum(s.slots or 0 for s in recent)
    seconds = sum(s.step_time_s or 0.0 for s in recent)
    return words.number(slots / seconds / gpus, 2) if slots and seconds and gpus else ""


def _failure(manifest: Manifest) -> str:
    failure = manifest.failure
    if failure is None:
        return ""
    where = [failure.phase, None if failure.step is None else f"step {failure.step}"]
    where.append(None if failure.rank is None else f"rank {failure.rank}")
    told = ", ".join(part for part in (failure.kind, *where) if part)
    return f"{told}: {failure.message}" if failure.message else told
