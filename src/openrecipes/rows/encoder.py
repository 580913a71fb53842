"""Conversations to token ids and loss masks, with every check that refuses a conversation."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from openrecipes import files
from openrecipes.errors import InputError
from openrecipes.rows.conversations import Conversation, conversation, texts
from openrecipes.rows.masks import MASK_TYPES, TURN_END, TURN_START, Mask, Masker
from openrecipes.rows.refusals import Refusal, unexpected
from openrecipes.rows.rendering import FaithfulTemplate
from openrecipes.rows.sandbox import SPAN_CLOSE, SPAN_OPEN
from openrecipes.rows.templates import ChatTemplate
from openrecipes.rows.tokenization import Ids, TextTokenizer, tokenizer_file

_RESERVED = {"messages", "tools", "documents", "add_generation_prompt"}
_TEMPLATE = "chat_template.jinja"
_PROBE = "probe of the template"
_ARGUMENTS = '{"probe": "value"}'


@dataclass(frozen=True)
class EncoderSettings:
    """Everything that decides a conversation's tokens and mask.

    Attributes:
        tokenizer: a Hugging Face directory or a tokenizer.json.
        chat_template: a Jinja file; None takes the directory's own.
        mask_type: one of ``MASK_TYPES``.
        vocabulary: the model's vocabulary size; None takes the tokenizer's.
        eos_token: the token between documents; None takes the tokenizer's.
        template_options: variables for the template.
        template_date: the day that a template is told.
        expected_tokenizer_sha256: refuse another tokenizer.json.
        max_tokens: refuse (as overlong) a conversation of more tokens; None allows any.
    """

    tokenizer: Path
    chat_template: Path | None = None
    mask_type: str = "qwen3_5"
    vocabulary: int | None = None
    eos_token: str | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)
    template_date: datetime.date | None = None
    expected_tokenizer_sha256: str | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Encoded:
    """A tokenized conversation: ``ids`` (n,) int32, ``mask`` (n,) uint8 with ``mask[0]`` = 0."""

    ids: Ids
    mask: Mask


class Encoder:
    """Encodes conversations by one set of settings.

    Raises:
        InputError: a file is missing or broken, or tokenizer, template and type do not fit.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        if settings.mask_type not in MASK_TYPES:
            raise InputError(
                "choose a loss mask type",
                field="--loss-mask-type",
                found=settings.mask_type,
                expected=", ".join(MASK_TYPES),
            )
        if reserved := _RESERVED & set(settings.template_options):
            raise InputError(
                "rename the option", field="--template-option", found=", ".join(sorted(reserved))
            )
        self.settings = settings
        self.tokenizer = TextTokenizer(
            settings.tokenizer, expected_sha256=settings.expected_tokenizer_sha256
        )
        name, source = _template_source(settings)
        self.template = ChatTemplate(
            source,
            name=name,
            special_tokens=self.tokenizer.special_tokens,
            options=settings.template_options,
            date=settings.template_date,
            spans=settings.mask_type == "generation",
        )
        self._arguments_as_mapping = _wants_mapping(self.template)
        turns = self._turn_tokens()
        self._markers = self._dangerous(turns)
        faithful = FaithfulTemplate(self.template, self._markers)
        self._masker = Masker(settings.mask_type, self.tokenizer, faithful)
        self.vocabulary = settings.vocabulary or self.tokenizer.vocabulary
        self.eos = self._eos(turns)
        self.turn_ends = self._turn_ends(turns)

    def conversation(self, record: Any) -> Conversation:
        """A raw record in the shape that this template wants; raises Refusal."""
        return conversation(record, arguments_as_mapping=self._arguments_as_mapping)

    def encode(self, record: Any) -> Encoded:
        """A raw record to ids and mask; raises Refusal."""
        (made,) = self.encode_many([record])
        if isinstance(made, Refusal):
            raise made
        return made

    def encode_many(self, records: Sequence[Any]) -> list[Encoded | Refusal]:
        """Raw records to ids and masks, or to what is wrong with them.

        A record may be a Refusal already (a line that could not be parsed): it is passed on.
        """
        talks = [self._attempted(record) for record in records]
        masked = iter(self._masker([talk for talk in talks if not isinstance(talk, Refusal)]))
        return [
            talk if isinstance(talk, Refusal) else self._encoded(next(masked)) for talk in talks
        ]

    def _attempted(self, record: Any) -> Conversation | Refusal:
        if isinstance(record, Refusal):
            return record
        try:
            return self._checked(self.conversation(record))
        except Refusal as refusal:
            return refusal
        except Exception as error:
            return unexpected(error)

    def _checked(self, talk: Conversation) -> Conversation:
        if self.settings.mask_type == "all":
            return talk
        if not any(m["role"] == "assistant" for m in talk.messages):
            raise Refusal("no-assistant", f"{len(talk.messages)} messages, none by assistant")
        said = "\n".join(texts(talk))
        for marker in self._markers:
            if marker in said:
                raise Refusal("markers-in-content", f"{marker} stands in a message's text")
        return talk

    def _encoded(self, masked: tuple[Ids, Mask] | Refusal) -> Encoded | Refusal:
        if isinstance(masked, Refusal):
            return masked
        ids, mask = masked
        if len(ids) == 0:
            return Refusal("broken-conversation", "it renders to no token")
        mask[0] = 0
        highest = int(ids.max())
        if highest >= self.vocabulary:
            return Refusal("id-out-of-vocabulary", f"id {highest}, vocabulary {self.vocabulary}")
        limit = self.settings.max_tokens
        if limit is not None and len(ids) > limit:
            return Refusal("overlong", f"{len(ids)} tokens, a row holds {limit}")
        return Encoded(ids, mask)

    def supervised_ends(self, encoded: Encoded) -> int:
        """How many ends of turn are learned."""
        learned = encoded.ids[encoded.mask.view(bool)]
        return sum(int(np.count_nonzero(learned == end)) for end in self.turn_ends)

    def _turn_tokens(self) -> list[str]:
        """Special tokens that the template itself writes, in the order of a rendered turn."""
        try:
            text = self.template.render(
                [{"role": "user", "content": _PROBE}, {"role": "assistant", "content": _PROBE}]
            ).text
        except Refusal:
            return []
        found = (self.tokenizer.token_of(int(i)) for i in self.tokenizer.ids(text))
        return [token for token in found if token in self.tokenizer.special]

    def _dangerous(self, turns: list[str]) -> list[str]:
        """Text that no message may hold: it would look like a turn of its own."""
        if self.settings.mask_type == "all":  # every token is learned: nothing can mislead
            return []
        markers = set(turns)
        if self.settings.mask_type == "qwen3_5":
            markers |= {TURN_START, TURN_END}
        if self.settings.mask_type == "generation":
            markers |= {SPAN_OPEN, SPAN_CLOSE}
        return sorted(markers)

    def _eos(self, turns: list[str]) -> int:
        """The id between documents: given, else the tokenizer's, else the end of a turn."""
        token = self.settings.eos_token or self.tokenizer.special_tokens.get("eos_token")
        if token is None and turns:
            token = turns[-1]
        if token is None:
            raise InputError(
                "pass --eos-token",
                file=self.tokenizer.file,
                field="eos_token",
                found="none",
                expected="a token that ends a document",
            )
        id_ = self.tokenizer.id_of(token)
        if id_ is None and token.isdecimal():
            id_ = int(token)
        if id_ is not None and self.vocabulary <= id_ < self.tokenizer.vocabulary:
            raise InputError(
                "pass a larger --vocab-size, or another --eos-token",
                field="--vocab-size",
                found=f"{self.vocabulary}; --eos-token {token} has the id {id_}",
                expected=f"at least {id_ + 1}",
            )
        if id_ is None or id_ >= self.vocabulary:
            raise InputError(
                "pass a token of the tokenizer, or its id",
                file=self.tokenizer.file,
                field="--eos-token",
                found=token,
                expected=f"a token with an id below {self.vocabulary}",
            )
        return id_

    def _turn_ends(self, turns: list[str]) -> list[int]:
        ends = {self.eos}
        for token in {TURN_END, *turns[-1:]}:
            id_ = self.tokenizer.id_of(token)
            if id_ is not None:
                ends.add(id_)
        return sorted(ends)


def files_read(settings: EncoderSettings, conversations: Sequence[Path]) -> dict[Path, str]:
    """Every file that encoding reads, with what it is."""
    file = tokenizer_file(settings.tokenizer)
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", _TEMPLATE)
    read = dict.fromkeys(conversations, "an input")
    read |= {file.parent / name: "a file of the tokenizer" for name in names}
    read[file] = "the tokenizer"
    if settings.chat_template is not None:
        read[settings.chat_template] = "the chat template"
    return read


def _template_source(settings: EncoderSettings) -> tuple[str, str]:
    """Name and text of the chat template."""
    directory = tokenizer_file(settings.tokenizer).parent
    file = settings.chat_template
    if file is None and (directory / _TEMPLATE).is_file():
        file = directory / _TEMPLATE
    if file is not None:
        return str(file), files.read_text(file)
    config = directory / "tokenizer_config.json"
    if config.is_file():
        document = files.read_json(config)
        source = document.get("chat_template") if isinstance(document, dict) else None
        if isinstance(source, str):
            return str(config), source
    raise InputError(
        "pass --chat-template FILE.jinja",
        file=directory,
        field="--chat-template",
        found="no chat_template.jinja beside the tokenizer",
    )


def _wants_mapping(template: ChatTemplate) -> bool:
    """Does the template need a tool call's arguments as a mapping, not as JSON text?"""
    call: dict[str, Any] = {
        "function": {"name": "probe", "arguments": _ARGUMENTS},
        "type": "function",
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": _PROBE},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    try:
        return _ARGUMENTS not in template.render(messages).text
    except Refusal:
        return True
