"""Cut the parity data down to what a repository can hold.

Run: python tests/rows/data/reduce.py SHARED

``SHARED`` holds the full data (see README.md). Written here: the cases, a sample of the real
conversations with their expected counts and hashes, and of each real tokenizer only the entries
that these texts need. Ids stay as they are; entries that no text needs cannot change a token.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

HERE = Path(__file__).parent
TOKENIZERS = {"nemotron-3": ("nemotron3_nano", "nemotron_3_nano"), "qwen3": ("qwen3", "qwen3")}
SAMPLE = 45  # every 45th conversation
LONGEST = 2500  # characters of JSON


def fired(word: str, ranks: dict[tuple[str, str], int]) -> list[tuple[str, str]]:
    """The merges that byte-pair encoding applies to a word, in order."""
    symbols, used = list(word), []
    while True:
        pairs = [p for p in pairwise(symbols) if p in ranks]
        if not pairs:
            return used
        best = min(pairs, key=ranks.__getitem__)
        used.append(best)
        merged, at = [], 0
        while at < len(symbols):
            if tuple(symbols[at : at + 2]) == best:
                merged.append("".join(best))
                at += 2
            else:
                merged.append(symbols[at])
                at += 1
        symbols = merged


def words(tokenizer: Tokenizer, added: list[str], texts: list[str]) -> set[str]:
    """Pieces that byte-pair encoding sees."""
    cut = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))))
    found: set[str] = set()
    for text in texts:
        for part in filter(None, cut.split(text)):
            if tokenizer.normalizer is not None:
                part = unicodedata.normalize("NFC", part)
            found |= {piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(part)}
    return found


def reduced(source: Path, texts: list[str]) -> str:
    """The tokenizer.json with only what ``texts`` need."""
    document: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(source))
    model = document["model"]
    added = [t for t in document["added_tokens"] if not t["content"].startswith("<SPECIAL_")]
    added += [t for t in document["added_tokens"] if t["content"] == "<SPECIAL_18>"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    vocabulary: dict[str, int] = model["vocab"]
    used: set[tuple[str, str]] = set()
    keep = {t for t in vocabulary if len(t) == 1} | {t["content"] for t in added}
    for word in words(tokenizer, [t["content"] for t in document["added_tokens"]], texts):
        if model["ignore_merges"] and word in vocabulary:
            keep.add(word)
        else:
            used |= set(fired(word, ranks))
    keep |= {part for merge in used for part in (*merge, "".join(merge))}
    model["vocab"] = {t: i for t, i in vocabulary.items() if t in keep}
    # The library numbers added tokens by the vocabulary's size, unless they stand in it.
    model["vocab"] |= {token["content"]: token["id"] for token in added}
    model["merges"] = [list(m) for m in merges if m in used]
    document["added_tokens"] = added
    small = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    check = Tokenizer.from_str(small)
    for text in texts:
        assert check.encode(text, add_special_tokens=False).ids == (
            tokenizer.encode(text, add_special_tokens=False).ids
        ), text
    return small


def main(shared: Path) -> None:
    """Write everything."""
    from openrecipes.rows.encoder import Encoder, EncoderSettings

    cases = json.loads((shared / "cases" / "loss_masks.json").read_text(encoding="utf-8"))
    cases["cases"] = [c for c in cases["cases"] if c["tokenizer"] != "nemotron3_super"]
    for case in cases["cases"]:
        case.pop("rendered", None)
    lines = (shared / "data" / "conversations" / "conversations.jsonl").read_text().splitlines()
    expected = (shared / "data" / "conversations" / "expected.jsonl").read_text().splitlines()
    sample = [n for n in range(0, len(lines), SAMPLE) if len(lines[n]) < LONGEST]
    records = [json.loads(lines[n]) for n in sample] + list(cases["conversations"].values())
    for name, (_, template) in TOKENIZERS.items():
        file = shared / "data" / "tokenizer" / name / "tokenizer.json"
        texts = ["FOR TESTING ONLY", "FOR CALCULATING LOSS MASK ONLY", "probe of the template"]
        texts.append('{"probe": "value"}')
        for used in {template, "qwen3_5_think" if name == "qwen3" else template}:
            jinja = shared / "data" / "templates" / f"{used}.jinja"
            encoder = Encoder(EncoderSettings(file, jinja, "all"))
            for record in records:
                talk = encoder.conversation(dict(record))
                alone = [([m], talk.tools) for m in talk.messages]
                dummy = {"role": "user", "content": "FOR CALCULATING LOSS MASK ONLY"}
                pairs = [([m, dummy], talk.tools) for m in talk.messages]
                pairs += [([dummy, m], None) for m in talk.messages]
                for messages, tools in [(talk.messages, talk.tools), *alone, *pairs]:
                    try:
                        texts.append(encoder.template.render(messages, tools).text)
                        texts.append(encoder.template.generation_prompt(messages))
                    except Exception:  # a template that refuses a part adds no text
                        continue
            shutil.copyfile(jinja, HERE / f"{used}.jinja")
        (HERE / f"{name}.tokenizer.json").write_text(reduced(file, texts), encoding="utf-8")
    keep = {name for name, _ in TOKENIZERS.values()}
    chosen = []
    for number in sample:
        want = json.loads(expected[number])
        want = {k: v for k, v in want.items() if k == "id" or k in keep}
        chosen.append({"conversation": json.loads(lines[number]), "expected": want})
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in chosen)
    (HERE / "conversations.jsonl").write_text(text, encoding="utf-8")
    text = json.dumps(cases, ensure_ascii=False, separators=(",", ":"))
    (HERE / "loss_masks.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
