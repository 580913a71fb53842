"""The ranks of one machine as processes: started together, ended together, none left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from openrecipes.runs.lock import RecordLock

#: Names that the engine's rank reads; see ``engine.worker`` and ``engine.parallel.world``.
WATCH_STDIN = "OPENRECIPES_WATCH_STDIN"
STORE_SOCKET = "OPENRECIPES_STORE_SOCKET"


class Ranks:
    """Processes of ``openrecipes train``, one per rank, with the environment that torchrun gives.

    Each writes to ``logs/rank-N.log``. They live in sessions of their own, so a Ctrl-C reaches the
    launcher alone, and they end when the launcher does, however it ends: each watches a pipe.

    Args:
        words: arguments of ``openrecipes``.
        count: ranks.
        logs: directory of the logs.
        environ: environment of the ranks, before what is theirs alone.
        lock: the record's; rank 0 holds it, too, so that it is held as long as one of the two
            may write.
    """

    def __init__(
        self,
        words: Sequence[str],
        count: int,
        logs: Path,
        environ: Mapping[str, str],
        lock: RecordLock | None = None,
    ) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.order_of_death: list[int] = []
        # The socket is bound here and handed over, so that nobody can take the port in between.
        with socket.socket() as store, ExitStack() as opened:
            store.bind(("127.0.0.1", 0))
            store.listen()
            shared = {
                **environ,
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.getsockname()[1]),
                WATCH_STDIN: "1",
            }
            handed = (store.fileno(), *([lock.descriptor] if lock else []))
            try:
                for rank in range(count):
                    log = opened.enter_context((logs / f"rank-{rank}.log").open("wb"))
                    own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                    if rank == 0:
                        own[STORE_SOCKET] = str(store.fileno())
                    self.processes.append(
                        subprocess.Popen(
                            [sys.executable, "-m", "openrecipes", *words],
                            env={**shared, **own},
                            stdin=subprocess.PIPE,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            pass_fds=handed if rank == 0 else (),
                            start_new_session=True,
                        )
                    )
            except BaseException:
                self.kill()
                raise

    def poll(self) -> list[int | None]:
        """Exit codes, None for those that run; notes who ended first."""
        codes = [process.poll() for process in self.processes]
        self.order_of_death += [
            rank
            for rank, code in enumerate(codes)
            if code is not None and rank not in self.order_of_death
        ]
        return codes

    def wait(self, seconds: float) -> bool:
        """Wait for all to end; whether they did."""
        deadline = time.monotonic() + seconds
        while None in self.poll():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def terminate(self) -> None:
        """Ask all to stop after the step they are in."""
        self._signal(signal.SIGTERM)

    def end(self, seconds: float) -> None:
        """Ask all to stop, and kill what is left after ``seconds``."""
        self.terminate()
        if not self.wait(seconds):
            self.kill()

    def kill(self) -> None:
        """End all at once, with whatever they started."""
        self._signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
            if process.stdin:
                process.stdin.close()
        self.poll()

    def _signal(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    continue


def threads_per_rank(ranks: int) -> int:
    """Cores of this process divided by the ranks, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // ranks)
