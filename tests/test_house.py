"""The house itself: the order of the rooms, a light front door, readable modules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "openrecipes"
ROOMS = sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))
HEAVY = ("torch", "transformers", "ray", "pyarrow", "numpy", "ruamel", "tokenizers", "jinja2")


def openrecipes(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "openrecipes", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_rooms_import_downhill_only() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_only_the_engine_imports_torch() -> None:
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        if room == "engine":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not [name for name in names if name.split(".")[0] == "torch"], path


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from openrecipes.cli.main import run\n"
        "run(['--help'])\n"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "print('HEAVY', heavy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.rstrip().endswith("HEAVY []")


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_it_is_for(room: str) -> None:
    docstring = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()))
    assert docstring


def commands() -> list[list[str]]:
    """Every command of the application, as the words that call it."""
    from openrecipes.cli.main import app

    found: list[list[str]] = []

    def walk(group: object, words: list[str]) -> None:
        for command in group.registered_commands:  # type: ignore[attr-defined]
            name = command.name or command.callback.__name__.replace("_", "-")
            found.append([*words, name])
        for child in group.registered_groups:  # type: ignore[attr-defined]
            walk(child.typer_instance, [*words, child.name])

    walk(app, [])
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_helps_with_an_example(words: list[str]) -> None:
    done = openrecipes(*words, "--help")
    assert done.returncode == 0, done.stderr
    assert "xample" in done.stdout, f"{' '.join(words)} --help shows no example"
    assert done.stdout.count(f"openrecipes {words[0]}") >= 2


@pytest.mark.parametrize(
    "argv", [["no-such-command"], ["--no-such-option"], ["lint"], ["measure", "no/such/run"]]
)
def test_wrong_usage_is_one_line_and_exit_2(argv: list[str]) -> None:
    done = openrecipes(*argv)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_modules_stay_readable() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 420
    }
    assert not long


def test_no_path_of_one_machine_is_tracked() -> None:
    """Documents and code must mean the same on every machine."""
    pattern = re.compile(r"(?<![A-Za-z0-9.])/(root|home)/")
    hits = [
        str(path.relative_to(ROOT))
        for folder in ("src", "docs", "demo", "benchmarks", "recipes")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".yaml", ".toml", ".sh"}
        and pattern.search(path.read_text(encoding="utf-8"))
        and "__pycache__" not in path.parts
    ]
    # The scrubbing rules have to name what they scrub.
    assert [hit for hit in hits if not hit.startswith("src/openrecipes/publish")] == []
