"""Shell text to flags and back, without ever running it.

Reads launch scripts as people write them: exports, quotes, line continuations, comments,
``"${MODEL_ARGS[@]}"``, ``$NAME``. In values ``$NAME`` stands for the variable and ``\\$`` for a
dollar sign; nothing else of the shell is special in them. Command substitutions are kept as text.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from openrecipes.errors import InputError

#: A value as typed: text, ``True`` for a switch, a list for several.
Typed = str | bool | list[str]

_EXPANSION = re.compile(r"\$\{?[A-Za-z_]\w*\[[@*]\]\}?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"(?<!\\)\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,+@%^-]+")


@dataclass(frozen=True)
class Script:
    """What a launch script says.

    Args:
        exports: exported variables, and those put before the training command, in order.
        program: the words of the training command before its first flag.
        flags: its flags in order, each with its values; a doubled flag stands twice.
        expansions: arrays that the command takes in, such as ``${MODEL_ARGS[@]}``.
        assignments: shell variables that are not exported.
    """

    exports: dict[str, str] = field(default_factory=dict)
    program: list[str] = field(default_factory=list)
    flags: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    expansions: list[str] = field(default_factory=list)
    assignments: dict[str, str] = field(default_factory=dict)

    def typed(self) -> dict[str, Typed]:
        """Flags as typed; of a doubled flag the last counts, as in argparse."""
        return {name: as_typed(values) for name, values in self.flags}

    def doubled(self) -> list[str]:
        """Flags that stand more than once."""
        counts = Counter(name for name, _ in self.flags)
        return sorted(name for name, count in counts.items() if count > 1)


def as_typed(values: Sequence[str]) -> Typed:
    """Values of one flag: none is a switch, one is text, several are a list."""
    if not values:
        return True
    return values[0] if len(values) == 1 else list(values)


def parse_script(text: str) -> Script:
    """Read a launch script.

    The training command is the one with the most flags; its flags begin behind its program
    (``train.py``, ``-m module``, ``openrecipes train``).

    Raises:
        InputError: an open quote, or no command with a flag.
    """
    exports: dict[str, str] = {}
    assignments: dict[str, str] = {}
    best: list[str] = []
    for words in _commands(text):
        if words[0] == "export":
            exports |= _assignments(words[1:])
            continue
        prefix = 0
        while prefix < len(words) and _ASSIGNMENT.fullmatch(words[prefix]):
            prefix += 1
        if prefix == len(words):
            assignments |= _assignments(words)
            continue
        if _count(words) > _count(best):
            best = words
    if not _count(best):
        raise InputError(
            "give a script with the training command", found="no command with a --flag"
        )
    while _ASSIGNMENT.fullmatch(best[0]):
        exports |= _assignments(best[:1])
        best = best[1:]
    start = _program_end(best)
    flags, expansions = _group(best[start:])
    return Script(exports, best[:start], flags, expansions, assignments)


def _count(words: list[str]) -> int:
    return sum(word.startswith("--") and len(word) > 2 for word in words)


def _assignments(words: list[str]) -> dict[str, str]:
    found = (_ASSIGNMENT.fullmatch(word) for word in words)
    return {match[1]: match[2] for match in found if match}


def _program_end(words: list[str]) -> int:
    """Index of the first flag that belongs to the trainer and not to what starts it."""
    for index, word in enumerate(words):
        if word.endswith(".py"):
            return index + 1
        if word == "-m":
            module = words[index + 1] if index + 1 < len(words) else ""
            runs_command = module == "openrecipes" and words[index + 2 : index + 3] == ["train"]
            if not module.startswith("torch.distributed"):
                return index + 3 if runs_command else index + 2
        if word.rpartition("/")[2] == "openrecipes" and words[index + 1 : index + 2] == ["train"]:
            return index + 2
    return next(index for index, word in enumerate(words) if word.startswith("--"))


def _group(words: list[str]) -> tuple[list[tuple[str, tuple[str, ...]]], list[str]]:
    flags: list[tuple[str, list[str]]] = []
    expansions = []
    for word in words:
        if _EXPANSION.fullmatch(word):
            expansions.append(word)
        elif word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            flags.append((name, [value] if equals else []))
        elif flags:
            flags[-1][1].append(word)
    return [(name, tuple(values)) for name, values in flags], expansions


def _commands(text: str) -> Iterator[list[str]]:
    """Words of each command; a command ends at a new line, ``;``, ``&`` or ``|``."""
    words: list[str] = []
    for word in _words(text):
        if word is not None:
            words.append(word)
        elif words:
            yield words
            words = []
    if words:
        yield words


def _words(text: str) -> Iterator[str | None]:
    """Words without their quotes; ``None`` ends a command."""
    position, end = 0, len(text)
    pieces: list[str] = []  # of the word that is being read; an empty quote is a piece too
    while position < end:
        char = text[position]
        if text.startswith("\\\n", position):
            position += 2
        elif char in " \t\r\n;&|":
            if pieces:
                yield "".join(pieces)
                pieces = []
            if char in "\n;&|":
                yield None
            position += 1
        elif char == "#" and not pieces:
            stop = text.find("\n", position)
            position = end if stop < 0 else stop
        else:
            piece, position = _piece(text, position)
            pieces.append(piece)
    if pieces:
        yield "".join(pieces)


def _piece(text: str, start: int) -> tuple[str, int]:
    """One quoted or plain piece of a word, and the position behind it."""
    char = text[start]
    if char == "'":
        stop = text.find("'", start + 1)
        if stop < 0:
            raise _open_quote(text, start)
        return text[start + 1 : stop].replace("$", "\\$"), stop + 1
    if char == '"':
        return _double_quoted(text, start)
    if text.startswith("$(", start):
        return _substitution(text, start)
    if char == "\\":
        return ("\\$" if text[start + 1 : start + 2] == "$" else text[start + 1 : start + 2]), (
            start + 2
        )
    stop = start + 1
    while stop < len(text) and text[stop] not in " \t\r\n;&|'\"\\$":
        stop += 1
    return text[start:stop], stop


def _double_quoted(text: str, start: int) -> tuple[str, int]:
    pieces: list[str] = []
    position = start + 1
    while position < len(text):
        char = text[position]
        if char == '"':
            return "".join(pieces), position + 1
        if text.startswith("\\\n", position):
            position += 2
        elif char == "\\" and text[position + 1 : position + 2] in ('"', "\\", "`"):
            pieces.append(text[position + 1])
            position += 2
        elif char == "\\" and text[position + 1 : position + 2] == "$":
            pieces.append("\\$")
            position += 2
        elif text.startswith("$(", position):
            piece, position = _substitution(text, position)
            pieces.append(piece)
        else:
            pieces.append(char)
            position += 1
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


def quote(value: str) -> str:
    """``value`` as one word of shell text: variables are looked up, all else is literal."""
    if value and _PLAIN.fullmatch(value):
        return value
    if "$" not in value:
        return shlex.quote(value)
    pieces = []
    position = 0
    for match in _REFERENCE.finditer(value):
        pieces.append(_in_double_quotes(value[position : match.start()]))
        pieces.append(match.group())
        position = match.end()
    pieces.append(_in_double_quotes(value[position:]))
    return '"' + "".join(pieces) + '"'


def _in_double_quotes(literal: str) -> str:
    return re.sub(r'([\\"`$])', r"\\\1", literal.replace("\\$", "$"))


def references(value: str) -> list[str]:
    """Names of the variables that ``value`` looks up."""
    return [match[1] or match[2] for match in _REFERENCE.finditer(value)]


def render_exports(env: Mapping[str, str]) -> list[str]:
    """One ``export`` line per variable.

    Raises:
        InputError: a name that the shell does not take.
    """
    for name in env:
        if not _NAME.fullmatch(name):
            raise InputError("rename it", field="env", found=name, expected="letters, digits and _")
    return [f"export {name}={quote(value)}" for name, value in env.items()]


def render_words(flags: Mapping[str, Typed]) -> list[str]:
    """``--name value ...`` per flag, quoted for the shell; ``False`` and ``None`` are left out."""
    lines = []
    for name, value in flags.items():
        if value is False or value is None:
            continue
        values = [] if value is True else [value] if isinstance(value, str) else value
        lines.append(" ".join([quote(f"--{name}"), *(quote(str(item)) for item in values)]))
    return lines
