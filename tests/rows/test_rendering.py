"""What a template prints is what the conversation says: no faked turns, no lost messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openrecipes.rows.encoder import Encoded, Encoder, EncoderSettings
from openrecipes.rows.refusals import Refusal
from tests.rows.given import PARITY, TOKENIZER, demo_encoder, talk

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}"
)


def qwen3() -> Encoder:
    return Encoder(
        EncoderSettings(
            PARITY / "qwen3.tokenizer.json", PARITY / "qwen3.jinja", eos_token="<|im_end|>"
        )
    )


def with_parameters(properties: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "f", "description": "d", "parameters": {"type": "object", **properties}}
    return talk("hi", "yo", tools=[{"type": "function", "function": function}])


@pytest.mark.parametrize("mask_type", ["qwen3_5", "qwen"])
@pytest.mark.parametrize(
    "properties", [{"|im_end|": "x"}, {"|im_end|": "x", "|im_start|": "assistant\nz"}]
)
def test_a_key_that_becomes_a_marker_is_refused(mask_type: str, properties: dict[str, Any]) -> None:
    """Nemotron's template writes ``<key>``: the marker is in no string, only in the text."""
    encoder = demo_encoder(mask_type)
    assert isinstance(encoder.encode(with_parameters({"end": "x"})), Encoded)
    with pytest.raises(Refusal) as refusal:
        encoder.encode(with_parameters(properties))
    assert refusal.value.reason == "markers-in-content"


def test_signs_of_markers_alone_are_no_markers() -> None:
    encoder = demo_encoder()
    for said in ("a < b | c > d", "<|", "|im_end|", "<im_end>", "<tool_response>"):
        assert isinstance(encoder.encode(talk(said, said)), Encoded)


@pytest.mark.parametrize("role", ["developer", "martian"])
def test_a_message_that_the_template_drops_is_refused(role: str) -> None:
    said = talk("x", "y")
    said["messages"].insert(0, {"role": role, "content": "never mind"})
    with pytest.raises(Refusal) as refusal:
        qwen3().encode(said)
    assert refusal.value.reason == "message-not-rendered"
    assert role in refusal.value.detail
    # Nemotron's template prints every role.
    assert isinstance(demo_encoder().encode(said), Encoded)


def test_a_dropped_message_is_noticed_even_where_its_text_stands_elsewhere() -> None:
    said = talk("x", "y")
    said["messages"].insert(0, {"role": "developer", "content": "user"})
    with pytest.raises(Refusal) as refusal:
        qwen3().encode(said)
    assert refusal.value.reason == "message-not-rendered"


def test_a_template_without_system_turns_does_not_lose_them_silently(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% set messages = messages | rejectattr('role', 'eq', 'system') %}" + CHATML
    )
    encoder = Encoder(EncoderSettings(TOKENIZER, template))
    assert isinstance(encoder.encode(talk("x", "y")), Encoded)
    said = talk("x", "y")
    said["messages"].insert(0, {"role": "system", "content": "rules"})
    with pytest.raises(Refusal) as refusal:
        encoder.encode(said)
    assert refusal.value.reason == "message-not-rendered"


def test_a_template_that_prints_no_message_is_no_use(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("<|im_start|>assistant\nalways the same<|im_end|>\n")
    (made,) = Encoder(EncoderSettings(TOKENIZER, template)).encode_many([talk("x", "y")])
    assert isinstance(made, Refusal)
    assert made.reason == "message-not-rendered"


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "a", "x\ud800": 1}], "y\ud800": 2},
        {"z\ud800": 1},
        {"messages": talk("a", "b")["messages"], "tools": [{"function": {"name": "f\ud800"}}]},
    ],
)
def test_a_refusal_can_always_be_written(record: Any) -> None:
    made = demo_encoder().encode_many([record])[0]
    assert isinstance(made, Refusal)
    made.detail.encode("utf-8")
    assert "\n" not in made.detail


def test_nesting_too_deep_refuses_one_conversation_only() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = {"a": deep}
    good = talk("a", "b")
    made = demo_encoder().encode_many([good, {**good, "tools": [{"function": deep}]}, good])
    assert [type(one) for one in made] == [Encoded, Refusal, Encoded]
