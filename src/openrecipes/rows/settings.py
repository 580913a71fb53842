"""All settings of a build, and what may not stand in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from openrecipes.errors import InputError
from openrecipes.rows.encoder import EncoderSettings
from openrecipes.rows.refusals import REASONS, Refused
from openrecipes.rows.report import PACKING, DatasetFacts, build_path
from openrecipes.rows.selection import Mixture, check_mixture

#: Version of the bytes: the same version never gives other rows for the same input and settings.
BUILD_VERSION = 1

_MOST_WORKERS = 1024
REPORT_ENDINGS = (".json", ".html")


@dataclass(frozen=True)
class BuildSettings:
    """All settings of a build; see ``openrecipes rows build --help``."""

    inputs: tuple[str, ...]
    output: Path
    encoder: EncoderSettings
    packing: str = "concat"
    row_tokens: int = 8192
    rows: int | None = None
    seed: int = 42
    overlong: str = "refuse"
    skip: frozenset[str] = frozenset()
    supervise_eos: bool = False
    allow_unlearned_ends: bool = False
    padding: int | None = None
    mixture: Mixture | None = None
    eval_conversations: int | None = None
    eval_share: float | None = None
    eval_output: Path | None = None
    reports: tuple[Path, ...] = ()
    facts: DatasetFacts = field(default_factory=DatasetFacts)
    builder: str = "openrecipes rows build"
    workers: int | None = None
    resume: bool = False
    force: bool = False
    dry_run: bool = False

    @property
    def held_out(self) -> bool:
        """Is there an evaluation split?"""
        return self.eval_conversations is not None or self.eval_share is not None

    @property
    def eval_path(self) -> Path:
        """Where the evaluation rows go."""
        return self.eval_output or self.output.parent / f"{self.output.stem}.eval.parquet"

    def skips(self, refused: Refused) -> bool:
        """Is a refused conversation left out and counted, instead of ending the build?"""
        if refused.reason in self.skip or "all" in self.skip:
            return True
        return refused.reason == "overlong" and self.overlong == "skip"


def check(settings: BuildSettings) -> None:
    """Raises InputError for settings that make no sense, or that would overwrite files."""
    for name, value, allowed in (
        ("--packing", settings.packing, tuple(PACKING)),
        ("--overlong", settings.overlong, ("refuse", "skip", "split")),
    ):
        if value not in allowed:
            raise InputError("choose one", field=name, found=value, expected=", ".join(allowed))
    for name, number, least in (
        ("--row-tokens", settings.row_tokens, 2),
        ("--rows", settings.rows, 1),
        ("--seed", settings.seed, 0),
        ("--num-workers", settings.workers, 1),
        ("--eval-conversations", settings.eval_conversations, 1),
    ):
        if number is not None and number < least:
            raise InputError(
                "give a larger number", field=name, found=number, expected=f">= {least}"
            )
    if settings.workers is not None and settings.workers > _MOST_WORKERS:
        raise InputError(
            "start fewer processes",
            field="--num-workers",
            found=settings.workers,
            expected=f"<= {_MOST_WORKERS}",
        )
    if settings.row_tokens > 1 << 24:
        raise InputError(
            "give a shorter row",
            field="--row-tokens",
            found=settings.row_tokens,
            expected="<= 2^24",
        )
    if settings.eval_share is not None and not 0 < settings.eval_share < 1:
        raise InputError(
            "give a share",
            field="--eval-share",
            found=settings.eval_share,
            expected="0 < share < 1",
        )
    if settings.eval_share is not None and settings.eval_conversations is not None:
        raise InputError(
            "give one of them", field="--eval-share, --eval-conversations", found="both"
        )
    if unknown := settings.skip - set(REASONS) - {"all"}:
        raise InputError(
            "name reasons to skip",
            field="--skip",
            found=", ".join(sorted(unknown)),
            expected=", ".join([*REASONS, "all"]),
        )
    if settings.mixture is not None:
        check_mixture(settings.mixture, len(settings.inputs))
    for path in (settings.output, settings.eval_path):
        if not path.name:
            raise InputError("give a file", field="--output", found=f"{str(path)!r}")
    for report in settings.reports:
        if report.suffix not in REPORT_ENDINGS:
            raise InputError(
                "name the report by its kind",
                file=report,
                field="--report",
                found=f"the ending {report.suffix or 'of no kind'}",
                expected=" or ".join(REPORT_ENDINGS),
            )
    if settings.eval_output is not None and not settings.held_out:
        raise InputError(
            "pass --eval-share or --eval-conversations, too, or leave it out",
            field="--eval-output",
            found="no evaluation split",
        )


def outputs(settings: BuildSettings) -> list[tuple[Path, str]]:
    """Every file that a build writes, with the option that names it."""
    rows = [(settings.output, "--output")]
    if settings.held_out:
        rows.append((settings.eval_path, "--eval-output"))
    blocks = [(build_path(path), f"{option} (its data-set block)") for path, option in rows]
    return [*rows, *blocks, *((report, "--report") for report in settings.reports)]
