"""Train the demo's tokenizer from the demo's conversations; the same bytes every time.

Run: python demo/build_tokenizer.py [OUTPUT]
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

DEMO = Path(__file__).parent
VOCABULARY = 8192

#: Nemotron-3's named special tokens; their place in the list is their id there and here.
CONTROL = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "<|im_start|>",
    "<|im_end|>",
]
#: Tokens that are matched whole but kept when text is decoded.
MARKUP = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]

#: Nemotron-3's split into words, single digits, punctuation and white space.
WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts(value: Any) -> Iterator[str]:
    """Every string inside ``value``, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def corpus(path: Path) -> Iterator[str]:
    """The text of messages and tools, with special tokens cut out of it."""
    special = re.compile("|".join(re.escape(token) for token in CONTROL + MARKUP))
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            conversation = json.loads(line)
            for text in texts([conversation["messages"], conversation.get("tools")]):
                yield from filter(None, special.split(text))


def train(path: Path) -> Tokenizer:
    """A byte-level BPE of ``VOCABULARY`` tokens."""
    tokenizer = Tokenizer(BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(WORDS), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True) for token in CONTROL + MARKUP],
        initial_alphabet=sorted(ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus(path), trainer)
    return tokenizer


def main(output: Path) -> None:
    """Train and write ``output``."""
    document = json.loads(train(DEMO / "data" / "conversations.jsonl.gz").to_str())
    for token in document["added_tokens"]:
        token["special"] = token["content"] in CONTROL
    output.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEMO / "tokenizer" / "tokenizer.json")
