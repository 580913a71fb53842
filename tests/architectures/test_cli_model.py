"""`openrecipes model describe`: names, files, folders, errors."""

import json
from pathlib import Path

import pytest

from openrecipes.architectures.configs import find
from openrecipes.cli.main import run

Capture = pytest.CaptureFixture[str]


def test_a_known_name(capsys: Capture) -> None:
    assert run(["model", "describe", "nemotron-3-super-120b-a12b", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == 1
    assert document["active_parameters"] == 12_232_228_864
    assert len(document["layers"]) == 88


def test_a_file_and_a_folder(tmp_path: Path, capsys: Capture) -> None:
    model = find("Qwen3-30B-A3B")
    assert model is not None
    (tmp_path / "config.json").write_text(json.dumps(model.config()))
    for given in (tmp_path, tmp_path / "config.json"):
        assert run(["model", "describe", str(given), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["parameters"] == 30_532_122_624


def test_people_see_the_totals(capsys: Capture) -> None:
    assert run(["model", "describe", "gpt-oss-20b"]) == 0
    told = capsys.readouterr().out
    assert "20,914,757,184" in told and "attention+moe" in told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "JSON"),
        ("[]", "JSON object"),
        ('{"model_type": "gpt2"}', "model_type"),
        ('{"model_type": "llama", "hidden_size": NaN}', "hidden_size"),
        ('{"model_type": "llama", "hidden_size": 1e400}', "hidden_size"),
    ],
)
def test_a_wrong_config_is_one_line_and_exit_2(
    tmp_path: Path, capsys: Capture, text: str, expected: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    assert run(["model", "describe", str(config)]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert str(config) in err and expected in err


@pytest.mark.parametrize("given", ["no-such-model", "absent/config.json"])
def test_what_is_not_there_is_exit_2(capsys: Capture, given: str) -> None:
    assert run(["model", "describe", given]) == 2
    assert given in capsys.readouterr().err
