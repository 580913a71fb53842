"""The template's own spans, against transformers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from openrecipes.rows.encoder import Encoder, EncoderSettings
from tests.rows.given import CONVERSATIONS, TOKENIZER

TEMPLATE = """\
{{- bos_token }}
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\n' }}
    {%- if m.role == 'assistant' %}
        {%- generation %}{{- m.content | trim }}{{- '<|im_end|>' }}{%- endgeneration %}
    {%- else %}
        {{- m.content ~ '<|im_end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
"""


def spoken() -> list[dict[str, Any]]:
    """Some conversations in which every message is text."""
    with gzip.open(CONVERSATIONS, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [r for r in records if all(isinstance(m["content"], str) for m in r["messages"])][::25]


def test_generation_masks_equal_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(TOKENIZER / "tokenizer.json"), chat_template=TEMPLATE, bos_token="<s>"
    )
    ours = Encoder(EncoderSettings(TOKENIZER, tmp_path / "t.jinja", "generation"))
    records = spoken()
    assert len(records) > 20
    for record, encoded in zip(records, ours.encode_many(records), strict=True):
        wanted = theirs.apply_chat_template(
            record["messages"],
            tools=record.get("tools"),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert not isinstance(encoded, Exception)
        assert encoded.ids.tolist() == list(wanted["input_ids"])
        assert encoded.mask.tolist() == list(wanted["assistant_masks"])
