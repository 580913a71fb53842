"""A tokenizer.json: ids, and which part of the text each token covers."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from openrecipes import files
from openrecipes.errors import InputError, one_line
from openrecipes.rows.words import state_of, words_of

Ids = npt.NDArray[np.int32]
Ends = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """A tokenized text.

    Attributes:
        ids: (n,) int32.
        starts: (n,) where each token begins in the text, in units of ``unit``.
        ends: (n,) where each token ends; equal to its start for a token without text.
        in_bytes: offsets count UTF-8 bytes, else characters.
    """

    ids: Ids
    starts: Ends
    ends: Ends
    in_bytes: bool


def tokenizer_file(path: Path) -> Path:
    """The tokenizer.json that a Hugging Face directory or a file names; InputError for none."""
    try:
        file = path / "tokenizer.json" if path.is_dir() else path
        if file.is_file():
            return file
    except OSError as error:  # a name too long
        raise _no_tokenizer(path, error.strerror) from None
    raise _no_tokenizer(file, "no such file")


def _no_tokenizer(file: Path, found: str | None) -> InputError:
    return InputError(
        "give a Hugging Face directory or a tokenizer.json",
        file=file,
        field="--tokenizer",
        found=found,
    )


class TextTokenizer:
    """A tokenizer with its special tokens, read from a directory or a tokenizer.json.

    ``vocabulary`` is one more than the largest id.

    Raises:
        InputError: files missing or broken, or another sha256 than expected.
    """

    def __init__(self, path: Path, *, expected_sha256: str | None = None) -> None:
        file = self.file = tokenizer_file(path)
        try:
            content = file.read_bytes()
        except OSError as error:
            raise _no_tokenizer(file, error.strerror) from None
        self.sha256 = hashlib.sha256(content).hexdigest()
        if expected_sha256 is not None and self.sha256 != expected_sha256.lower():
            raise InputError(
                "use the tokenizer that was asked for, or drop --expect-tokenizer-sha256",
                file=file,
                field="sha256",
                found=self.sha256,
                expected=expected_sha256,
            )
        try:
            self._tokenizer = Tokenizer.from_buffer(content)
            self._tokenizer.encode("a word")  # a vocabulary without its unknown token
        except Exception as error:  # the library raises bare Exception
            raise InputError(
                "give a tokenizer.json of the tokenizers library",
                file=file,
                found=one_line(error, 120),
                expected="a tokenizer",
            ) from None
        # Padding and truncation would change lengths behind the mask's back.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = {token.content for token in added.values() if token.special}
        self.special_tokens = _special_tokens(file.parent)
        self._normalizer = state_of(self._tokenizer.normalizer)
        widths = _byte_widths(self._tokenizer)
        # Ids may have gaps: the number of tokens is not the bound that a model needs.
        self.vocabulary = len(widths)
        self._widths = widths if _is_byte_level(self._tokenizer) else None
        self._words = words_of(self._tokenizer)

    def id_of(self, token: str) -> int | None:
        """The id of a token, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def token_of(self, id_: int) -> str | None:
        """The token with this id, as it stands in the vocabulary, or None."""
        found: str | None = self._tokenizer.id_to_token(id_)
        return found

    def decode(self, ids: list[int]) -> str:
        """Ids to text, special tokens included."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def ids(self, text: str) -> Ids:
        """The ids of a text; no special tokens are added."""
        (ids,) = self._ids([text])
        return ids

    def _ids(self, texts: Sequence[str]) -> list[Ids]:
        if self._words is not None:
            return self._words.encode(texts)
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def tokens(self, texts: Sequence[str], encoded: Sequence[bytes]) -> list[Tokens]:
        """The ids of texts and what each covers.

        A byte-level vocabulary loses nothing, so the widths of the tokens alone tell where each
        lies, without the offsets that the library would have to trace. Where that is not provable
        (another kind of vocabulary, a text that the normalizer changes), the traced offsets count.

        Args:
            texts: the texts.
            encoded: the same texts as UTF-8.
        """
        if self._widths is None:
            return [self._traced(text) for text in texts]
        found = []
        for text, content, ids in zip(texts, encoded, self._ids(texts), strict=True):
            widths = self._widths[ids]
            ends = np.cumsum(widths)
            whole = (int(ends[-1]) if len(ends) else 0) == len(content)
            if whole and self._unchanged(text):
                found.append(Tokens(ids, ends - widths, ends, True))
            else:
                found.append(self._traced(text))
        return found

    def _traced(self, text: str) -> Tokens:
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        ids = np.array(encoding.ids, dtype=np.int32)
        return Tokens(ids, offsets[:, 0], offsets[:, 1], False)

    def _unchanged(self, text: str) -> bool:
        if not self._normalizer:
            return True
        return self._normalizer == {"type": "NFC"} and unicodedata.is_normalized("NFC", text)


def _special_tokens(directory: Path) -> dict[str, str]:
    """``bos_token``, ``eos_token``, ... as a Hugging Face directory tells them."""
    found: dict[str, str] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = directory / name
        if not file.is_file():
            continue
        document = files.read_json(file)
        if not isinstance(document, dict):
            raise InputError("mend the file", file=file, found="no JSON object")
        for key, value in document.items():
            content = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(content, str):
                found.setdefault(key, content)
    return found


def _byte_widths(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Bytes of text that each id of a byte-level vocabulary stands for.

    Such vocabularies write each byte as one character (GPT-2's table), so a token's width in
    bytes is its length in characters; added tokens stand for their own text.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
    added: dict[int, AddedToken] = tokenizer.get_added_tokens_decoder()
    widths = np.zeros(1 + max([*vocabulary.values(), *added], default=0), np.int64)
    widths[list(vocabulary.values())] = list(map(len, vocabulary))
    for id_, token in added.items():
        widths[id_] = len(token.content.encode("utf-8"))
    return widths


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    """Is it certain that tokens, laid end to end, are the text's bytes?"""
    model = tokenizer.model
    if not isinstance(model, BPE):
        return False
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip or token.normalized:
            return False
    splitter = state_of(tokenizer.pre_tokenizer)
    steps = splitter.get("pretokenizers", [splitter])
    if steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return False
    if any(s.get("type") != "Split" or s.get("behavior") != "Isolated" for s in steps[:-1]):
        return False
    after = state_of(tokenizer.post_processor)
    # Trimmed offsets leave out a token's leading space: another definition of what it covers.
    return not after or (after.get("type") == "ByteLevel" and not after.get("trim_offsets"))
