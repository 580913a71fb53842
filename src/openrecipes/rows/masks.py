"""Loss masks: which tokens of a conversation are learned.

Each type follows a public definition; ids are always those of the text that the template gives.

- ``qwen3_5`` (slime's generator): the conversation is rendered once; a turn's span runs from after
  its ``<|im_start|>assistant\\n`` (and one leading ``<think>\\n``) through its ``<|im_end|>`` and
  one newline. A token that touches a span is supervised.
- ``qwen`` and ``qwen3`` (slime's and miles' generators): each message is rendered by itself,
  ``qwen3`` with a dummy user message beside it; an assistant's tokens after the generation prompt
  are supervised.
- ``distill_qwen`` (the same): the first message as prompt, the last message's text as response.
- ``generation``: the spans that the template itself marks.
- ``all``: every token (pretraining).

The first token is never a target: nothing precedes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from openrecipes.errors import InputError
from openrecipes.rows.conversations import Conversation
from openrecipes.rows.refusals import Refusal, unexpected
from openrecipes.rows.rendering import FaithfulTemplate
from openrecipes.rows.tokenization import Ends, Ids, TextTokenizer, Tokens

MaskType = Literal["qwen3_5", "qwen3", "qwen", "distill_qwen", "generation", "all"]
MASK_TYPES: tuple[str, ...] = get_args(MaskType)
Mask = npt.NDArray[np.uint8]
Masked = tuple[Ids, Mask]
T = TypeVar("T")

HEADER = "<|im_start|>assistant\n"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
THINK = "<think>\n"
_DUMMY = {"role": "user", "content": "FOR CALCULATING LOSS MASK ONLY"}
_PROBE = "FOR TESTING ONLY"
_DISTILLED = "<｜Assistant｜>"


@dataclass(frozen=True)
class Laid:
    """A rendered conversation and the spans of its text (in UTF-8 bytes) that are learned."""

    text: str
    encoded: bytes
    spans: list[tuple[int, int]]


def touch_spans(starts: Ends, ends: Ends, spans: Sequence[tuple[int, int]]) -> Mask:
    """1 for each token that shares text with a span, else 0; a token without text gets 0.

    Args:
        starts: (n,) begin of each token, never falling.
        ends: (n,) end of each token.
        spans: half-open, ascending, apart from each other; same unit as the tokens.
    """
    if not spans:
        return np.zeros(len(starts), np.uint8)
    borders = np.array(spans, dtype=np.int64)
    # The first span that ends after the token's start is the only one that it could touch first.
    nearest = np.searchsorted(borders[:, 1], starts, side="right")
    begins = np.append(borders[:, 0], np.iinfo(np.int64).max)[nearest]
    return ((begins < ends) & (starts < ends)).astype(np.uint8)


def answer_spans(text: bytes, learn: Sequence[bool]) -> list[tuple[int, int]]:
    """Spans of the answers in rendered text, ``qwen3_5``'s definition, in bytes.

    Args:
        text: the rendered conversation, UTF-8.
        learn: for each assistant message in order, is it to be learned?

    Raises:
        Refusal: a header or an end of turn that cannot be found, or more headers than messages.
    """
    header, end, think = HEADER.encode(), TURN_END.encode(), THINK.encode()
    spans = []
    cursor = 0
    for number, wanted in enumerate(learn):
        found = text.find(header, cursor)
        if found < 0:
            raise Refusal("header-not-found", f"assistant turn {number} has no header")
        start = found + len(header)
        stop = text.find(end, start)
        if stop < 0:
            raise Refusal("header-not-found", f"assistant turn {number} has no {TURN_END}")
        stop += len(end)
        if text.startswith(b"\n", stop):
            stop += 1
        cursor = stop
        if text.startswith(think, start):
            start += len(think)
        if wanted:
            spans.append((start, stop))
    if text.find(header, cursor) >= 0 or text.count(header) != len(learn):
        raise Refusal(
            "markers-in-content",
            f"{text.count(header)} assistant headers in the text, {len(learn)} assistant messages",
        )
    return spans


def learned(messages: Sequence[dict[str, Any]]) -> list[bool]:
    """For each assistant message in order: is it to be learned (``step_loss_mask``)?"""
    return [m.get("step_loss_mask", 1) == 1 for m in messages if m["role"] == "assistant"]


class Masker:
    """Tokenizes and masks conversations by one type.

    Raises:
        InputError: the type and the template do not belong together.
    """

    def __init__(self, kind: str, tokenizer: TextTokenizer, template: FaithfulTemplate) -> None:
        self.kind = kind
        self._tokenizer = tokenizer
        self._faithful = template
        self._template = template.template
        checks: dict[str, Callable[[], str | None]] = {
            "qwen3_5": self._misfit_text,
            "qwen3": self._misfit_dummy,
            "qwen": self._misfit_message,
            "distill_qwen": self._misfit_prompt,
            "generation": self._misfit_generation,
            "all": lambda: None,
        }
        self._by_text: Callable[[Conversation], Laid] | None = {
            "qwen3_5": self._answers,
            "generation": self._generations,
            "all": self._everything,
        }.get(kind)
        self._by_message: Callable[[Conversation], Masked] = {
            "qwen3": self._with_dummy,
            "distill_qwen": self._last,
        }.get(kind, self._alone)
        misfit = checks[kind]
        try:
            reason = misfit()
        except Refusal as refusal:
            reason = refusal.detail
            if refusal.reason == "template-error" and self._by_text is not None:
                raise InputError(
                    "mend the chat template",
                    file=template.template.name,
                    found=reason,
                    expected="a template that renders a user's and an assistant's message",
                ) from None
        if reason is not None:
            raise InputError(
                f"choose another --loss-mask-type ({', '.join(MASK_TYPES)}) or template",
                file=template.template.name,
                field="--loss-mask-type",
                found=f"{kind}: {reason}",
                expected="a mask type that fits the chat template",
            )

    def __call__(self, conversations: Sequence[Conversation]) -> list[Masked | Refusal]:
        """Ids and mask of each conversation, or why it is refused."""
        if self._by_text is None:
            return [_attempt(self._by_message, talk) for talk in conversations]
        laid = [_attempt(self._by_text, talk) for talk in conversations]
        sound = [one for one in laid if not isinstance(one, Refusal)]
        made = iter(self._masked(sound))
        return [one if isinstance(one, Refusal) else next(made) for one in laid]

    def _masked(self, laid: Sequence[Laid]) -> list[Masked | Refusal]:
        try:
            tokens = self._tokenizer.tokens([o.text for o in laid], [o.encoded for o in laid])
        except Exception as error:  # which text is it?
            if len(laid) == 1:
                return [unexpected(error)]
            return [made for one in laid for made in self._masked([one])]
        return [_covered(*pair) for pair in zip(tokens, laid, strict=True)]

    # One rendering, spans of text -------------------------------------------------------------

    def _answers(self, conversation: Conversation) -> Laid:
        text = self._faithful.render(conversation.messages, conversation.tools).text
        encoded = _utf8(text)
        return Laid(text, encoded, answer_spans(encoded, learned(conversation.messages)))

    def _generations(self, conversation: Conversation) -> Laid:
        rendered = self._faithful.render(conversation.messages, conversation.tools)
        learn = learned(conversation.messages)
        if len(rendered.spans) != len(learn):
            if not all(learn):
                raise Refusal(
                    "mask-misfit",
                    f"{len(rendered.spans)} generation blocks, {len(learn)} assistant messages",
                )
            learn = [True] * len(rendered.spans)
        spans = [span for span, wanted in zip(rendered.spans, learn, strict=True) if wanted]
        encoded = _utf8(rendered.text)
        return Laid(
            rendered.text, encoded, _byte_spans(rendered.text, [s for s in spans if s[0] < s[1]])
        )

    def _everything(self, conversation: Conversation) -> Laid:
        text = self._faithful.render(conversation.messages, conversation.tools).text
        encoded = _utf8(text)
        return Laid(text, encoded, [(0, len(encoded))])

    # Each message by itself ---------------------------------------------------------------------

    def _rendered_ids(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Ids:
        text = self._faithful.render(messages, tools).text
        _utf8(text)
        return self._tokenizer.ids(text)

    def _alone(self, conversation: Conversation) -> Masked:
        pieces = []
        for number, message in enumerate(conversation.messages):
            tools = conversation.tools if number == 0 else None
            ids = self._rendered_ids([message], tools)
            if number > 0 and message["role"] != "system":
                ids = ids[self._preamble :]
            pieces.append((message, ids))
        return self._joined(pieces)

    def _with_dummy(self, conversation: Conversation) -> Masked:
        pieces = []
        for number, message in enumerate(conversation.messages):
            if number == 0:
                ids = self._rendered_ids([message, _DUMMY], conversation.tools)
                ids = ids[: -self._dummy_tokens]
            else:
                ids = self._rendered_ids([_DUMMY, message])[self._dummy_tokens :]
            pieces.append((message, ids))
        return self._joined(pieces)

    def _joined(self, pieces: list[tuple[dict[str, Any], Ids]]) -> Masked:
        masks = []
        for number, (message, ids) in enumerate(pieces):
            mask = np.zeros(len(ids), np.uint8)
            if message["role"] == "assistant":
                if len(ids) < self._prompt_tokens:
                    raise Refusal(
                        "mask-misfit",
                        f"message {number} has {len(ids)} tokens, fewer than its header",
                    )
                mask[self._prompt_tokens :] = message.get("step_loss_mask", 1) == 1
            masks.append(mask)
        return np.concatenate([ids for _, ids in pieces]), np.concatenate(masks)

    def _last(self, conversation: Conversation) -> Masked:
        first, last = conversation.messages[0], conversation.messages[-1]
        if last["role"] != "assistant" or not isinstance(last.get("content"), str):
            raise Refusal("mask-misfit", "the last message is not an assistant's text")
        self._faithful.render([first], conversation.tools)
        prompt = self._template.generation_prompt([first], conversation.tools)
        _utf8(prompt + last["content"])
        asked, answered = self._tokenizer.ids(prompt), self._tokenizer.ids(last["content"])
        mask = np.zeros(len(asked) + len(answered), np.uint8)
        mask[len(asked) :] = last.get("step_loss_mask", 1) == 1
        return np.concatenate([asked, answered]), mask

    # Does the type fit the template? ------------------------------------------------------------

    def _misfit_text(self) -> str | None:
        text = self._template.render([_user(_PROBE), _assistant(_PROBE)]).text
        if HEADER not in text:
            return f"the template writes no {HEADER!r}"
        if TURN_END not in text.partition(HEADER)[2]:
            return f"the template does not end a turn with {TURN_END}"
        if self._tokenizer.id_of(TURN_END) is None:
            return f"{TURN_END} is not a token of this tokenizer"
        return None

    def _misfit_generation(self) -> str | None:
        if not self._template.has_generation:
            return "the template marks no {% generation %} block"
        if not self._template.render([_user(_PROBE), _assistant(_PROBE)]).spans:
            return "the template's {% generation %} block is never reached"
        return None

    def _misfit_message(self) -> str | None:
        if self._tokenizer.id_of(_DISTILLED) is not None:
            return f"a tokenizer with {_DISTILLED} needs distill_qwen"
        twice = [_user(_PROBE), _user(_PROBE)]
        both, once = self._rendered_ids(twice), self._rendered_ids(twice[:1])
        turn = len(both) - len(once)
        # What the template writes before a lone message: a system turn, a first token.
        self._preamble = len(once) - turn
        if self._preamble < 0 or not np.array_equal(both[-turn:], once[self._preamble :]):
            return "a message by itself is not rendered as in its place"
        self._rendered_ids([_assistant(_PROBE)])
        return self._misfit_prompt()

    def _misfit_dummy(self) -> str | None:
        dummy = self._rendered_ids([_DUMMY])
        self._dummy_tokens = len(dummy)
        before = self._rendered_ids([_user(_PROBE), _DUMMY])
        after = self._rendered_ids([_DUMMY, _assistant(_PROBE)])
        if not np.array_equal(before[-len(dummy) :], dummy):
            return "the template begins every text with more than the message, which this type cuts"
        if not np.array_equal(after[: len(dummy)], dummy):
            return "a message is rendered differently when another follows"
        return self._misfit_prompt()

    def _misfit_prompt(self) -> str | None:
        asked = [_user(_PROBE)]
        prompt = self._tokenizer.ids(self._template.generation_prompt(asked))
        self._prompt_tokens = len(prompt) - len(self._rendered_ids(asked))
        return None if self._prompt_tokens > 0 else "the template writes no generation prompt"


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refusal("invalid-utf8", f"half of a surrogate pair at {error.start}") from None


def _attempt(make: Callable[[Conversation], T], conversation: Conversation) -> T | Refusal:
    """What is made of a conversation, or why it is refused: no fault of one ends all."""
    try:
        return make(conversation)
    except Refusal as refusal:
        return refusal
    except Exception as error:
        return unexpected(error)


def _covered(tokens: Tokens, laid: Laid) -> Masked:
    spans = laid.spans if tokens.in_bytes else _character_spans(laid.encoded, laid.spans)
    return tokens.ids, touch_spans(tokens.starts, tokens.ends, spans)


def _character_spans(text: bytes, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Byte spans as character spans; borders lie between characters."""
    return [(len(text[:a].decode()), len(text[:b].decode())) for a, b in spans]


def _byte_spans(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(len(text[:a].encode()), len(text[:b].encode())) for a, b in spans]
