"""The progress bar of ``rows``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openrecipes.rows.assembly import Progress


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr, with rate and time left; silent where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[conversations]:,} conversations, {task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    tasks: dict[str, tuple[Any, float, int]] = {}

    def show(phase: str, done: int, total: int, conversations: int) -> None:
        if phase not in tasks:
            task = bar.add_task(phase, total=total, conversations=0, rate="")
            tasks[phase] = (task, time.monotonic(), conversations)
            bar.start()  # only now: processes must be forked before a display's thread exists
        task, began, before = tasks[phase]
        rate = (conversations - before) / max(time.monotonic() - began, 1e-3)
        bar.update(task, completed=done, conversations=conversations, rate=f"{rate:,.0f}/s")

    try:
        yield show
    finally:
        bar.stop()
