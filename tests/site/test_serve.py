from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from openrecipes.errors import InputError
from openrecipes.runs.record import RunWriter
from openrecipes.site.live import Watch
from openrecipes.site.serve import server
from tests.site import make


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    site = tmp_path / "site"
    (site / "sub").mkdir(parents=True)
    (site / "index.html").write_text("<h1>here</h1>")
    (site / ".openrecipes-site.json").write_text("{}")
    (site / "r.yaml").write_text("a: 1\n")
    (tmp_path / "secret.txt").write_text("secret")
    (site / "link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "runs").mkdir()
    with server(site, "127.0.0.1", 0, tmp_path / "runs") as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield "127.0.0.1", int(running.server_address[1])
        running.shutdown()
        thread.join()


def ask(address: tuple[str, int], path: str, method: str = "GET", **headers: str) -> HTTPResponse:
    connection = HTTPConnection(*address, timeout=10)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    return connection.getresponse()


def test_pages_come_with_a_strict_policy(address: tuple[str, int]) -> None:
    answer = ask(address, "/index.html")
    assert answer.status == 200
    assert answer.read() == b"<h1>here</h1>"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert ask(address, "/r.yaml").headers["Content-Type"] == "application/yaml"


@pytest.mark.parametrize(
    "path",
    [
        "/.openrecipes-site.json",
        "/%2eopenrecipes-site.json",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/sub/..%2f..%2fsecret.txt",
        "/link.txt",
        "/sub/",
        "/nothing.html",
        "/live/other.html",
    ],
)
def test_nothing_else_is_given_away(address: tuple[str, int], path: str) -> None:
    answer = ask(address, path)
    assert answer.status == 404
    assert b"secret" not in answer.read()


def test_only_reading_is_answered(address: tuple[str, int]) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert ask(address, "/index.html", method).status == 501
    assert ask(address, "/live/index.html", "HEAD").read() == b""


def test_an_unchanged_part_is_not_sent_again(address: tuple[str, int], tmp_path: Path) -> None:
    make.run(tmp_path / "runs" / "a", "run-a", steps=2, state="running")
    first = ask(address, "/live/part.html")
    tag = first.headers["ETag"]
    assert b"run-a" in first.read()
    assert ask(address, "/live/part.html", If_None_Match=tag).status == 304
    RunWriter.open(tmp_path / "runs" / "a").update(state="stopped")
    assert ask(address, "/live/part.html", If_None_Match=tag).status == 200


@pytest.mark.parametrize("watch", [None, "runs"])
def test_wrong_folders_are_refused(tmp_path: Path, watch: str | None) -> None:
    if watch:
        (tmp_path / "site").mkdir()
    with pytest.raises(InputError, match="no such directory"):
        server(tmp_path / "site", "127.0.0.1", 0, tmp_path / watch if watch else None)


def test_a_taken_port_is_named(address: tuple[str, int], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=str(address[1])):
        server(tmp_path / "site", *address)


def test_hostile_records_stay_text(tmp_path: Path) -> None:
    text = "<script>alert(1)</script>"
    make.run(
        tmp_path / "x", text, steps=2, state="failed", layout={**make.LAYOUT, "label": text},
        failure={"kind": "crash", "message": text},
    )  # fmt: skip
    part = Watch(tmp_path).part()
    assert "<script" not in part
    assert "&lt;script&gt;" in part


def test_a_broken_record_is_shown_as_such(tmp_path: Path) -> None:
    make.run(tmp_path / "good", "good", steps=2)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text('{"run_version": 1, "id"')
    part = Watch(tmp_path).part()
    assert "unreadable" in part and "good" in part


def test_a_run_that_has_gone_quiet_says_so(tmp_path: Path) -> None:
    path = make.run(tmp_path / "a", "a", steps=3, state="running")
    at = (path / "steps.jsonl").stat().st_mtime
    assert "no step for" not in Watch(tmp_path, now=lambda: at + 5).part()
    assert "no step for 10.0 min" in Watch(tmp_path, now=lambda: at + 600).part()


def test_trials_of_a_tune_stand_together(tmp_path: Path) -> None:
    for number in (1, 2):
        make.run(tmp_path / "tune-a" / "trials" / f"00{number}", f"trial-{number}", steps=2)
    make.run(tmp_path / "alone", "alone", steps=2, state="running")
    runs = {run.name: run.group for run in Watch(tmp_path).runs()}
    assert runs["trial-1"] == runs["trial-2"] == "tune-a"
    assert Watch(tmp_path).runs()[0].name == "alone"


def test_progress_and_time_left(tmp_path: Path) -> None:
    make.run(tmp_path / "a", "a", seconds=2.0, steps=5, state="running")
    run = Watch(tmp_path).runs()[0]
    assert (run.done, run.total, run.told, run.share) == (5, 20, "5 of 20 steps", 25.0)
    assert run.left.endswith("s") and 25 < float(run.left.split()[0]) < 35
    assert float(run.rate.replace(",", "")) > 1000


def test_no_runs_yet(address: tuple[str, int]) -> None:
    url = f"http://{address[0]}:{address[1]}/live"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert b"No run has begun here yet" in answer.read()
