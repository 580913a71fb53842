"""Scrubbing: what belongs to a machine or a person goes, what a recipe needs stays."""

import pytest

from openrecipes.publish.scrub import Scrubber, portable, strings


def scrub(text: str, **options: object) -> str:
    return Scrubber.learn([text], here=False, **options).text(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/jane/model/config.json", "~/model/config.json"),
        ("/Users/jane.doe/x", "~/x"),
        ("/root/.cache/hub", "~/.cache/hub"),
        ("rdzv at 10.0.12.7:29500", "rdzv at <address>:29500"),
        ("listening on [2001:db8::1]:80", "listening on [<address>]:80"),
        ("jane@node17: ready", "<user>@<host>: ready"),
        ("mail jane.doe@example.org", "mail <address>"),
        ("ip-10-0-0-5.ec2.internal joined", "<host> joined"),
        ("ether 0a:1b:2c:3d:4e:5f", "ether <address>"),
        ("USER=jane in /data/jane/x", "USER=<user> in /data/<user>/x"),
        ("GPU-12345678-1234-1234-1234-123456789abc", "<gpu>"),
        ("token hf_abcdefghijklmnopqrst", "token <token>"),
    ],
)
def test_what_tells_something_is_replaced(text: str, expected: str) -> None:
    assert scrub(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "radixark/miles:v0.1.0@sha256:45ae7833f97a01369dbd8f336784830a87d94587bc01",
        "driver 580.95.05, NCCL 2.28.9, torch 2.13.0+cpu",
        "step 5 at 12:34:56.789 took 1:02:03",
        "127.0.0.1:8265 and localhost and ::1",
        "sha256 c6021eb6847e682f89aa52d5eb6e8c7d902a23acfc8137e25211cf84828f1592",
        "--tensor-model-parallel-size 4 --lr 1e-5",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "2026-10-15T12:00:00Z",
        "loss = weights@hidden + bias, user: unknown, user=None",
    ],
)
def test_what_tells_nothing_stays(text: str) -> None:
    assert scrub(text) == text


def test_hosts_are_replaced_in_full_and_short_form() -> None:
    text = "gpu-box-3.cluster.example joined, GPU-BOX-3 left, gpu-box-30 stays"
    assert scrub(text, hosts=["gpu-box-3.cluster.example"]) == (
        "<host> joined, <host> left, gpu-box-30 stays"
    )


def test_a_user_name_found_once_is_replaced_everywhere() -> None:
    texts = ["/home/jane/x", "jane_exp/run and /scratch/jane-2/logs, but janet stays"]
    scrubber = Scrubber.learn(texts, here=False)
    assert scrubber.text(texts[1]) == "<user>_exp/run and /scratch/<user>-2/logs, but janet stays"


def test_words_that_the_recipe_needs_stay() -> None:
    text = "/home/nano/x trains Nemotron-3-Nano-30B-A3B"
    assert scrub(text, needed=["Nemotron-3-Nano-30B-A3B"]) == "~/x trains Nemotron-3-Nano-30B-A3B"


def test_this_machines_names_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "own-laptop")
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    text = Scrubber.learn([]).text("somebody on own-laptop")
    assert text == "<user> on <host>"


def test_values_are_scrubbed_and_keys_stay() -> None:
    scrubber = Scrubber(users=("jane",))
    value = {"jane": ["jane", 1, None, {"x": "by jane"}], "n": 2.5}
    assert scrubber.value(value) == {
        "jane": ["<user>", 1, None, {"x": "by <user>"}],
        "n": 2.5,
    }
    assert list(strings(value)) == ["jane", "by jane"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/some/where/src/openrecipes/__main__.py", "openrecipes"),
        ("/some/where/.venv/bin/openrecipes", "openrecipes"),
        ("/data/rows.parquet", "rows.parquet"),
        ("--rows=/data/team/rows.parquet", "--rows=rows.parquet"),
        ("~/model/config.json", "config.json"),
        ("/data/team/", "team"),
        ("/", "."),
        ("/a/b:/c/d", "b:d"),
        (
            "/cache/hub/models--nvidia--X/snapshots/0123456789012345678901234567890123456789",
            "models--nvidia--X/snapshots/0123456789012345678901234567890123456789",
        ),
    ],
)
def test_absolute_paths_become_portable(text: str, expected: str) -> None:
    assert portable(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("https://huggingface.co/nvidia/X", "out/run", "../rows.parquet", "--lr", "1e-5", ""),
        *("$HOME/rows.parquet", "${DATA}/rows.parquet", "tokens/s", "nvidia/X"),
    ],
)
def test_what_is_portable_stays(text: str) -> None:
    assert portable(text) == text
