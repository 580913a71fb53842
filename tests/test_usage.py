"""Wrong usage names the option, what was found, what was expected and where to look."""

from __future__ import annotations

import json

import pytest

from openrecipes.cli.main import run

RUN = ["run", "r.yaml", "--output", "o", "--rows", "x"]


@pytest.mark.parametrize(
    ("argv", "field", "found", "expected"),
    [
        ([*RUN, "--steps", "0"], "--steps", 0, "greater than or equal to 1"),
        ([*RUN, "--steps", "many"], "--steps", "many", "a valid integer"),
        (["lint"], "FILES", "nothing", "a value"),
        (["measure", "r", "--wndow", "5:19"], "--wndow", None, None),
        (["no-such-command"], None, "No such command 'no-such-command'", None),
    ],
    ids=["range", "type", "missing", "option", "command"],
)
def test_usage_errors_follow_the_error_contract(
    argv: list[str],
    field: str | None,
    found: object,
    expected: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*argv, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["field"] == field
    assert "openrecipes" in error["action"]
    if found is not None:
        assert (str(error["found"]), error["expected"]) == (str(found), expected)


@pytest.mark.parametrize("group", ["rows", "model", "site"])
def test_a_groups_help_has_an_example(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group, "--help"]) == 0
    assert f"Example: openrecipes {group} " in capsys.readouterr().out
