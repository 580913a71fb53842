"""Text of others made safe for a page: Markdown without HTML, code with its keywords marked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

from openrecipes.site import words


class _Renderer(RendererHTML):
    """Opens foreign links without telling them where the reader came from."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        href = str(tokens[idx].attrGet("href") or "")
        if words.safe_link(href):
            tokens[idx].attrSet("rel", "noopener noreferrer external")
        return self.renderToken(tokens, idx, options, env)


@cache
def _markdown() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    parser.disable("image")  # a picture would be loaded from another host
    setattr(parser, "validateLink", _valid)  # noqa: B010 - an instance hook, documented as such
    return parser


def _valid(address: str) -> bool:
    """Links of notes: http(s), a place on the page, or a relative path; no other scheme."""
    if words.safe_link(address):
        return True
    return re.match(r"[#\w./-]", address) is not None and not re.match(r"[^/?#]*:|//", address)


def markdown(text: str) -> Markup:
    """``text`` as HTML; HTML in it is shown as text, links with a foreign scheme stay text."""
    return Markup(_markdown().render(text))


def inline(text: str) -> Markup:
    """One paragraph of Markdown as HTML, as safe as ``markdown``."""
    return Markup(_markdown().renderInline(text))


_YAML_KEY = re.compile(r"^(\s*(?:- )*)([A-Za-z_][\w.-]*)(:)(?=\s|$)", re.MULTILINE)
_YAML_COMMENT = re.compile(r"^(\s*#.*)$", re.MULTILINE)
_SHELL_FLAG = re.compile(r"(?<=[\s(])(--?[A-Za-z][\w-]*)")


def yaml(text: str) -> Markup:
    """A YAML document with keys and comments marked; its text content is ``text`` unchanged."""
    safe = escape(text, quote=False)
    safe = _YAML_KEY.sub(r"\1<b>\2</b>\3", safe)
    return Markup(_YAML_COMMENT.sub(r"<i>\1</i>", safe))


def shell(text: str) -> Markup:
    """A shell command with its flags marked; its text content is ``text`` unchanged."""
    return Markup(_SHELL_FLAG.sub(r"<b>\1</b>", escape(text, quote=False)))


def bibtex(title: str, author: str, url: str | None, year: int | None) -> str:
    """A BibTeX entry for a recipe."""
    key = "-".join(re.findall(r"[a-z0-9]+", f"{author} {title}".lower()))[:60] or "recipe"
    lines = [
        f"@misc{{{key},",
        f"  title = {{{_bib(title)}}},",
        f"  author = {{{{{_bib(author)}}}}},",
    ]
    if year:
        lines.append(f"  year = {{{year}}},")
    if url:
        lines.append(f"  url = {{{_bib(url)}}},")
    return "\n".join([*lines, "}"])


def _bib(text: str) -> str:
    """Braces, backslashes and line ends would end or change the entry."""
    return re.sub(r"[{}\\\x00-\x1f]+", " ", text).strip()
