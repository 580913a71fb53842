"""Verify: every number again from the evidence; every changed byte and field is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openrecipes.errors import InputError
from openrecipes.files import sha256_file
from openrecipes.publish.options import Options
from openrecipes.publish.publish import publish
from openrecipes.publish.verify import UNTOLD, verify
from openrecipes.recipe import yaml
from openrecipes.recipe.validate import validate
from tests.publish.conftest import manifest_of, write_run


@pytest.fixture
def recipe(candidate: Path, reference: Path, tmp_path: Path) -> Path:
    """A verified recipe with its evidence beside it."""
    output = tmp_path / "r.yaml"
    publish([candidate], output, reference=reference, options=Options(author_name="T"), bundle=True)
    return output


@pytest.fixture
def evidence(recipe: Path) -> Path:
    return recipe.with_suffix(".evidence")


def test_a_published_recipe_verifies(recipe: Path, evidence: Path) -> None:
    for found in (verify(recipe, evidence), verify(recipe)):
        assert found.ok and found.differences == ()
        assert found.checked > 80


def test_pooled_runs_verify(tmp_path: Path) -> None:
    manifests = [manifest_of(f"run-{i}", ep=2, max_tokens=2048) for i in (1, 2)]
    runs = [write_run(tmp_path / m.id, m) for m in manifests]
    publish(runs, tmp_path / "p.yaml", options=Options(window="6:15"), bundle=True)
    assert verify(tmp_path / "p.yaml").ok


def test_a_changed_byte_of_any_file_is_found(recipe: Path, evidence: Path) -> None:
    files = [path for path in evidence.rglob("*") if path.is_file()]
    assert len(files) >= 9
    for file in files:
        data = file.read_bytes()
        middle = len(data) // 2
        file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        try:
            assert not verify(recipe, evidence).ok, file
        except InputError:
            assert file.name == "SHA256SUMS"  # a line of it that can no longer be read
        file.write_bytes(data)
    assert verify(recipe, evidence).ok


def test_a_missing_and_an_additional_file_are_found(recipe: Path, evidence: Path) -> None:
    log = evidence / "candidate" / "logs" / "rank-0.log"
    text = log.read_text()
    log.unlink()
    assert [d.found for d in verify(recipe, evidence).differences] == ["missing"]
    log.write_text(text)
    (evidence / "more.txt").write_text("more")
    assert [d.field for d in verify(recipe, evidence).differences] == ["more.txt"]


def resum(evidence: Path) -> None:
    """Make the sums fit again, as somebody who forges evidence would."""
    files = sorted(p for p in evidence.rglob("*") if p.is_file() and p.name != "SHA256SUMS")
    lines = [f"{sha256_file(p)}  {p.relative_to(evidence).as_posix()}" for p in files]
    (evidence / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def test_forged_steps_are_found_by_the_recipes_hash(recipe: Path, evidence: Path) -> None:
    steps = evidence / "candidate" / "steps.jsonl"
    steps.write_text(steps.read_text().replace('"step_time_s": 1.64', '"step_time_s": 1.24'))
    resum(evidence)
    fields = {d.field for d in verify(recipe, evidence).differences}
    assert "evidence.sha256" in fields
    assert "result.tokens_per_s_per_gpu" in fields
    assert "candidate in the verdict" in fields


def test_a_forged_verdict_is_reached_again(
    recipe: Path, evidence: Path, edit_recipe: Callable[..., None]
) -> None:
    file = evidence / "candidate" / "verdicts" / "check.json"
    verdict = json.loads(file.read_text())
    verdict["convergence"]["final_loss_difference"] = 0.0
    file.write_text(json.dumps(verdict))
    resum(evidence)
    edit_recipe(
        **{
            "evidence.sha256": sha256_file(evidence / "SHA256SUMS"),
            "correctness.convergence.final_loss_difference": 0.0,
        }
    )
    fields = [d.field for d in verify(recipe, evidence).differences]
    assert fields == ["correctness.convergence.final_loss_difference"]


@pytest.fixture
def edit_recipe(recipe: Path) -> Callable[..., None]:
    """Set fields of the recipe by dotted path."""

    def change(**values: Any) -> None:
        data = yaml.parse(recipe.read_text())
        for path, value in values.items():
            *parents, last = path.split(".")
            target: Any = data
            for key in parents:
                target = target[int(key)] if isinstance(target, list) else target[key]
            target[int(last) if isinstance(target, list) else last] = value
        recipe.write_text(yaml.write(data))

    return change


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        pairs = [(f"{path}.{k}" if path else k, v) for k, v in value.items()]
    elif isinstance(value, list):
        pairs = [(f"{path}.{i}", v) for i, v in enumerate(value)]
    else:
        return [(path, value)]
    return [leaf for p, v in pairs for leaf in leaves(v, p)]


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.01 + 0.01
    if isinstance(value, str) and len(value) == 64:
        return value[:-1] + ("0" if value[-1] != "0" else "1")
    return f"{value}x" if isinstance(value, str) else "x"


def test_a_change_of_any_field_is_found(
    recipe: Path, evidence: Path, edit_recipe: Callable[..., None]
) -> None:
    text = recipe.read_text()
    data = yaml.plain(yaml.parse(text))
    looked_at = 0
    for path, value in leaves(data):
        if any(path == name or path.startswith(f"{name}.") for name in UNTOLD):
            continue
        edit_recipe(**{path: other(value)})
        recipe_, _ = validate(yaml.plain(yaml.parse(recipe.read_text())))
        if recipe_ is not None:  # else the schema refuses it
            looked_at += 1
            fields = [d.field for d in verify(recipe, evidence).differences]
            assert any(path.startswith(field.rstrip(".")) for field in fields), path
        recipe.write_text(text)
    assert looked_at > 60


def test_a_dropped_field_is_found(recipe: Path, evidence: Path) -> None:
    data = yaml.parse(recipe.read_text())
    del data["result"]["step_time_s"]
    recipe.write_text(yaml.write(data))
    assert {d.field.rsplit(".", 1)[0] for d in verify(recipe, evidence).differences} == {
        "result.step_time_s"
    }


def test_a_persons_notes_are_their_own(recipe: Path, evidence: Path) -> None:
    recipe.write_text(recipe.read_text() + "notes: |\n  - a remark\n")
    assert verify(recipe, evidence).ok


def test_a_recipe_without_evidence_cannot_be_tied_to_any(
    candidate: Path, evidence: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.yaml"
    publish([candidate], plain)
    assert [d.field for d in verify(plain, evidence).differences] == ["evidence.sha256"]
    with pytest.raises(InputError, match="give --evidence DIR"):
        verify(plain)


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "..", "a/b"])
def test_a_recipe_cannot_lead_elsewhere(
    recipe: Path, edit_recipe: Callable[..., None], path: str
) -> None:
    edit_recipe(**{"evidence.path": path})
    with pytest.raises(InputError, match="beside the recipe"):
        verify(recipe)


def test_what_is_no_evidence_is_told(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        verify(recipe, tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        verify(recipe, tmp_path / "empty")
