"""What the engine writes into a run record: the manifest's beginning and its end."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from openrecipes.architectures.describe import describe
from openrecipes.engine.job import Job
from openrecipes.errors import InputError
from openrecipes.files import read_json, sha256_file, write_json
from openrecipes.layouts.recompute import effective_recompute
from openrecipes.rows.report import build_path, read_build
from openrecipes.runs.record import Failure, Manifest, RunWriter, new_run_id, utc_now
from openrecipes.runs.stack import capture, environment, machine


@dataclass(frozen=True)
class RankFailure:
    """Why a rank ended, left in the record's logs for the launcher.

    Args:
        failure: kind, phase, rank, step and message.
        time: when, in seconds since 1970.
        follows: whether it only says that another rank has gone.
    """

    failure: Failure
    time: float
    follows: bool

    def write(self, record: Path, rank: int) -> None:
        """Leave it as ``logs/rank-N.failure.json``."""
        logs = record / "logs"
        if logs.is_dir():
            document = {**asdict(self), "failure": self.failure.model_dump(mode="json")}
            write_json(logs / f"rank-{rank}.failure.json", document)

    @classmethod
    def read_all(cls, record: Path) -> list[RankFailure]:
        """What the ranks left, in the order in which they failed, followers last."""
        found = []
        for path in (record / "logs").glob("rank-*.failure.json"):
            document = read_json(path)
            failure = Failure.model_validate(document["failure"])
            found.append(cls(failure, document["time"], document["follows"]))
        return sorted(found, key=lambda failed: (failed.follows, failed.time))


def new_manifest(
    job: Job,
    *,
    launcher: str,
    argv: Sequence[str],
    admitted: datetime | None = None,
    per_node: int | None = None,
    model: Mapping[str, str | None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Manifest:
    """The manifest of a job that is about to start.

    Args:
        job: the checked job.
        launcher: ``local``, ``ray`` or ``slurm``.
        argv: the command as it was given.
        admitted: when the scheduler let the job in; now, where there is no scheduler.
        per_node: ranks of one machine.
        model: name, source and revision, as far as known.
        environ: environment variables of the ranks.
    """
    here = machine()
    rows_sha256 = job.rows.rows_sha256()
    config = effective_recompute(job.layout, "native", job.config.pattern)
    return Manifest.model_validate(
        {
            "id": new_run_id(),
            "engine": "native",
            "launcher": launcher,
            "argv": list(argv),
            "flags": job.flags,
            "env": environment(os.environ if environ is None else environ)[0],
            "model": {
                **(model or {}),
                "config_sha256": sha256_file(job.config_file),
                **_sizes(job),
            },
            "rows": {
                "path": str(job.rows.path),
                "rows_sha256": rows_sha256,
                "parquet_sha256": job.rows.parquet_sha256(),
                "row_tokens": job.rows.row_tokens,
                "dataset": _dataset(job, rows_sha256),
            },
            "layout": job.layout.model_dump(mode="json"),
            "world_size": job.world_size,
            "stack": capture("native"),
            "machine": {
                "gpu": here["gpu"],
                "count": job.world_size,
                "per_node": per_node or job.world_size,
                "hosts": [socket.gethostname()],
            },
            "times": {"admitted": admitted or utc_now()},
            "effective": {
                "recompute": config,
                "ineffective_flags": [
                    {"flag": name, "reason": reason} for name, reason in job.ineffective.items()
                ],
            },
            "profiler": False,
            "parity_probe": bool(job.settings.probe_steps),
        }
    )


def _dataset(job: Job, rows_sha256: str) -> dict[str, Any] | None:
    """Where the rows come from, as their build report says; None without one."""
    report = read_build(job.rows.path)
    if report is not None and report.get("rows_sha256") != rows_sha256:
        raise InputError(
            "build the rows again, or move the report away",
            file=build_path(job.rows.path),
            field="rows_sha256",
            found=report.get("rows_sha256"),
            expected=f"{rows_sha256}, of the rows beside it",
        )
    return report


def _sizes(job: Job) -> dict[str, int | None]:
    """Parameters in all and active per token; see ``architectures.describe``."""
    described = describe(read_json(job.config_file))
    return {
        "parameters": described.parameters,
        "active_parameters": described.active_parameters,
    }


def mark(writer: RunWriter, **times: datetime) -> None:
    """Set some of the manifest's times and keep the others."""
    writer.update(times={**writer.manifest.times.model_dump(), **times})


def close(writer: RunWriter, state: str, failure: Failure | None = None) -> None:
    """End a record: its state, why it failed, when it finished."""
    finished = {**writer.manifest.times.model_dump(), "finished": utc_now()}
    writer.update(state=state, failure=failure, times=finished)
