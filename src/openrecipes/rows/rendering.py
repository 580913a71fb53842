"""Rendering that can be trusted: nothing of a conversation is lost or passes for a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openrecipes.rows.refusals import Refusal
from openrecipes.rows.templates import ChatTemplate, Rendered

_PROBE = "probe of the template"
#: Takes the place of a marker's signs in text: no template writes it.
_HARMLESS = "\ufffd"
#: Shapes of conversations whose markers are remembered.
_SHAPES = 1 << 16

Message = dict[str, Any]


class FaithfulTemplate:
    """A chat template whose renderings are checked.

    A key of a tool's parameters such as ``|im_end|`` can become a marker between the ``<`` and
    ``>`` that a template writes around it. So the markers in the rendered text are counted: there
    may be no more than in the same conversation with its text made harmless. That second
    rendering happens once for each shape of a conversation (roles, and which messages have text,
    reasoning and tool calls), and again only where the counts differ.

    Args:
        template: the chat template.
        markers: text that begins or ends a turn; empty leaves text unchecked for it.
    """

    def __init__(self, template: ChatTemplate, markers: Sequence[str]) -> None:
        self.template = template
        self._markers = tuple(markers)
        signs = {c for m in markers for c in m if not c.isalnum() and c != "_" and c.isprintable()}
        self._harmless = str.maketrans(dict.fromkeys(signs, _HARMLESS))
        self._explained: dict[tuple[Any, ...], tuple[int, ...]] = {}
        # What a template is known to print needs no look at each message.
        roles = ("system", "user", "assistant", "tool")
        self._printed = {role for role in roles if self._prints(role)}

    def render(self, messages: list[Message], tools: list[Any] | None = None) -> Rendered:
        """The conversation as text.

        Raises:
            Refusal: the template raises; text of the conversation passes for a marker; a message
                is not in the text.
        """
        rendered = self.template.render(messages, tools)
        self._check_markers(messages, tools, rendered.text)
        for number, message in enumerate(messages):
            role = message["role"]
            if role not in self._printed or (role == "system" and number > 0):
                self._check_printed(messages, number, tools, rendered.text)
        return rendered

    def _check_markers(self, messages: list[Message], tools: list[Any] | None, text: str) -> None:
        counts = self._counts(text)
        shape = (bool(tools), *map(_shape, messages))
        explained = self._explained.get(shape)
        if explained is None:
            explained = self._counts(self._harmless_text(messages, tools))
            if len(self._explained) < _SHAPES:
                self._explained[shape] = explained
        if counts == explained:
            return
        explained = self._counts(self._harmless_text(messages, tools))
        for marker, found, expected in zip(self._markers, counts, explained, strict=True):
            if found > expected:
                raise Refusal(
                    "markers-in-content",
                    f"{marker} stands {found} times in the rendered text, the template writes "
                    f"{expected}",
                )

    def _counts(self, text: str) -> tuple[int, ...]:
        return tuple(map(text.count, self._markers))

    def _harmless_text(self, messages: list[Message], tools: list[Any] | None) -> str:
        return self.template.render(
            [_translated(message, self._harmless) for message in messages],
            _translated(tools, self._harmless),
        ).text

    def _check_printed(
        self, messages: list[Message], number: int, tools: list[Any] | None, text: str
    ) -> None:
        content = messages[number].get("content")
        lost = isinstance(content, str) and content.strip() not in text
        if not lost:
            try:
                without = self.template.render(
                    messages[:number] + messages[number + 1 :], tools
                ).text
            except Refusal:
                return
            lost = without == text
        if lost:
            role = messages[number]["role"]
            raise Refusal(
                "message-not-rendered",
                f"message {number} ({role}) is not in the text that the chat template writes",
            )

    def _prints(self, role: str) -> bool:
        said = {"role": role, "content": _PROBE}
        user, assistant = ({"role": r, "content": r} for r in ("user", "assistant"))
        order = {
            "system": [said, user, assistant],
            "user": [said, assistant],
            "assistant": [user, said],
            "tool": [user, assistant, said, assistant],
        }
        try:
            return _PROBE in self.template.render(order[role]).text
        except Refusal:
            return False


def _shape(message: Mapping[str, Any]) -> tuple[str, bool, int, bool]:
    return (
        message["role"],
        bool(message.get("content")),
        len(message.get("tool_calls", ())),
        bool(message.get("reasoning_content")),
    )


def _translated(value: Any, table: dict[int, str]) -> Any:
    """``value`` with every string in it, keys too, translated."""
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, dict):
        return {_translated(k, table): _translated(v, table) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_translated(item, table) for item in value]
    return value
