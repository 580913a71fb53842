"""The Jinja that chat templates run in: bounded, and the same on every run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Unicode noncharacters: no text may hold them, so they can mark spans inside rendered text.
SPAN_OPEN, SPAN_CLOSE = "\ufdd0", "\ufdd1"

#: Turns of loops and calls of macros in one rendering: steps, not seconds, so that the same
#: conversation is refused on a fast and on a slow machine.
MOST_STEPS = 20_000_000
#: The longest text or list that ``*`` may make, and the longest number that ``**`` may, in bits.
MOST_REPEATED = 10_000_000
MOST_BITS = 100_000


class GenerationTag(Extension):
    """``{% generation %}...{% endgeneration %}``: what the assistant said, the template says."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own interface)

    def parse(self, parser: Parser) -> nodes.Node:
        """Turn the block into a call of ``mark``."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller: Macro) -> str:
        """The block's text between span marks, where spans are asked for."""
        text = str(caller())
        marked = getattr(self.environment, "marks_spans", False)
        return f"{SPAN_OPEN}{text}{SPAN_CLOSE}" if marked else text


class StepCount(Extension):
    """Counts the turns of loops and the calls of macros."""

    def steps(self, count: int) -> None:
        """So many more; raises TemplateError where there were too many."""
        environment = self.environment
        environment.steps += count  # type: ignore[attr-defined]
        if environment.steps > MOST_STEPS:  # type: ignore[attr-defined]
            fail(f"more than {MOST_STEPS:,} turns of loops in one conversation")

    def loop(self, items: Any) -> Any:
        """What a loop goes through, counted at once where its length is known."""
        if hasattr(items, "__len__"):
            self.steps(len(items))
            return items
        return self._one_by_one(items) if isinstance(items, Iterator) else items

    def _one_by_one(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.steps(1)
            yield item

    def counted(self, tree: nodes.Template) -> nodes.Template:
        """The template with a count at the head of each loop and macro."""
        for loop in tree.find_all(nodes.For):
            items = cast(nodes.Expr, loop.iter)
            loop.iter = self.call_method("loop", [items], lineno=loop.lineno)
        for macro in tree.find_all(nodes.Macro):
            step = nodes.ExprStmt(self.call_method("steps", [nodes.Const(1)]))
            macro.body.insert(0, step.set_lineno(macro.lineno))
        return tree


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the filters and tags that chat templates expect.

    Args:
        marks_spans: mark ``{% generation %}`` blocks.
    """

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self, *, marks_spans: bool = False) -> None:
        self.steps = 0
        self.marks_spans = marks_spans
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, StepCount, "jinja2.ext.loopcontrols"],
        )
        self.filters["tojson"] = _to_json
        self.filters["random"] = _random
        self.globals["lipsum"] = _random
        self.globals["raise_exception"] = fail

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        counter = self.extensions[StepCount.identifier]
        assert isinstance(counter, StepCount)
        return counter.counted(super()._parse(source, name, filename))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """``*`` and ``**``, refused where the result would fill the memory."""
        if operator == "*":
            for made, times in ((left, right), (right, left)):
                sized = isinstance(made, str | list | tuple) and isinstance(times, int)
                if sized and len(made) * times > MOST_REPEATED:
                    fail(f"a repetition to {len(made) * times:,} items")
        else:
            whole = isinstance(left, int) and isinstance(right, int)
            if whole and left.bit_length() * right > MOST_BITS:
                fail("a power that is too large")
        return super().call_binop(context, operator, left, right)


def fail(message: str) -> None:
    """``raise_exception`` of templates."""
    raise jinja2.TemplateError(message)


def _random(*_: Any, **__: Any) -> None:
    fail("random and lipsum give other text on each run: the same input must give the same rows")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML; templates mean plain JSON.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
