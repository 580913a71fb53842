"""Tokens and masks equal those of the public generators."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from openrecipes.errors import InputError
from openrecipes.rows.encoder import Encoded, Encoder, EncoderSettings
from openrecipes.rows.refusals import Refusal
from tests.rows.given import PARITY

FILES = {
    "nemotron3_nano": ("nemotron-3", "nemotron_3_nano"),
    "nemotron3_super": ("nemotron-3", "nemotron_3_super"),
    "qwen3": ("qwen3", "qwen3"),
    "qwen3_tok+qwen3_5_template": ("qwen3", "qwen3_5_think"),
}
REFUSED = {"user_fakes_assistant": "markers-in-content", "no_assistant": "no-assistant"}
MISFITS = {("nemotron3_nano", "qwen3"), ("qwen3_tok+qwen3_5_template", "qwen")}
CASES = json.loads((PARITY / "loss_masks.json").read_text(encoding="utf-8"))
SAMPLE = [
    json.loads(line)
    for line in (PARITY / "conversations.jsonl").read_text(encoding="utf-8").splitlines()
]


@cache
def encoder(tokenizer: str, mask_type: str, shared: Path | None = None) -> Encoder:
    name, template = FILES[tokenizer]
    if shared is None:
        files = PARITY / f"{name}.tokenizer.json", PARITY / f"{template}.jinja"
    else:
        data = shared / "data"
        files = (
            data / "tokenizer" / name / "tokenizer.json",
            data / "templates" / f"{template}.jinja",
        )
    return Encoder(EncoderSettings(*files, mask_type))


def figures(encoded: Encoded) -> dict[str, Any]:
    return {
        "n": len(encoded.ids),
        "supervised": int(encoded.mask.sum()),
        "ids_sha256": hashlib.sha256(encoded.ids.astype("<i4").tobytes()).hexdigest(),
        "mask_sha256": hashlib.sha256(encoded.mask.tobytes()).hexdigest(),
    }


def compare(case: dict[str, Any], shared: Path | None = None) -> None:
    tokenizer, mask_type, name = case["tokenizer"], case["loss_mask_type"], case["conversation"]
    made = encoder(tokenizer, mask_type, shared)
    conversation = CASES["conversations"][name]
    if name in REFUSED or "error" in case:
        with pytest.raises(Refusal) as refusal:
            made.encode(conversation)
        assert refusal.value.reason == REFUSED.get(name, "template-error")
        return
    encoded = made.encode(conversation)
    assert encoded.ids.tolist() == case["token_ids"]
    assert "".join(map(str, encoded.mask.tolist())) == case["loss_mask"]


@pytest.mark.parametrize(("tokenizer", "mask_type"), sorted(MISFITS))
def test_a_mask_type_that_does_not_fit_the_template_is_refused(
    tokenizer: str, mask_type: str
) -> None:
    with pytest.raises(InputError, match="fits the chat template"):
        encoder(tokenizer, mask_type)


def fits(case: dict[str, Any]) -> bool:
    return (case["tokenizer"], case["loss_mask_type"]) not in MISFITS


def name_of(case: dict[str, Any]) -> str:
    return "-".join(case[k] for k in ("tokenizer", "loss_mask_type", "impl", "conversation"))


@pytest.mark.parametrize("case", [c for c in CASES["cases"] if fits(c)], ids=name_of)
def test_cases_of_public_generators(case: dict[str, Any]) -> None:
    compare(case)


@pytest.mark.parametrize("one", SAMPLE, ids=lambda one: one["expected"]["id"])
@pytest.mark.parametrize("tokenizer", ["nemotron3_nano", "qwen3"])
def test_sample_of_real_conversations(one: dict[str, Any], tokenizer: str) -> None:
    encoded = encoder(tokenizer, "qwen3_5").encode(one["conversation"])
    assert figures(encoded) == one["expected"][tokenizer]


@pytest.fixture
def shared() -> Path:
    folder = os.environ.get("OPENRECIPES_SHARED")
    if folder is None or not (Path(folder) / "cases" / "loss_masks.json").is_file():
        pytest.skip("OPENRECIPES_SHARED names no folder with the full parity data")
    return Path(folder)


def test_all_cases_with_the_real_tokenizers(shared: Path) -> None:
    for case in json.loads((shared / "cases" / "loss_masks.json").read_text())["cases"]:
        if case["tokenizer"] in FILES and fits(case):
            compare(case, shared)


@pytest.mark.parametrize("tokenizer", ["nemotron3_nano", "nemotron3_super", "qwen3"])
def test_all_real_conversations(shared: Path, tokenizer: str) -> None:
    made = encoder(tokenizer, "qwen3_5", shared)
    folder = shared / "data" / "conversations"
    talks = (folder / "conversations.jsonl").read_text(encoding="utf-8").splitlines()
    wanted = (folder / "expected.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(talks) == len(wanted) == 1807
    for talk, want in zip(talks, wanted, strict=True):
        assert figures(made.encode(json.loads(talk))) == json.loads(want)[tokenizer]
