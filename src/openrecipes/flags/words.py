"""Shell text to words, without ever running it: quotes, continuations, comments, substitutions.

A word is kept in its pieces, so that it can be told both what it says and what a shell would do
with it: ``'$(id)'`` is text, ``$(id)`` runs a program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from openrecipes.errors import InputError

Kind = Literal["literal", "double", "bare", "substitution"]

#: Stands before a character that the shell acts on; no recipe holds it (control characters are
#: refused), so a word with it equals none without.
ACTIVE = "\0"

#: What ends a command and does something with it.
OPERATORS = ("&", "|", "&&", "||")

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,+@%^-]")
_BLANKS = frozenset(" \t\n;&|")
_ENDS_BARE = frozenset(" \t\n;&|'\"\\$")


@dataclass(frozen=True)
class Word:
    """One word of a command, in pieces: how each was quoted, and its text."""

    pieces: tuple[tuple[Kind, str], ...]

    @property
    def value(self) -> str:
        """What it says: ``$NAME`` is a variable, ``\\$`` a dollar sign, all else is literal."""
        return "".join(
            text.replace("$", "\\$") if kind == "literal" else text for kind, text in self.pieces
        )

    @property
    def exact(self) -> str:
        """What a shell makes of it: words that differ here may differ when they are run.

        Quoted variables are ``"$NAME``; whatever else a shell acts on (a variable that is split
        at blanks, a substitution, a redirection, a pattern) has ``ACTIVE`` before it.
        """
        return "".join(_exact(kind, text) for kind, text in self.pieces)

    def partition(self, mark: str) -> tuple[Word, Word | None]:
        """The parts before and behind the first ``mark``; the second is None where none is."""
        at = "".join(text for _, text in self.pieces).find(mark)
        return (self, None) if at < 0 else (self.part(0, at), self.part(at + len(mark), None))

    def part(self, start: int, stop: int | None) -> Word:
        """The characters from ``start`` to ``stop`` of its text."""
        pieces: list[tuple[Kind, str]] = []
        position = 0
        for kind, text in self.pieces:
            end = None if stop is None else max(0, stop - position)
            pieces.append((kind, text[max(0, start - position) : end]))
            position += len(text)
        return Word(tuple(pieces))


def _exact(kind: Kind, text: str) -> str:
    if kind == "literal":
        return text
    if kind == "substitution":
        return ACTIVE + text
    if kind == "double":
        return text.replace("`", f"{ACTIVE}`").replace("$", f'{ACTIVE}"$')
    return "".join(char if _PLAIN.match(char) else ACTIVE + char for char in text)


def is_inert(exact: str) -> bool:
    """Whether a shell does nothing with a word but look up quoted variables."""
    return ACTIVE not in exact.replace(f'{ACTIVE}"$', "")


def shown(exact: str) -> str:
    """An exact word as people read it."""
    return exact.replace(f'{ACTIVE}"$', "$").replace(ACTIVE, "")


def told(words: Iterable[str]) -> str:
    """The exact words of a statement as people read it."""
    return " ".join(map(shown, words))


def commands(text: str) -> Iterator[list[Word]]:
    """Words of each command; a command ends at a new line, ``;``, ``&``, ``|``, ``&&`` or ``||``.

    All but the first two, which do no more than end it, are its last word.

    Raises:
        InputError: a quote or substitution without its end.
    """
    words: list[Word] = []
    for word in _words(text):
        if isinstance(word, Word):
            words.append(word)
            continue
        if word in OPERATORS:
            words.append(Word((("bare", word),)))
        if words:
            yield words
            words = []
    if words:
        yield words


def _words(text: str) -> Iterator[Word | str]:
    """Words, and the characters that end a command."""
    position, end = 0, len(text)
    pieces: list[tuple[Kind, str]] = []  # of the word that is read; an empty quote is a piece too
    while position < end:
        char = text[position]
        if text.startswith("\\\n", position):
            position += 2
        elif char in _BLANKS or text.startswith("\r\n", position):
            if pieces:
                yield Word(tuple(pieces))
                pieces = []
            if _redirects(text, position):
                pieces = [("bare", char)]
            elif text[position : position + 2] in OPERATORS:
                yield char * 2
                position += 1
            elif char in "\n;&|":
                yield char
            position += 1
        elif char == "#" and not pieces:
            stop = text.find("\n", position)
            position = end if stop < 0 else stop
        else:
            found, position = _piece(text, position)
            pieces += found
    if pieces:
        yield Word(tuple(pieces))


def _piece(text: str, start: int) -> tuple[list[tuple[Kind, str]], int]:
    """One quoted or plain part of a word, and the position behind it."""
    char = text[start]
    if char == "'":
        stop = text.find("'", start + 1)
        if stop < 0:
            raise _open_quote(text, start)
        return [("literal", text[start + 1 : stop])], stop + 1
    if char == '"':
        return _double_quoted(text, start)
    if text.startswith("$(", start):
        found, stop = _substitution(text, start)
        return [("substitution", found)], stop
    if char == "\\":
        return [("literal", text[start + 1 : start + 2])], start + 2
    stop = start + 1
    while stop < len(text) and text[stop] not in _ENDS_BARE:
        stop += 1
    if text[stop - 1] in "<>" and text[stop : stop + 1] == "&":  # 2>&1 is one word
        stop += 1
    return [("bare", text[start:stop])], stop


def _redirects(text: str, position: int) -> bool:
    """Whether the ``&`` here begins ``&>``, which sends output elsewhere and ends nothing."""
    return text.startswith("&>", position)


def _double_quoted(text: str, start: int) -> tuple[list[tuple[Kind, str]], int]:
    pieces: list[tuple[Kind, str]] = [("double", "")]
    position = start + 1
    while position < len(text):
        char = text[position]
        if char == '"':
            return pieces, position + 1
        if text.startswith("\\\n", position):
            position += 2
        elif char == "\\" and text[position + 1 : position + 2] in ('"', "\\", "`", "$"):
            pieces.append(("literal", text[position + 1]))
            position += 2
        elif text.startswith("$(", position):
            found, position = _substitution(text, position)
            pieces.append(("substitution", found))
        else:
            stop = position + 1
            while stop < len(text) and text[stop] not in '"\\$':
                stop += 1
            pieces.append(("double", text[position:stop]))
            position = stop
    raise _open_quote(text, start)


def _substitution(text: str, start: int) -> tuple[str, int]:
    depth = 0
    for position in range(start + 1, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return text[start : position + 1], position + 1
    raise _open_quote(text, start)


def _open_quote(text: str, start: int) -> InputError:
    line = text.count("\n", 0, start) + 1
    return InputError(
        "close it", field=f"line {line}", found=f"an open {text[start]}", expected="its end"
    )
