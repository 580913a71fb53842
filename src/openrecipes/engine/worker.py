"""One rank as a process: it joins the others, trains, and never ends without saying why."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import torch

from openrecipes.engine.allocator import keep_freed_memory
from openrecipes.engine.job import Job
from openrecipes.engine.parallel.world import World, join
from openrecipes.engine.recording import RankFailure, close, mark, new_manifest
from openrecipes.engine.train import Rank
from openrecipes.errors import ExitCode, InputError
from openrecipes.runs.record import (
    RUN_ID_VARIABLE,
    Failure,
    RecordTaken,
    RunWriter,
    utc_now,
)

_AFTER_RANK_0_S = 1.0  # a rank that goes first would make rank 0 fail before it has closed
#: Set by a launcher that holds the other end of this process' standard input: at its end, end.
WATCH_STDIN = "OPENRECIPES_WATCH_STDIN"


def work(job: Job, output: Path, argv: Sequence[str], *, force: bool = False) -> ExitCode:
    """Be the rank that RANK and WORLD_SIZE tell of (one process where they are not set).

    Under a launcher (OPENRECIPES_RUN_ID is set) the record in ``output`` is prepared and closed by
    it; else rank 0 does both.

    Raises:
        InputError: rows or weights that turn out to be wrong; the record is closed as failed.
    """
    keep_freed_memory()
    prepared = os.environ.get(RUN_ID_VARIABLE)
    if os.environ.get(WATCH_STDIN):
        record = output if prepared and os.environ.get("RANK") == "0" else None
        threading.Thread(target=_end_with_launcher, args=(record, prepared), daemon=True).start()
    with join(job.settings.timeout_minutes) as world:
        writer = None
        if world.rank == 0:
            writer = (
                RunWriter.open(output, prepared)
                if prepared
                else RunWriter.create(
                    output, new_manifest(job, launcher="local", argv=argv), force=force
                )
            )
            mark(writer, started=utc_now())
        rank = Rank(job, world, writer)
        with _stop_on_signals(rank):
            code, fault = _attempt(rank, world, output)
        if writer and not prepared:
            state = {ExitCode.DONE: "done", ExitCode.STOPPED: "stopped"}.get(code, "failed")
            close(writer, state, rank.failure)
        if fault:
            raise fault
        return code


def _attempt(rank: Rank, world: World, output: Path) -> tuple[ExitCode, InputError | None]:
    """Run; whatever goes wrong is left in the record's logs, with phase and step."""
    code, fault, follows = ExitCode.NEGATIVE, None, False
    try:
        code = rank.run()
    except KeyboardInterrupt:
        return ExitCode.STOPPED, None
    except RecordTaken as error:  # the logs are another run's, too
        return ExitCode.USAGE, error
    except InputError as error:
        code, fault = ExitCode.USAGE, error
        rank.failure = _failure(rank, world, "crash", str(error))
    except Exception as error:
        traceback.print_exc()
        follows = _follows_another(error)
        message = f"{type(error).__name__}: {error}"
        rank.failure = _failure(rank, world, failure_kind(error), message)
    if rank.failure:
        RankFailure(rank.failure, time.time(), follows).write(output, world.rank)
    return code, fault


def _failure(rank: Rank, world: World, kind: str, message: str) -> Failure:
    return Failure.model_validate(
        {
            "kind": kind,
            "phase": rank.phase,
            "rank": world.rank,
            "step": rank.number,
            "message": message[:2000],
        }
    )


def failure_kind(error: BaseException) -> str:
    """``oom``, ``timeout`` or ``crash``."""
    text = str(error).lower()
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "out of memory" in text:
        return "oom"
    if "timed out" in text or "timeout" in text:
        return "timeout"
    return "crash"


def _follows_another(error: BaseException) -> bool:
    """Whether the error only says that another rank has gone."""
    text = str(error).lower()
    return any(sign in text for sign in ("connection closed by peer", "connection reset", "gloo"))


@contextmanager
def _stop_on_signals(rank: Rank) -> Iterator[None]:
    """Let SIGTERM and the first Ctrl-C end the run after the step; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if rank.stopping:
            raise KeyboardInterrupt
        rank.stopping = True
        print("stopping after this step", file=sys.stderr, flush=True)

    old: list[tuple[int, Callable[..., object] | int | None]] = [
        (number, signal.signal(number, stop)) for number in (signal.SIGTERM, signal.SIGINT)
    ]
    try:
        yield
    finally:
        for number, handler in old:
            signal.signal(number, handler)


def _end_with_launcher(record: Path | None, run_id: str | None) -> None:
    """End this process when the launcher's end of the pipe closes: it has died.

    Args:
        record: the record that the launcher can no longer close; None where another rank does it.
        run_id: the run that it must belong to.
    """
    while os.read(0, 1):  # not sys.stdin, whose lock would be held when the interpreter ends
        pass
    if record:
        message = "the launcher was killed; the ranks ended with it"
        failure = Failure(
            kind="crash", phase="launcher", node=socket.gethostname(), message=message
        )
        with suppress(InputError, OSError):
            close(RunWriter.open(record, run_id), "failed", failure)
    else:
        time.sleep(_AFTER_RANK_0_S)
    os._exit(ExitCode.STOPPED)
