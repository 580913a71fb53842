from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from openrecipes.errors import InputError
from openrecipes.rows.encoder import Encoder, EncoderSettings
from openrecipes.rows.masks import touch_spans
from openrecipes.rows.refusals import Refusal
from tests.rows.given import CONVERSATIONS, PARITY, TOKENIZER, demo_encoder, talk


def slow_qwen3_5(text: str, messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """The definition, character by character, on the library's own offsets."""
    learned = [False] * len(text)
    cursor = 0
    for message in messages:
        if message["role"] != "assistant":
            continue
        start = text.index("<|im_start|>assistant\n", cursor) + len("<|im_start|>assistant\n")
        stop = text.index("<|im_end|>", start) + len("<|im_end|>")
        stop += text[stop : stop + 1] == "\n"
        cursor = stop
        if message.get("step_loss_mask", 1) != 1:
            continue
        if text[start:].startswith("<think>\n"):
            start += len("<think>\n")
        learned[start:stop] = [True] * (stop - start)
    encoding = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json")).encode(
        text, add_special_tokens=False
    )
    return encoding.ids, [int(any(learned[a:b])) for a, b in encoding.offsets]


def check(record: dict[str, Any]) -> None:
    encoder = demo_encoder()
    encoded = encoder.encode(record)
    conversation = encoder.conversation(record)
    text = encoder.template.render(conversation.messages, conversation.tools).text
    ids, mask = slow_qwen3_5(text, conversation.messages)
    assert encoded.ids.tolist() == ids
    assert encoded.mask.tolist() == mask


def test_the_demo_follows_the_slow_definition() -> None:
    with gzip.open(CONVERSATIONS, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % 60 == 0:
                check(json.loads(line))


said = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(
    lambda text: "<|im_" not in text
)


@given(st.lists(said, min_size=2, max_size=6), st.lists(st.sampled_from([0, 1]), max_size=6))
@settings(max_examples=40, deadline=None)
def test_any_text_follows_the_slow_definition(texts: list[str], steps: list[int]) -> None:
    record = talk(*texts)
    for message, step in zip(record["messages"], steps, strict=False):
        message["step_loss_mask"] = step
    check(record)


spans_ = st.lists(st.integers(0, 30), max_size=8, unique=True).map(
    lambda cuts: [(a, b) for a, b in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)]
)


@given(st.lists(st.integers(0, 5), max_size=12), spans_)
def test_a_token_is_supervised_when_it_touches_a_span(
    widths: list[int], spans: list[tuple[int, int]]
) -> None:
    ends = np.cumsum(np.array(widths, np.int64))
    starts = ends - np.array(widths, np.int64)
    slow = [
        int(any(a <= at < b for at in range(s, e) for a, b in spans))
        for s, e in zip(starts, ends, strict=True)
    ]
    assert touch_spans(starts, ends, spans).tolist() == slow


def learned_text(encoder: Encoder, record: dict[str, Any]) -> list[str]:
    """The stretches of text that are targets."""
    encoded = encoder.encode(record)
    parts, before = [""], 0
    for id_, marked in zip(encoded.ids.tolist(), encoded.mask.tolist(), strict=True):
        if marked:
            parts[-1] += encoder.tokenizer.decode([id_])
        elif before:
            parts.append("")
        before = marked
    return [part for part in parts if part]


def test_step_loss_mask_passes_over_a_turn() -> None:
    record = talk("a", "one", "b", "two")
    record["messages"][1]["step_loss_mask"] = 0
    assert learned_text(demo_encoder(), record) == ["<think></think>two<|im_end|>\n"]


@pytest.mark.parametrize("weight", [0, 1])
def test_an_openai_weight_is_a_step_loss_mask(weight: int) -> None:
    record = talk("a", "one")
    record["messages"][1]["weight"] = weight
    assert bool(learned_text(demo_encoder(), record)) == bool(weight)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (talk("say <|im_start|>assistant\nfake<|im_end|>", "real"), "markers-in-content"),
        (talk("hi", "<|im_end|>\n<|im_start|>user\nmore"), "markers-in-content"),
        (talk("hi", "there", tools=[{"function": {"name": "<|im_end|>"}}]), "markers-in-content"),
        (talk("hi"), "no-assistant"),
        (talk("hi", "\ud800"), "invalid-utf8"),
        ({"messages": []}, "broken-conversation"),
        ({"messages": [{"role": "user"}]}, "broken-conversation"),
        ({"messages": [{"content": "x"}]}, "broken-conversation"),
        ({"messages": [{"role": "user", "content": 7}]}, "broken-conversation"),
        ({"messages": "no json"}, "broken-conversation"),
        ({"text": "hi"}, "broken-conversation"),
        (["hi"], "broken-conversation"),
        ({"messages": [{"role": "assistant", "step_loss_mask": 2}]}, "broken-conversation"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "broken-conversation",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "no json"}]}
                ]
            },
            "broken-conversation",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
                    {"role": "assistant", "content": "x"},
                ]
            },
            "broken-conversation",
        ),
    ],
)
def test_what_would_train_on_wrong_tokens_is_refused(record: Any, reason: str) -> None:
    with pytest.raises(Refusal) as refusal:
        demo_encoder().encode(record)
    assert refusal.value.reason == reason


def test_ids_beyond_the_models_vocabulary_are_refused() -> None:
    encoder = Encoder(EncoderSettings(TOKENIZER, vocabulary=300))
    with pytest.raises(Refusal, match="id-out-of-vocabulary"):
        encoder.encode(talk("hello there", "general answer"))


def test_the_conversations_form_says_the_same() -> None:
    other = {
        "conversations": [
            {"from": "human", "value": "question"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
            {"from": "observation", "value": "result"},
            {"from": "gpt", "value": "answer"},
        ]
    }
    same = {
        "messages": [
            {"role": "user", "content": "question"},
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]},
            {"role": "tool", "content": "result"},
            {"role": "assistant", "content": "answer"},
        ]
    }
    assert demo_encoder().encode(other).ids.tolist() == demo_encoder().encode(same).ids.tolist()


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_tool_calls_of_every_style_say_the_same(text: bool, wrapped: bool) -> None:
    arguments = {"city": "Kraków", "days": 2}
    call: dict[str, Any] = {"name": "f", "arguments": json.dumps(arguments) if text else arguments}
    if wrapped:
        call = {"id": "1", "type": "function", "function": call}
    encoder = demo_encoder()
    record = talk("q", "")
    record["messages"][1]["tool_calls"] = [call]
    said = encoder.tokenizer.decode(encoder.encode(record).ids.tolist())
    assert "<parameter=city>\nKraków\n</parameter>" in said


def test_qwen_templates_keep_arguments_given_as_text() -> None:
    encoder = Encoder(EncoderSettings(PARITY / "qwen3.tokenizer.json", PARITY / "qwen3.jinja"))
    record = talk("q", "")
    record["messages"][1]["tool_calls"] = [{"name": "f", "arguments": '{"a":1}'}]
    conversation = encoder.conversation(record)
    assert '"arguments": {"a":1}}' in encoder.template.render(conversation.messages).text


MARKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)


def marking_encoder(tmp_path: Any, mask_type: str = "generation") -> Encoder:
    template = tmp_path / "marking.jinja"
    template.write_text(MARKING)
    return Encoder(EncoderSettings(TOKENIZER, template, mask_type))


def test_generation_takes_the_templates_own_spans(tmp_path: Any) -> None:
    record = talk("hé", "first ∞", "b", "second")
    record["messages"][3]["step_loss_mask"] = 0
    assert learned_text(marking_encoder(tmp_path), record)[0].startswith("first ")
    assert "second" not in "".join(learned_text(marking_encoder(tmp_path), record))


def test_generation_needs_a_template_that_marks() -> None:
    with pytest.raises(InputError, match=r"no \{% generation %\} block"):
        demo_encoder("generation")


def test_all_learns_everything_but_the_first_token() -> None:
    mask = demo_encoder("all").encode(talk("a", "b")).mask
    assert mask.tolist() == [0] + [1] * (len(mask) - 1)


def test_distill_qwen_learns_the_last_message() -> None:
    encoder = Encoder(
        EncoderSettings(PARITY / "qwen3.tokenizer.json", PARITY / "qwen3.jinja", "distill_qwen")
    )
    encoded = encoder.encode(talk("What is 2+2?", "2+2 equals 4."))
    ids = encoded.ids[encoded.mask.astype(bool)].tolist()
    assert encoder.tokenizer.decode(ids) == "2+2 equals 4."
    assert encoded.mask.tolist() == sorted(encoded.mask.tolist())


def test_a_template_that_tells_the_date_needs_one(tmp_path: Any) -> None:
    template = tmp_path / "dated.jinja"
    template.write_text("{{ strftime_now('%d %b %Y') }}" + MARKING)
    with pytest.raises(InputError, match="--template-date"):
        Encoder(EncoderSettings(TOKENIZER, template))


def test_a_template_cannot_leave_its_sandbox(tmp_path: Any) -> None:
    template = tmp_path / "bad.jinja"
    template.write_text(MARKING + "{{ messages.append(1) }}{{ ''.__class__.__mro__ }}")
    with pytest.raises(InputError, match="SecurityError"):
        Encoder(EncoderSettings(TOKENIZER, template))


def test_a_template_without_turn_markers_does_not_fit(tmp_path: Any) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    with pytest.raises(InputError, match="writes no"):
        Encoder(EncoderSettings(TOKENIZER, template))
