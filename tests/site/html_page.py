"""Pages as a reader or a checker sees them: text in order, elements, links."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

BLOCKS = {
    "td",
    "th",
    "tr",
    "dt",
    "dd",
    "li",
    "p",
    "h1",
    "h2",
    "h3",
    "div",
    "summary",
    "label",
    "span",
}
VOID = {"meta", "link", "input", "br", "hr", "img", "col"}


@dataclass
class Page(HTMLParser):
    """A parsed page: every start tag with its attributes, and the text by element id."""

    source: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    _open: list[tuple[str, str | None]] = field(default_factory=list)
    _text: dict[str | None, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.source)

    @classmethod
    def of(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        identity = given.get("id")
        if identity:
            self.ids.append(identity)
        self._part(tag)
        if tag not in VOID:
            self._open.append((tag, identity))

    def _part(self, tag: str) -> None:
        if tag in BLOCKS and not any(t in ("pre", "b") for t, _ in self._open):
            for identity in {None, *(i for _, i in self._open if i)}:
                self._text.setdefault(identity, []).append("\0")

    def handle_endtag(self, tag: str) -> None:
        self._part(tag)
        for i in range(len(self._open) - 1, -1, -1):
            if self._open[i][0] == tag:
                del self._open[i:]
                return

    def handle_data(self, data: str) -> None:
        if any(tag in ("script", "style", "title") for tag, _ in self._open):
            return
        for identity in {None, *(i for _, i in self._open if i)}:
            self._text.setdefault(identity, []).append(data)

    def text(self, identity: str | None = None) -> str:
        """All text, or the text within the element of that id, exactly."""
        return "".join(self._text.get(identity, [])).replace("\0", "")

    def words(self, identity: str | None = None) -> str:
        """The text with runs of white space as one space."""
        return " ".join("".join(self._text.get(identity, [])).replace("\0", " ").split())

    def links(self) -> list[str]:
        return [a["href"] or "" for t, a in self.tags if t == "a" and a.get("href") is not None]
