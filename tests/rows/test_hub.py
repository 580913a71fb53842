from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from openrecipes.rows.report import read_build
from tests.rows.given import talk, write_lines

ADDRESS = "hf://owner/chats@" + "0123456789" * 4


def test_a_pinned_hub_data_set_is_fetched_and_named(
    tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    folder = tmp_path / "snapshot"
    folder.mkdir()
    write_lines(folder / "train.jsonl", [talk("a", "b " * 30)] * 3)

    def fetch(name: str, **options: Any) -> str:
        asked.append((name, options["repo_type"], options["revision"]))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    code, _, err = build("--row-tokens", 16, input_=ADDRESS)
    assert code == 0, err
    assert asked == [("owner/chats", "dataset", "0123456789" * 4)]
    block = read_build(tmp_path / "rows.parquet")
    assert block is not None
    assert (block["source"], block["revision"]) == ("owner/chats", "0123456789" * 4)


def test_without_a_network_the_error_says_so(
    tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    code, out, err = build(input_=ADDRESS)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no route to host" in err
    assert "network" in err
