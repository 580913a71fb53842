"""The house itself: the order of the rooms, a light front door, readable modules."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from openrecipes.cli.main import app, run

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "openrecipes"
ROOMS = sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))
HEAVY = ("torch", "transformers", "ray", "pyarrow", "numpy", "ruamel", "tokenizers", "jinja2")


def test_rooms_import_downhill_only() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_torch_stays_in_the_rooms_that_compute_with_it() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[:2] == ("gate", "components"):
            continue
        if path.relative_to(PACKAGE).parts[0] == "engine":
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
def test_every_command_helps_with_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 0
    told = capsys.readouterr().out
    assert "xample" in told, f"{' '.join(words)} --help shows no example"
    assert f"openrecipes {words[0]}" in told


@pytest.mark.parametrize(
    "argv", [["no-such-command"], ["--no-such-option"], ["lint"], ["measure", "no/such/run"]]
)
def test_wrong_usage_is_one_line_and_exit_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert run([*argv, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == 1
    assert set(document["error"]) == {"file", "field", "found", "expected", "action"}


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


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (KeyboardInterrupt(), 4, "stopped"),
        (OSError(28, "No space left on device", "rows.parquet"), 2, "rows.parquet"),
    ],
    ids=["ctrl-c", "full disk"],
)
def test_what_ends_a_command_from_outside_is_told_in_one_line(
    raised: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def end(path: Path) -> None:
        raise raised

    monkeypatch.setattr("openrecipes.runs.record.RunRecord.open", end)
    assert run(["measure", "demo-out/runs/candidate"]) == code
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert told in line


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "demo").rglob("*.md")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    dead = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not dead
