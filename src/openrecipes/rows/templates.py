"""Chat templates: Jinja in a sandbox, with the filters and tags that templates expect."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openrecipes.errors import InputError, one_line
from openrecipes.rows.refusals import Refusal
from openrecipes.rows.sandbox import SPAN_CLOSE, SPAN_OPEN, Sandbox


@dataclass(frozen=True)
class Rendered:
    """Rendered text and, where asked for, the character spans of ``{% generation %}`` blocks."""

    text: str
    spans: list[tuple[int, int]]


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the template's text.
        name: the file it came from, for messages.
        special_tokens: ``bos_token`` and the like, which templates may print.
        options: further variables, such as ``enable_thinking``.
        date: the day that ``strftime_now`` tells; needed by templates that call it, so that the
            same input gives the same text on any day.
        spans: mark ``{% generation %}`` blocks.

    Raises:
        InputError: the template does not compile, or needs a date.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str,
        special_tokens: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        date: datetime.date | None = None,
        spans: bool = False,
    ) -> None:
        self.name = name
        self.source = source
        self.sha256 = hashlib.sha256(source.encode("utf-8")).hexdigest()
        self.spans = spans
        environment = self._environment = Sandbox(marks_spans=spans)
        if date is not None:
            now = datetime.datetime.combine(date, datetime.time())
            environment.globals["strftime_now"] = now.strftime
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # nesting too deep: RecursionError, MemoryError, SyntaxError
            line = getattr(error, "lineno", None)
            raise InputError(
                "mend the chat template",
                file=f"{name}:{line}" if line else name,
                found=one_line(str(error) or type(error).__name__),
                expected="a Jinja template",
            ) from None
        if "strftime_now" in source and date is None:
            raise InputError(
                "pass --template-date YYYY-MM-DD, so that the same input gives the same rows",
                file=name,
                found="a template that prints today's date",
            )
        self._variables = {**(special_tokens or {}), **(options or {})}

    @property
    def has_generation(self) -> bool:
        """Does the template mark what the assistant said?"""
        return "endgeneration" in self.source

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Rendered:
        """The conversation as text.

        Raises:
            Refusal: the template raises, or the text cannot be UTF-8.
        """
        text = self._render(messages, tools, prompt=False)
        return self._cut_marks(text) if self.spans else Rendered(text, [])

    def generation_prompt(
        self, messages: list[dict[str, Any]], tools: list[Any] | None = None
    ) -> str:
        """The conversation as text, up to where the assistant's next turn begins."""
        return self._render(messages, tools, prompt=True)

    def _render(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, *, prompt: bool
    ) -> str:
        self._environment.steps = 0
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                **self._variables,
            )
        except Exception as error:  # a template can raise anything that Python can
            raise Refusal("template-error", f"{type(error).__name__}: {error}") from None

    def _cut_marks(self, text: str) -> Rendered:
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        length = 0
        for number, opened in enumerate(text.split(SPAN_OPEN)):
            if number == 0:
                parts.append(opened)
                length += len(opened)
                continue
            inside, close, outside = opened.partition(SPAN_CLOSE)
            if not close or SPAN_CLOSE in outside:
                raise Refusal("template-error", "generation blocks that overlap")
            spans.append((length, length + len(inside)))
            parts += [inside, outside]
            length += len(inside) + len(outside)
        return Rendered("".join(parts), spans)
