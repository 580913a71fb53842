"""Records that nobody vouches for: a verdict or one clear error, never a traceback or NaN."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openrecipes.cli.main import run
from openrecipes.flags.table import table

from .records import record

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["\ud800", "\x1b[31m", "[red]", "$LR", "1e-5", "nan", "inf", "true", ""]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
names = st.one_of(st.sampled_from(sorted(table())), st.text(max_size=8))
changes = st.fixed_dictionaries(
    {},
    optional={
        "flags": st.dictionaries(names, values, max_size=4),
        "env": st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
        "layout": st.dictionaries(
            st.sampled_from(["tp", "ep", "offload", "x"]), values, max_size=3
        ),
        "stack": st.dictionaries(st.text(max_size=8), values, max_size=3),
        "effective": st.fixed_dictionaries({"ineffective_flags": st.lists(values, max_size=3)}),
        "engine": st.text(max_size=8),
        "world_size": st.integers(1, 2**80),
        "rows": st.fixed_dictionaries({"rows_sha256": st.text(max_size=8)}),
    },
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ours=changes, theirs=changes)
def test_any_manifest_gets_a_verdict_or_one_error(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    ours: dict[str, Any],
    theirs: dict[str, Any],
) -> None:
    path = tmp_path_factory.mktemp("any")
    sides = [changed(path / "c", ours), changed(path / "r", theirs)]
    code = run(["check", *map(str, sides), "--json"])
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    if code == 2:
        assert document["error"]["action"]
    else:
        assert {0: "pass", 1: "fail", 3: "review"}[code] == document["verdict"]
        written = json.loads((sides[0] / "verdicts/check.json").read_text())
        assert written["verdict"] == document["verdict"]
        assert run(["check", *map(str, sides)]) == code
        assert "\x1b" not in capsys.readouterr().out


def changed(path: Path, changes: dict[str, Any]) -> Path:
    record(path, curve=[3.0, 2.5, 2.2])
    manifest = json.loads((path / "manifest.json").read_text())
    for name, change in changes.items():
        old = manifest.get(name)
        manifest[name] = {**old, **change} if isinstance(old, dict) else change
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"run_version": 1}', "\x00", "1" * 5000])
def test_a_broken_manifest_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    candidate = record(tmp_path / "c")
    (candidate / "manifest.json").write_text(text)
    assert run(["check", str(candidate), str(record(tmp_path / "r")), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["file"].startswith(str(candidate))


def test_numbers_out_of_range_are_no_pass(tmp_path: Path) -> None:
    """JSON's NaN and 1e999 in a steps file are no numbers; where that is told, it is the input."""
    candidate = record(tmp_path / "c")
    lines = [json.loads(text) for text in (candidate / "steps.jsonl").read_text().splitlines()]
    for value in (math.nan, math.inf):
        lines[5]["loss"] = value
        (candidate / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert run(["check", str(candidate), str(record(tmp_path / f"r{value}"))]) == 2
        assert not (candidate / "verdicts").exists()
