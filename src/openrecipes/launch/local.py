"""Our engine on this machine: the record is created, ranks run and are watched, it is closed."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from openrecipes.engine.job import Job
from openrecipes.engine.recording import RankFailure, close, new_manifest
from openrecipes.errors import ExitCode
from openrecipes.flags.parse import render_argv
from openrecipes.launch.processes import Ranks, threads_per_rank
from openrecipes.launch.progress import Progress
from openrecipes.runs.record import RUN_ID_VARIABLE, Failure, RecordTaken, RunWriter

_POLL_S = 0.1
_LAST_WORDS_S = 2.0  # for the others to notice that a rank has gone
_KILL_AFTER_S = 3.0
_STOP_WITHIN_S = 60.0  # for the step that they are in when asked to stop
_LOG_LINES = 12


def run_local(
    job: Job,
    output: Path,
    *,
    argv: Sequence[str],
    console: Console,
    force: bool = False,
    env: Mapping[str, str] | None = None,
    model: Mapping[str, str | None] | None = None,
) -> ExitCode:
    """Train on local processes; the record in ``output`` tells how it went.

    Args:
        job: the checked job.
        output: directory of the run record.
        argv: the command as the user gave it, for the record.
        console: where progress and errors are shown.
        force: replace an earlier record.
        env: environment variables of the ranks besides this process' own.
        model: name, source and revision, as far as known.

    Returns:
        DONE, NEGATIVE (failed), USAGE (a rank found wrong input) or STOPPED.

    Raises:
        InputError: ``output`` exists, or a run that still goes on writes there.
    """
    environ = rank_environment(job.world_size, env)
    manifest = new_manifest(job, launcher="local", argv=argv, model=model, environ=environ)
    writer = RunWriter.create(output, manifest, force=force)
    stop = _Stop()
    try:
        with stop.on_signals():
            ranks = Ranks(
                rank_words(job, output),
                job.world_size,
                output / "logs",
                {**environ, RUN_ID_VARIABLE: manifest.id},
                writer.lock,
            )
            progress = Progress(output, job.settings.steps, console)
            try:
                _watch(ranks, stop, progress)
            finally:
                ranks.kill()
                progress.close()
            return _close(RunWriter.open(output, manifest.id), ranks, stop, console)
    except RecordTaken:
        raise
    except KeyboardInterrupt:  # before signals are watched for
        close(writer, "stopped")
        raise
    except BaseException as error:
        close(writer, "failed", Failure(kind="crash", phase="launch", message=repr(error)))
        raise
    finally:
        writer.close()


def rank_words(job: Job, output: Path) -> list[str]:
    """The arguments of ``openrecipes`` for each rank."""
    ours = ("output", "nproc-per-node")
    flags = {name: value for name, value in job.given.items() if name not in ours}
    return ["train", "--output", str(output), *render_argv(flags)]


def rank_environment(ranks: int, env: Mapping[str, str] | None) -> dict[str, str]:
    """This process' environment, the given variables, and OMP_NUM_THREADS where neither sets it."""
    threads = {"OMP_NUM_THREADS": str(threads_per_rank(ranks))}
    return {**threads, **os.environ, **(env or {})}


class _Stop:
    """How often the user asked to stop: once is after this step, twice is now."""

    def __init__(self) -> None:
        self.asked = 0

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(*_: object) -> None:
            self.asked += 1

        old = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def _watch(ranks: Ranks, stop: _Stop, progress: Progress) -> None:
    """Until all have ended: show steps, pass a stop on, end the others when one fails."""
    deadline: float | None = None
    while True:
        codes = ranks.poll()
        progress.update()
        if None not in codes:
            return
        if any(code not in (None, ExitCode.DONE, ExitCode.STOPPED) for code in codes):
            if not ranks.wait(_LAST_WORDS_S):
                ranks.end(_KILL_AFTER_S)
            return
        if stop.asked and deadline is None:
            deadline = time.monotonic() + _STOP_WITHIN_S
            ranks.terminate()
        if stop.asked > 1 or (deadline is not None and time.monotonic() > deadline):
            ranks.kill()
            return
        time.sleep(_POLL_S)


def _close(writer: RunWriter, ranks: Ranks, stop: _Stop, console: Console) -> ExitCode:
    """Write the record's end from how the ranks ended, and say what went wrong."""
    output, codes = writer.path, ranks.poll()
    if all(code == ExitCode.DONE for code in codes):
        close(writer, "done")
        return ExitCode.DONE
    if stop.asked or all(code in (ExitCode.DONE, ExitCode.STOPPED) for code in codes):
        close(writer, "stopped")
        console.print(f"stopped; the steps so far are in {output}", highlight=False)
        return ExitCode.STOPPED
    failure = first_failure(output, ranks.order_of_death, codes)
    close(writer, "failed", failure)
    _tell(failure, output, console)
    return ExitCode.USAGE if ExitCode.USAGE in codes else ExitCode.NEGATIVE


def first_failure(
    output: Path, order_of_death: Sequence[int], codes: Sequence[int | None]
) -> Failure:
    """The failure that the others followed from.

    A rank that was killed by a signal leaves no word; it goes before ranks that only lost their
    connection. Else it is the first that left one, else the first that ended.
    """
    told = RankFailure.read_all(output)
    if told and not told[0].follows:
        return told[0].failure.model_copy(update={"node": socket.gethostname()})
    silent = [rank for rank in order_of_death if codes[rank] not in (0, None)]
    named = {failed.failure.rank for failed in told}
    rank = next((rank for rank in silent if rank not in named), silent[0])
    code = codes[rank] or 0
    by_signal = f"ended by signal {signal.Signals(-code).name}" if code < 0 else None
    step = next((failed.failure.step for failed in told), None)
    return Failure(
        kind="crash",
        rank=rank,
        node=socket.gethostname(),
        step=step,
        message=by_signal or f"ended with exit code {code}: {last_line(output, rank)}",
    )


def last_line(output: Path, rank: int) -> str:
    """The last line of a rank's log that is not empty."""
    lines = _log(output, rank)
    return lines[-1] if lines else "its log is empty"


def _log(output: Path, rank: int) -> list[str]:
    try:
        text = (output / "logs" / f"rank-{rank}.log").read_text("utf-8", errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _tell(failure: Failure, output: Path, console: Console) -> None:
    where = "the run" if failure.rank is None else f"rank {failure.rank}"
    at = "" if failure.step is None else f" at step {failure.step}"
    lines = [f"error: {where} failed{at} ({failure.kind}): {failure.message}"]
    if failure.kind != "nan" and failure.rank is not None:
        lines += [f"  {line}" for line in _log(output, failure.rank)[-_LOG_LINES:]]
        lines.append(f"see {output / 'logs' / f'rank-{failure.rank}.log'}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
