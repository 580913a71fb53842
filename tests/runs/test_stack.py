"""Stack capture: allow list, device files, git state; nothing heavy imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from openrecipes.runs import stack


def test_only_allowed_variables_are_recorded_with_values() -> None:
    values, names = stack.environment(
        {
            "NCCL_DEBUG": "INFO",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_USER": "me",
            "HF_TOKEN": "hf_secret",
            "RAY_AUTH_TOKEN": "also secret",
            "HOME": "/somewhere",
        }
    )
    assert values == {
        "NCCL_DEBUG": "INFO",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "SLURM_JOB_NUM_NODES": "2",
    }
    assert names == ["HF_TOKEN", "HOME", "RAY_AUTH_TOKEN", "SLURM_JOB_USER"]


def test_nvidia_smi_lines_are_read() -> None:
    text = "NVIDIA H200, 143771, 580.95.05\nNVIDIA H200, [N/A], 580.95.05\nNo devices were found\n"
    assert stack.parse_nvidia_smi(text) == [
        {"name": "NVIDIA H200", "memory_mib": 143771, "driver": "580.95.05"},
        {"name": "NVIDIA H200", "memory_mib": None, "driver": "580.95.05"},
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file tree like that of an EFA machine on AWS."""
    (tmp_path / "drivers/efa").mkdir(parents=True)
    for i in range(2):
        device = tmp_path / f"sys/class/infiniband/rdmap{i}s0"
        (device / "ports/1").mkdir(parents=True)
        (device / "device").mkdir()
        (device / "device/driver").symlink_to(tmp_path / "drivers/efa")
        (device / "ports/1/rate").write_text("200 Gb/sec (4X HDR)\n")
        (device / "ports/1/link_layer").write_text("Unspecified\n")
    dmi = tmp_path / "sys/devices/virtual/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "sys_vendor").write_text("Amazon EC2\n")
    (dmi / "product_name").write_text("p5en.48xlarge\n")
    (tmp_path / "opt/amazon").mkdir(parents=True)
    (tmp_path / "opt/amazon/efa_installed_packages").write_text("libfabric-2.1\nofi-nccl-1.20.0\n")
    return tmp_path


def test_links_and_instance_come_from_the_machines_files(root: Path) -> None:
    text = "8 GPUs per node, 2 x EFA (aws-ofi-nccl 1.20.0), 200 Gb/s each"
    assert stack.network(8, root) == text
    assert stack.instance(root) == "AWS p5en.48xlarge"


def test_infiniband_and_roce_are_told_apart(tmp_path: Path) -> None:
    for name, layer in (("mlx5_0", "InfiniBand"), ("mlx5_1", "Ethernet")):
        port = tmp_path / f"sys/class/infiniband/{name}/ports/1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(layer)
        (port / "rate").write_text("400 Gb/sec (4X NDR)")
    assert [nic["kind"] for nic in stack.nics(tmp_path)] == ["InfiniBand", "RoCE"]


def test_a_machine_without_anything_gives_none(tmp_path: Path) -> None:
    assert stack.nics(tmp_path) == []
    assert stack.network(0, tmp_path) is None
    assert stack.instance(tmp_path) is None


def test_the_image_is_what_the_launcher_named() -> None:
    given = {stack.IMAGE_VARIABLE: "radixark/miles:v0.1.0@sha256:45ae"}
    assert stack.image(given) == {"name": "radixark/miles:v0.1.0", "digest": "sha256:45ae"}
    assert stack.image({}) is None


def git(folder: Path, *argv: str) -> None:
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", folder, *identity, *argv], check=True, capture_output=True)


def test_git_state_tells_commit_and_local_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "somepackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    git(tmp_path, "init", "-q")
    assert stack.git_state("somepackage") is None  # nothing of it is tracked
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    clean = stack.git_state("somepackage")
    assert clean is not None and clean.startswith("commit ") and "no local changes" in clean
    (package / "__init__.py").write_text("changed = True\n")
    dirty = stack.git_state("somepackage")
    assert dirty is not None and dirty.endswith(", local changes")


def test_a_module_that_is_not_there_has_no_git_state() -> None:
    assert stack.git_state("no_such_module_anywhere") is None


def test_capture_names_the_engine_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from openrecipes.runs.stack import capture\n"
        "found = capture()\n"
        "print(found['framework'].split()[0], found['python'] is not None, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["openrecipes", "True", "False"]
