"""A run while it runs: step, loss, tokens/s, time left, read from its record."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from openrecipes.runs.record import STEPS

_RECENT = 10  # steps that the rate and the time left are taken from


class Follower:
    """Reads a record's new steps each time it is asked.

    Args:
        record: the run record's directory.
    """

    def __init__(self, record: Path) -> None:
        self._file = record / STEPS
        self._offset = 0

    def new_steps(self) -> list[dict[str, Any]]:
        """Whole lines that were not read before."""
        try:
            with self._file.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]


class Progress:
    """The live display: a bar on a terminal, a line per step elsewhere.

    Args:
        record: the run record's directory.
        steps: steps of the whole run.
        console: where to show it.
    """

    def __init__(self, record: Path, steps: int, console: Console) -> None:
        self._follower = Follower(record)
        self._steps = steps
        self._console = console
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)
        self._bar: Bar | None = None
        if console.is_terminal:
            self._bar = Bar(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=None),
                TextColumn("{task.description}"),
                console=console,
                expand=True,
            )
            self._task = self._bar.add_task("starting", total=steps)
            self._bar.start()

    def update(self) -> None:
        """Show what is new."""
        for step in self._follower.new_steps():
            self._show(step)

    def close(self) -> None:
        """Show the last steps and leave the terminal in order."""
        self.update()
        if self._bar:
            self._bar.stop()

    def _show(self, step: dict[str, Any]) -> None:
        done = int(step["step"]) + 1
        self._recent.append((step.get("slots") or 0, step.get("step_time_s") or 0.0))
        text = describe(step, self._recent, self._steps - done)
        if self._bar:
            self._bar.update(self._task, completed=done, description=text)
        else:
            self._console.print(f"step {done}/{self._steps}  {text}", highlight=False)


def describe(step: dict[str, Any], recent: deque[tuple[int, float]], left: int) -> str:
    """``loss 4.5631  5,120 tokens/s  12 s left``; the first step warms up and tells no rate.

    Args:
        step: a line of the record.
        recent: slots and seconds of the last steps, this one included.
        left: steps to come.
    """
    loss = "not finite" if step["loss"] is None else f"{step['loss']:.4f}"
    parts = [f"loss {loss}"]
    measured = list(recent)[1:] if len(recent) == int(step["step"]) + 1 else list(recent)
    seconds = sum(time for _, time in measured)
    if seconds > 0:
        parts.append(f"{sum(slots for slots, _ in measured) / seconds:,.0f} tokens/s")
        parts.append(f"{duration(left * seconds / len(measured))} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """``45 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
