"""A few processes that run one function after another: starting them is the slow part."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class Gang:
    """``size`` gloo processes; `run` calls a function in each and returns their results."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        handle, self._store = tempfile.mkstemp(prefix="openrecipes-store-")
        os.close(handle)
        self._members = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, self._store, rank, size), daemon=True
            )
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def run(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """The job's result on each rank; an error on any of them is raised with its traceback."""
        for _, pipe in self._members:
            pipe.send((job, args))
        answers = [pipe.recv() for _, pipe in self._members]
        for rank, (error, _) in enumerate(answers):
            if error:
                raise AssertionError(f"rank {rank}:\n{error}")
        return [result for _, result in answers]

    def close(self) -> None:
        """End the processes."""
        for _, pipe in self._members:
            pipe.close()
        for process, _ in self._members:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
        Path(self._store).unlink(missing_ok=True)


def _serve(pipe: Connection, store: str, rank: int, size: int) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    while True:
        try:
            job, args = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((None, job(*args)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
    dist.destroy_process_group()
