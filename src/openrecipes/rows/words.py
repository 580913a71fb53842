"""The ids of text by its words: what a byte-level tokenizer gives, in a fraction of its time.

Nearly all of a tokenizer's time goes into cutting text into words by classes of Unicode. Where text
holds only characters whose classes have never changed, Python's own regex cuts it in the same
places, and a word that was seen before keeps its ids. Text between two added tokens
(``<|im_start|>`` and the like) is tokenized by itself, so stretches of other texts gain, too. What
holds other characters goes to the tokenizer.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, product
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import BPE

#: Words kept, and the longest one that is: at most some 50 MB.
MOST_WORDS, LONGEST_WORD = 1 << 17, 64

# Beside ASCII: Latin, Greek, Cyrillic, punctuation, currencies, arrows, mathematics, boxes.
_BLOCKS = (
    *((0xA1, 0x24F), (0x370, 0x4FF), (0x2010, 0x205E), (0x20A0, 0x20BA)),
    *((0x2190, 0x21FF), (0x2200, 0x22FF), (0x2500, 0x25FF)),
)
_CLASS = re.compile(r"L[ultmo]?|N[dlo]?|Mn?|P|S")
_BLANK = r"\t-\r "
_PART = re.compile(r"\\p\{(\w+)\}|\\([sS])|\\(.)|(\[\^?)|(\])|(.)", re.DOTALL)
# What Oniguruma and Python read differently, or what this module does not read at all.
_FOREIGN = re.compile(r"&&|\(\?(?!:|!|=|i:)|\}\+|\[\]|\[\^\]")


def _alphabet() -> dict[str, str]:
    """Characters that are cut here, each with its category."""
    found = {chr(code): unicodedata.category(chr(code)) for code in range(128)}
    for first, last in _BLOCKS:
        for character in map(chr, range(first, last + 1)):
            category = unicodedata.category(character)
            # No blanks, no marks that normalization could join, nothing that it changes, and not
            # the long s, which is an s where case is ignored.
            stable = unicodedata.is_normalized("NFC", character) and character != "ſ"
            if category[0] in "LNPS" and stable:
                found[character] = category
    return found


ALPHABET = _alphabet()


def _byte_characters() -> list[str]:
    """GPT-2's table: the character that stands for each byte in a byte-level vocabulary."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (chr(256 + number) for number in range(256))
    return [chr(byte) if byte in shown else next(others) for byte in range(256)]


_BYTES = _byte_characters()


@cache
def _members(class_: str) -> str:
    """The alphabet's characters of a Unicode class, to stand inside ``[...]``."""
    chosen = (c for c, category in ALPHABET.items() if category.startswith(class_))
    return "".join(map(re.escape, chosen))


def word_pattern(pattern: str) -> re.Pattern[str] | None:
    """Python's pattern that finds in text of the alphabet what Oniguruma's ``pattern`` finds.

    None for a pattern with anything in it of which that is not certain.
    """
    made: list[str] = []
    inside = False
    for part in _PART.finditer(pattern):
        class_, blank, escaped, opened, closed, plain = part.groups()
        if class_ is not None and _CLASS.fullmatch(class_):
            made.append(_members(class_) if inside else f"[{_members(class_)}]")
        elif blank is not None and not (inside and blank == "S"):
            made.append(_BLANK if inside else f"[{'^' if blank == 'S' else ''}{_BLANK}]")
        elif escaped is not None and (escaped in "rnt" or not escaped.isalnum()):
            made.append(f"\\{escaped}")
        elif opened is not None and not inside:
            inside = True
            made.append(opened)
        elif closed is not None and inside:
            inside = False
            made.append(closed)
        elif plain is not None and (inside or plain not in "^$."):
            made.append(plain)
        else:
            return None
    source = "".join(made)
    if inside or _FOREIGN.search(source):
        return None
    try:
        found = re.compile(source)
    except re.error:
        return None
    return found if found.groups == 0 else None


class _Known(dict[str, tuple[int, ...]]):
    """The ids of words; a word that is looked up for the first time is tokenized."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenize = tokenizer.model.tokenize

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(
            token.id for token in self._tokenize("".join(_BYTES[byte] for byte in word.encode()))
        )
        if len(self) < MOST_WORDS and len(word) <= LONGEST_WORD:
            self[word] = ids
        return ids


class Words:
    """Encodes texts as ``tokenizer`` does without special tokens; ``words_of`` makes it."""

    def __init__(self, tokenizer: Tokenizer, word: re.Pattern[str]) -> None:
        self._tokenizer = tokenizer
        self._word = word
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token.content: id_ for id_, token in added.items()}
        self._borders = re.compile(f"({any_of(self._added)})")
        self._known = _Known(tokenizer)
        self._certain = re.compile(f"[{''.join(map(re.escape, ALPHABET))}]*").fullmatch

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """(n,) ids of each text."""
        split = [self._borders.split(text) for text in texts]  # text, token, text, token, text
        foreign = [part for parts in split for part in parts[::2] if not self._is_ours(part)]
        encodings = iter(self._tokenizer.encode_batch_fast(foreign, add_special_tokens=False))
        return [np.array(list(self._ids(parts, encodings)), np.int32) for parts in split]

    def _is_ours(self, part: str) -> bool:
        return part.isascii() or self._certain(part) is not None

    def _ids(self, parts: Sequence[str], encodings: Iterator[Any]) -> Iterator[int]:
        look_up, find = self._known.__getitem__, self._word.findall
        return chain.from_iterable(
            (self._added[part],)
            if number % 2
            else chain.from_iterable(map(look_up, find(part)))
            if self._is_ours(part)
            else next(encodings).ids
            for number, part in enumerate(parts)
        )


def words_of(tokenizer: Tokenizer) -> Words | None:
    """The quick way for this tokenizer; None where it is not certain to give the same ids."""
    model, added = tokenizer.model, tokenizer.get_added_tokens_decoder().values()
    steps = state_of(tokenizer.pre_tokenizer).get("pretokenizers", [])
    sound = (
        isinstance(model, BPE)
        and not (model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix)
        and state_of(tokenizer.normalizer) in ({}, {"type": "NFC"})
        and not any(t.single_word or t.lstrip or t.rstrip or t.normalized for t in added)
        and all(token.content for token in added)
        and [step["type"] for step in steps] == ["Split", "ByteLevel"]
        and (steps[0]["behavior"], steps[0]["invert"]) == ("Isolated", False)
        and not (steps[1]["add_prefix_space"] or steps[1]["use_regex"])
    )
    word = word_pattern(steps[0]["pattern"].get("Regex", "(")) if sound else None
    if word is None:
        return None
    words, probe = Words(tokenizer, word), _probe([token.content for token in added])
    encodings = tokenizer.encode_batch_fast(probe, add_special_tokens=False)
    same = all(e.ids == ids.tolist() for e, ids in zip(encodings, words.encode(probe), strict=True))
    return words if same else None


def state_of(part: Any) -> dict[str, Any]:
    """The settings of a tokenizer's part, {} where it has none."""
    state: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return state


def _probe(added: Sequence[str]) -> list[str]:
    """Texts with all pairs of ASCII characters, triples of every kind, all else by itself."""
    characters = [chr(code) for code in range(128)]
    kinds = "aAz0 \t\n\r/.'s<éÉ—½"
    return (
        [
            "".join(a + b for b in characters) + "".join(b + a for b in characters)
            for a in characters
        ]
        + [
            "".join(f"{x}{''.join(triple)}" for triple in product(kinds, repeat=3))
            for x in ("", "b ")
        ]
        + ["".join(f"a{c}a {c} A{c}{c}1{c}'{c}\n{c}" for c in ALPHABET)]
        + ["".join(f"{token}x {token[:-1]}{token}\n" for token in added)]
    )


def any_of(words: Iterable[str]) -> str:
    """A pattern for any of these words, of several the longest; it matches nothing without any."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return _branches(tree) if tree else "(?!)"


def _branches(node: dict[str, Any]) -> str:
    ways = [re.escape(character) + _branches(rest) for character, rest in node.items() if character]
    if not ways:
        return ""
    return f"(?:{'|'.join(ways)}){'?' if '' in node else ''}"
