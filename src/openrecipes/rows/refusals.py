"""Why a conversation is refused. A refusal is counted and named, never silent."""

from __future__ import annotations

from dataclasses import dataclass

from openrecipes.errors import InputError, one_line

#: Every reason for a refusal, with what is expected instead.
EXPECTED = {
    "invalid-utf8": "UTF-8 text",
    "broken-json": "one JSON object per line",
    "broken-conversation": "messages, each with a role and text",
    "no-assistant": "an assistant turn to learn from",
    "markers-in-content": "no turn markers inside text, which mislead the mask",
    "template-error": "a conversation that the chat template accepts",
    "header-not-found": "every assistant turn in the rendered text",
    "mask-misfit": "messages that the loss mask type can mask",
    "id-out-of-vocabulary": "ids below the vocabulary size",
    "overlong": "conversations that fit into a row",
    "message-not-rendered": "a chat template that prints every message",
}
REASONS = tuple(EXPECTED)


class Refusal(Exception):
    """A conversation that must not be trained on as it is.

    Args:
        reason: one of ``REASONS``.
        detail: what was found; it is kept as one line that any file can hold.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = one_line(detail)
        super().__init__(reason, self.detail)


def unexpected(error: Exception) -> Refusal:
    """A fault of one record that nothing foresaw (nesting too deep, a value of a strange type)."""
    return Refusal("broken-conversation", f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Refused:
    """One refused conversation.

    Attributes:
        number: position among all input conversations, from 0.
        id: the conversation's own id, or None.
        place: where it stands, ``file:line``.
        reason: one of ``REASONS``.
        detail: what was found.
    """

    number: int
    id: str | None
    place: str
    reason: str
    detail: str

    def error(self) -> InputError:
        """What ends a build or an encoding that does not skip this reason."""
        if self.reason == "overlong":
            advice = "choose longer rows, or --overlong skip or split"
        else:
            advice = (
                f"mend it, or pass --skip {self.reason} to leave such conversations out and "
                "count them"
            )
        return InputError(
            advice,
            file=self.place,
            field=f"conversation {self.number if self.id is None else self.id}",
            found=f"{self.reason}: {self.detail}",
            expected=EXPECTED[self.reason],
        )
