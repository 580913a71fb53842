"""The wheel alone, in a clean environment without torch, can do what a user's CI needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*argv: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment that holds only the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    assert run(sys.executable, "-m", "venv", folder / "venv", cwd=folder).returncode == 0
    python = folder / "venv" / "bin" / "python"
    installed = run(
        python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=folder
    )
    assert installed.returncode == 0, installed.stderr
    return python


def test_wheel_lints_lists_and_builds_pages_without_torch(
    clean_environment: Path, tmp_path: Path
) -> None:
    python = clean_environment
    assert run(python, "-c", "import torch", cwd=tmp_path).returncode != 0
    listed = run(python, "-m", "openrecipes", "list", "--json", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "Nemotron-3-Nano-30B-A3B" in listed.stdout
    for seed in (ROOT / "recipes").rglob("attune-*.yaml"):
        linted = run(python, "-m", "openrecipes", "lint", "--strict", seed, cwd=tmp_path)
        assert linted.returncode == 0, linted.stdout + linted.stderr
    built = run(
        *(python, "-m", "openrecipes", "site", "build"),
        *("--recipes", ROOT / "recipes", "--output", tmp_path / "site"),
        cwd=tmp_path,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "index.html").is_file()
