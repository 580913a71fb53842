"""Why a conversation is refused. A refusal is counted and named, never silent."""

from __future__ import annotations

from dataclasses import dataclass

#: Every reason, with what it means.
REASONS = {
    "invalid-utf8": "the line is not UTF-8, or holds half of a surrogate pair",
    "broken-json": "the line is not one JSON object",
    "broken-conversation": "messages are missing, or a message lacks a role or text",
    "no-assistant": "there is no assistant turn to learn from",
    "markers-in-content": "text holds the template's own turn markers, which mislead the mask",
    "template-error": "the chat template refuses the conversation",
    "header-not-found": "an assistant turn cannot be found in the rendered text",
    "mask-misfit": "the loss mask type does not fit a message: its mask would be of wrong length",
    "id-out-of-vocabulary": "a token id is not below the vocabulary size",
    "overlong": "longer than a row, where rows hold whole conversations",
}


class Refusal(Exception):
    """A conversation that must not be trained on as it is.

    Args:
        reason: a key of ``REASONS``.
        detail: what was found, on one line.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(reason, detail)


@dataclass(frozen=True)
class Refused:
    """One refused conversation.

    Attributes:
        number: position among all input conversations, from 0.
        id: the conversation's own id, or None.
        place: where it stands, ``file:line``.
        reason: a key of ``REASONS``.
        detail: what was found.
    """

    number: int
    id: str | None
    place: str
    reason: str
    detail: str
