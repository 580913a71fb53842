"""What the tests of rows are given: the demo's tokenizer and conversations, and small ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from openrecipes.rows.encoder import Encoder, EncoderSettings

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "demo" / "tokenizer"
CONVERSATIONS = ROOT / "demo" / "data" / "conversations.jsonl.gz"
PARITY = Path(__file__).parent / "data"


@cache
def demo_encoder(mask_type: str = "qwen3_5") -> Encoder:
    return Encoder(EncoderSettings(TOKENIZER, mask_type=mask_type))


def talk(*said: str, **more: Any) -> dict[str, Any]:
    """A conversation: user and assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
    return {"messages": messages, **more}


def write_lines(path: Path, records: Sequence[Any]) -> Path:
    lines = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path
