"""Hugging Face data sets as inputs: ``hf://OWNER/NAME@REVISION``, fetched once, pinned."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from openrecipes.errors import InputError, one_line

PREFIX = "hf://"
_ADDRESS = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)@(?P<revision>[\w.-]+)(?P<path>/.*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def fetched(inputs: Sequence[str]) -> list[str]:
    """Inputs with every hub data set replaced by the local folder it was fetched to.

    Raises:
        InputError: no pinned revision, no huggingface_hub, no network, or no such data set.
    """
    return [_fetch(given) if given.startswith(PREFIX) else given for given in inputs]


def origin(inputs: Sequence[str]) -> tuple[str, str] | None:
    """Name and revision of the one hub data set that all inputs come from, or None."""
    found = {(m["name"], m["revision"]) for m in map(_ADDRESS.fullmatch, inputs) if m}
    one = len(found) == 1 and all(given.startswith(PREFIX) for given in inputs)
    return found.pop() if one else None


def _fetch(address: str) -> str:
    match = _ADDRESS.fullmatch(address)
    if match is None or not _COMMIT.fullmatch(match["revision"]):
        raise InputError(
            "pin the data set to a commit",
            file=address,
            field="--input",
            found=address if match is None else f"revision {match['revision']}",
            expected="hf://OWNER/NAME@COMMIT (40 hex digits)[/PATH]",
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            "pip install 'openrecipes[hub]'", file=address, found="huggingface_hub is not installed"
        ) from None
    path = (match["path"] or "").strip("/")
    patterns = (
        [f"{path}", f"{path}/**"] if path else ["*.parquet", "*.jsonl", "*.jsonl.gz", "*.jsonl.zst"]
    )
    try:
        folder = snapshot_download(
            match["name"],
            repo_type="dataset",
            revision=match["revision"],
            allow_patterns=patterns,
        )
    except Exception as error:  # the hub's client raises many kinds
        raise InputError(
            "check name, revision and network, or download the files and give their path",
            file=address,
            field="--input",
            found=f"{type(error).__name__}: {one_line(error, 160)}",
            expected="a data set that can be fetched",
        ) from None
    return str(Path(folder) / path) if path else folder
