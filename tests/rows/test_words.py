"""The quick way to ids is the tokenizer's, text by text, or it is not taken."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from openrecipes.rows import words
from openrecipes.rows.words import ALPHABET, any_of, word_pattern, words_of
from tests.rows.given import TOKENIZER

# How published tokenizers cut text into words.
PATTERNS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "gaps": r"\p{Lu}+|[0-9]",  # what it does not match is a word, too
}
PIECES = ["<|im_start|>", "<|im_end|>", "<think>", "<|im", "_end|>", "assistant\n", "\r\n", "'Ll"]


@cache
def demo(name: str = "nemotron-3", **changes: Any) -> Tokenizer:
    """The demo's tokenizer, with another pattern of words or other settings."""
    state = json.loads((TOKENIZER / "tokenizer.json").read_bytes())
    split, byte_level = state["pre_tokenizer"]["pretokenizers"]
    if name in PATTERNS:
        split["pattern"] = {"Regex": PATTERNS[name]}
    if name == "qwen":
        state["normalizer"] = {"type": "NFC"}
    split.update({k: v for k, v in changes.items() if k in split})
    byte_level.update({k: v for k, v in changes.items() if k in byte_level})
    return Tokenizer.from_str(json.dumps(state))


quick = cache(words_of)


@pytest.mark.parametrize("name", ["nemotron-3", "gpt-2", "llama-3", "qwen"])
@given(
    texts=st.lists(
        st.lists(
            st.one_of(
                st.sampled_from(PIECES),
                st.text(st.characters(max_codepoint=127)),
                st.text(st.characters(exclude_categories=("Cs",)), max_size=6),
                st.text("aA1 \t\n.é́'ßſДλ—½→中", max_size=12),
                st.text(st.sampled_from(sorted(ALPHABET)), max_size=12),
            )
        ).map("".join),
        max_size=4,
    )
)
@settings(deadline=None, max_examples=150)
def test_any_text_gets_the_tokenizers_ids(name: str, texts: list[str]) -> None:
    tokenizer = demo(name)
    quickly = quick(tokenizer)
    assert quickly is not None
    expected = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    assert [ids.tolist() for ids in quickly.encode(texts)] == [e.ids for e in expected]


def test_words_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST_WORDS", 0)
    monkeypatch.setattr(words, "_probe", lambda added: [])
    tokenizer = demo()
    quickly = words_of(tokenizer)
    assert quickly is not None
    (ids,) = quickly.encode(["one two " * 3])
    assert ids.tolist() == tokenizer.encode("one two " * 3, add_special_tokens=False).ids
    assert quickly._known == {}
    monkeypatch.setattr(words, "MOST_WORDS", 9)
    quickly.encode(["one two " * 3, "x" * 99])
    assert set(quickly._known) == {"one", " two", " one", " "}


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\w+", r"a.", r"^a", r"(a)b", r"(?m:a)", r"(?<n>a)", r"[a&&b]", r"[a[b]]", r"\p{Han}"),
        *(r"a{2}+", r"[\p{M}]", r"[^\p{M}]", r"[\S]", r"\P{L}", r"\Aa", r"\1", r"[a", r"(a"),
    ],
)
def test_a_pattern_that_may_mean_something_else_is_not_taken(pattern: str) -> None:
    assert word_pattern(pattern) is None


def test_a_tokenizer_that_is_not_understood_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert words_of(demo("gaps")) is None  # its words are not all of the text
    assert words_of(demo(behavior="Removed")) is None
    assert words_of(demo(add_prefix_space=True)) is None
    assert words_of(demo(use_regex=True)) is None
    stripping = Tokenizer.from_str(demo().to_str())
    stripping.add_tokens([AddedToken("<greedy>", lstrip=True, normalized=False)])
    assert words_of(stripping) is None
    # A pattern that is read wrongly is found out before it is used.
    wrong = word_pattern(r"[^\s]+|\s+")
    monkeypatch.setattr(words, "word_pattern", lambda _: wrong)
    assert words_of(demo()) is None


def test_any_of_finds_the_longest() -> None:
    found = re.compile(any_of(["a", "ab", "abcd", "b.", "<"]))
    assert found.findall("abcd abc b. bx a<") == ["abcd", "ab", "b.", "a", "<"]
    assert re.compile(any_of([])).findall("abc") == []
