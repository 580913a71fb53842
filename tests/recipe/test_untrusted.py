"""Text that nobody vouches for: a clear error or safe text, and quickly."""

import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrecipes.cli.main import run
from openrecipes.errors import InputError
from openrecipes.recipe import yaml
from openrecipes.recipe.lint import lint, lint_data

from .mutants import leaves, put
from .recipes import NANO, complete, data

REFUSED = {
    "billion laughs": "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "anchor alone": "a: &a 1\n",
    "alias of itself": "&a [*a]",
    "merge key": "a: {b: 1}\n<<: {c: 2}\n",
    "python tag": "a: !!python/object/apply:os.system ['true']\n",
    "own tag": "a: !x 1\n",
    "binary": "a: !!binary aGk=\n",
    "directive": "%YAML 1.1\n---\na: no\n",
    "two documents": "a: 1\n---\nb: 2\n",
    "duplicate keys": "a: 1\na: 2\n",
    "tab": "a:\n\tb: 1\n",
    "NUL": "a: b\0c\n",
    "NUL escaped": 'a: "b\\0c"\n',
    "escape sequence": "a: \x1b[31mred\n",
    "byte order mark": "\ufeffa: 1\n",
    "right to left": "a: abc\u202edef\n",
    "lone surrogate": 'a: "\\ud800"\n',
    "impossible day": "a: 2026-13-45\n",
    "huge integer": "a: " + "9" * 10_000,
    "list": "- 1\n",
    "text": "hello",
    "nothing": "",
    "only comments": "# a\n",
    "deep flow": "a: " + "[" * 200_000,
    "deep blocks": "".join(" " * i + "a:\n" for i in range(500)),
    "deep dashes": "- " * 100_000,
    "many keys": "\n".join(f"k{i}: 1" for i in range(20_000)),
    "long list": "a: [" + "1," * 60_000 + "]",
    "open quote": 'a: "' + "x\n" * 60_000,
    "colons": "a: " + "a:" * 60_000,
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_one_clear_line(name, tmp_path, capsys):
    file = tmp_path / "recipe.yaml"
    file.write_bytes(REFUSED[name].encode("utf-8", "surrogatepass"))
    started = time.process_time()
    assert run(["lint", str(file)]) == 2
    assert time.process_time() - started < 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "recipe.yaml" in line and len(line) < 1000


@pytest.mark.parametrize(
    "content", [b"a: \xff\xfe", "a: 1".encode("utf-16"), b"\x80" * 100, b"a: \xc3"]
)
def test_other_encodings_are_refused(content, tmp_path, capsys):
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    assert run(["lint", str(file)]) == 2
    assert "UTF-8" in capsys.readouterr().err or b"\0" in content


def test_a_large_file_is_not_read(tmp_path):
    file = tmp_path / "recipe.yaml"
    with file.open("wb") as stream:
        stream.truncate(100 * 2**20)
    started = time.process_time()
    with pytest.raises(InputError, match="smaller"):
        lint(file)
    assert time.process_time() - started < 0.5


def test_what_never_ends_is_not_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "registry" / "model" / "gpu"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.yaml")
    (folder / "zero.yaml").symlink_to("/dev/zero")
    assert run(["list", "--registry", str(tmp_path / "registry")]) == 0
    assert capsys.readouterr().err.count("not a recipe:") == 2
    for file in folder.iterdir():
        assert run(["lint", str(file)]) == 2


@pytest.mark.parametrize("path", ["missing.yaml", "."])
def test_what_is_no_file(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["lint", path]) == 2


@pytest.mark.parametrize(
    "scalar, found",
    [("no", True), ("1e3", True), ("010", True), ("1:30", True), ("0.5", False), ("1.0e-5", False)],
)
def test_values_that_readers_disagree_on_are_warned_of(scalar, found):
    assert bool(yaml.parse_warned(f"a: {scalar}\n")[1]) is found
    assert not yaml.parse_warned(f"a: '{scalar}'\n")[1]


def test_a_day_is_a_day_and_no_is_text():
    assert yaml.plain(yaml.parse("a: no\nb: 1e3\n")) == {"a": "no", "b": 1000.0}


EXTREMES = [
    0,
    -1,
    1,
    2**31,
    2**63,
    10**300,
    5e-324,
    1e308,
    -1e308,
    float("inf"),
    float("nan"),
    True,
    None,
    "",
    "x" * 10_000,
    "$(rm -rf /)",
    "<script>alert(1)</script>",
    "../../../etc/passwd",
    "'; DROP TABLE recipes; --",
    [],
    [[]],
    {},
    {"a": 1},
]


def test_any_value_anywhere_is_judged_in_time():
    recipe = complete()
    places = [path for path, _ in leaves(recipe)]
    started = time.process_time()
    count = 0
    for path in places:
        for value in EXTREMES:
            lint_data(put(recipe, path, value))
            count += 1
    assert count > 2500
    assert time.process_time() - started < 0.02 * count


def test_two_extremes_at_once():
    chance = random.Random(20261015)
    original = complete()
    places = [path for path, _ in leaves(original)]
    for _ in range(1000):
        recipe = original
        for path in chance.sample(places, 2):
            recipe = put(recipe, path, chance.choice(EXTREMES[:11]))
        lint_data(recipe)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200))
def test_any_run_text_is_read_or_refused(text):
    lint_data(data(NANO) | {"run": text})


LONG = {
    "many flags": "train.py " + " ".join(f"--a{i}" for i in range(30_000)),
    "one flag often": "train.py " + "--lr 1 " * 30_000,
    "many commands": "x --a\n" * 40_000,
    "many values": "train.py --modules " + "a " * 100_000,
    "open substitutions": "train.py --a " + "$(" * 100_000,
    "many substitutions": "train.py --a " + "$(b)" * 50_000,
    "quotes": "train.py --a " + "''" * 100_000,
    "backslashes": "train.py --a " + "\\" * 200_000,
    "variables": "train.py --a " + "$A" * 100_000,
    "digits": "train.py --a " + "1," * 100_000,
}


@pytest.mark.parametrize("name", LONG)
def test_long_commands_are_judged_in_time(name):
    started = time.process_time()
    lint_data(data(NANO) | {"run": LONG[name]})
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "text", ["1," * 60_000, "sha256 " * 30_000, "full " * 40_000, "TP 1 " * 40_000]
)
def test_long_texts_are_judged_in_time(text):
    recipe = complete()
    recipe["layout"]["summary"] = recipe["layout"]["label"] = recipe["notes"] = text
    recipe["workload"]["dataset"]["build"]["packing"] = text
    recipe["stack"]["source"] = text
    started = time.process_time()
    lint_data(recipe)
    assert time.process_time() - started < 5


def test_nothing_in_a_recipe_is_executed(tmp_path: Path):
    target = tmp_path / "touched"
    evil = f"$(touch {target}); touch {target} & `touch {target}`"
    recipe = complete() | {"run": evil + "\n" + complete()["run"], "notes": evil}
    recipe["env"] = recipe["env"] | {"X": evil}
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.write(recipe))
    for command in (
        ["lint", str(file)],
        ["show", str(file)],
        ["import", str(file), "--output", str(tmp_path / "out.yaml")],
        ["list", "--registry", str(tmp_path)],
        ["compare", str(file), str(NANO)],
    ):
        run(command)
    assert not target.exists()
