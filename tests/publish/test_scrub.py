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
        ("/nfs/home/jane/x and /home2/jane", "~/x and ~"),
        ("/mnt/nfs/home3/jane.doe/x", "~/x"),
        ("file:///home/jane/x", "file://~/x"),
        ("--volume a:/home/jane/x", "--volume a:~/x"),
        ("~jane/x by jane", "~/x by <user>"),
        ("C:\\Users\\Jane\\x", "~\\x"),
        ("C:\\\\Users\\\\Jane\\\\x", "~\\\\x"),
        ("C:/Users/Jane/x", "~/x"),
        ("MASTER_ADDR=gpu-a7 then gpu-a7 again", "MASTER_ADDR=<host> then <host> again"),
        ("hostname=gpu-a7.cluster.example, gpu-a7", "hostname=<host>, <host>"),
        ("'HOSTNAME': 'gpu-a7'", "'HOSTNAME': '<host>'"),
        ("tcp://gpu-a7:29500", "tcp://<host>:29500"),
        ("dashboard at http://gpu-a7:8265", "dashboard at http://<host>:8265"),
        ("SLURMD_NODENAME=gpu-a7", "SLURMD_NODENAME=<host>"),
        ("SLURM_JOB_NODELIST=gpu-a[7-9,12]", "SLURM_JOB_NODELIST=<host>"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG+bPx", "AWS_SECRET_ACCESS_KEY=<token>"),
        ("AWS_ACCESS_KEY_ID=ABCDEFGHIJKLMNOP", "AWS_ACCESS_KEY_ID=<token>"),
        ("WANDB_API_KEY: '0123456789abcdef'", "WANDB_API_KEY: '<token>'"),
        ("export HF_TOKEN=plain-text-1", "export HF_TOKEN=<token>"),
        ("--wandb-key=0123456789 --lr 1", "--wandb-key=<token> --lr 1"),
        ("password: hunter22", "password: <token>"),
        ("Authorization: Bearer abcdef.0123456789-_x", "Authorization: Bearer <token>"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl", "<token>"),
        ("https://jane:s3cret@example.org/x", "https://<token>@<host>/x"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIB\nabc=\n-----END RSA PRIVATE KEY-----.",
            "<token>.",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEA7\nthe end", "<token>\nthe end"),
        ("version 1.2.3.4 on 10.1.2.3", "version 1.2.3.4 on <address>"),
        ("peer 8.8.4.4:53, ranks of 172.16.0.9", "peer <address>:53, ranks of <address>"),
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
        "version 1.2.3.4, v2.3.4.5, cuDNN 9.10.2.21, nvidia-cudnn-cu13==9.13.0.50",
        "driver version: 580.95.5.1, libfabric 1.22.0.1, NCCL 2.28.9.1",
        "tokens_per_s=5229.2 --max-tokens-per-gpu 8192 EOS_TOKEN=</s> eos-token: 11",
        "--input-key messages --metadata-key metadata SORT_KEY=conversation",
        "https://example.org/home/page and https://huggingface.co/datasets/x",
        "MASTER_ADDR=localhost hostname: unknown, about ~5 min, ~/x",
        "basic training and the bearer of news; a token: 11",
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
