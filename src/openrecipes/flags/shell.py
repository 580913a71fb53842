"""Shell text to flags and back, without ever running it.

Reads launch scripts as people write them: exports, quotes, line continuations, comments,
``"${MODEL_ARGS[@]}"``, ``$NAME``. In values ``$NAME`` stands for the variable and ``\\$`` for a
dollar sign; nothing else of the shell is special in them. Command substitutions are kept as text.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from openrecipes.errors import InputError
from openrecipes.flags.words import ACTIVE, OPERATORS, Word, commands, shown

#: A value as typed: text, ``True`` for a switch, a list for several.
Typed = str | bool | list[str]

_EXPANSION = re.compile(r"\$\{?[A-Za-z_]\w*\[[@*]\]\}?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"(?<!\\)\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,+@%^-]+")
_REDIRECTION = re.compile(rf"\d*(?:{ACTIVE}&)?(?:{ACTIVE}[<>])+(?:{ACTIVE}[&|])?")


@dataclass(frozen=True)
class Outline:
    """A launch script statement by statement; words are as ``Word.exact`` gives them.

    Args:
        exports: exported assignments, in order.
        others: every other statement before the training command, in order.
        program: the training command's words that are no flag: assignments before it, its
            program, and words behind the program that no flag takes.
        flags: its flags in order, each with its values.
        expansions: arrays that it takes in.
        behind: redirections of it, and every statement behind it.
    """

    exports: tuple[str, ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    program: tuple[str, ...] = ()
    flags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    expansions: tuple[str, ...] = ()
    behind: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Script:
    """What a launch script says.

    Args:
        exports: exported variables, and those put before the training command, in order.
        program: the words of the training command before its first flag.
        flags: its flags in order, each with its values; a doubled flag stands twice.
        expansions: arrays that the command takes in, such as ``${MODEL_ARGS[@]}``.
        assignments: shell variables that are not exported.
        outline: every statement, to compare two scripts by what a shell would do.
    """

    exports: dict[str, str] = field(default_factory=dict)
    program: list[str] = field(default_factory=list)
    flags: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    expansions: list[str] = field(default_factory=list)
    assignments: dict[str, str] = field(default_factory=dict)
    outline: Outline = field(default_factory=Outline)

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
    statements = list(commands(text))
    at = max(range(len(statements)), key=lambda i: _count(statements[i]), default=-1)
    if at < 0 or not _count(statements[at]):
        raise InputError(
            "give a script with the training command", found="no command with a --flag"
        )
    exports: list[Word] = []
    others: list[list[Word]] = []
    for words in statements[:at]:
        if words[0].value == "export" and _are_assignments(words[1:]):
            exports += words[1:]
        else:
            others.append(words)
    command, elsewhere = _without_redirections(statements[at])
    prefix = 0
    while _ASSIGNMENT.fullmatch(command[prefix].value):
        prefix += 1
    before, command = command[:prefix], command[prefix:]
    start = _program_end([word.value for word in command])
    flags, expansions, strays = _group(command[start:])
    behind = [[word] for word in elsewhere] + statements[at + 1 :]
    outline = Outline(
        exports=_exact(exports),
        others=tuple(map(_exact, others)),
        program=_exact([*before, *command[:start], *strays]),
        flags=tuple((name.exact, _exact(values)) for name, values in flags),
        expansions=_exact(expansions),
        behind=tuple(map(_exact, behind)),
    )
    return Script(
        exports=_assigned([*exports, *before]),
        program=[word.value for word in command[:start]],
        flags=[(name.value, tuple(word.value for word in values)) for name, values in flags],
        expansions=[word.value for word in expansions],
        assignments=_assigned([w for words in others if _are_assignments(words) for w in words]),
        outline=outline,
    )


def _count(words: list[Word]) -> int:
    return sum(word.value.startswith("--") and len(word.value) > 2 for word in words)


def _exact(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.exact for word in words)


def _are_assignments(words: list[Word]) -> bool:
    return bool(words) and all(_ASSIGNMENT.fullmatch(word.value) for word in words)


def _assigned(words: list[Word]) -> dict[str, str]:
    found = (_ASSIGNMENT.fullmatch(word.value) for word in words)
    return {match[1]: match[2] for match in found if match}


def _without_redirections(words: list[Word]) -> tuple[list[Word], list[Word]]:
    """A command's own words; and those that send its input or output elsewhere, or end it."""
    kept: list[Word] = []
    sent: list[Word] = []
    target = False
    for word in words:
        found = _REDIRECTION.match(word.exact)
        operator = ACTIVE in word.exact and shown(word.exact) in OPERATORS
        if target or found or operator:
            sent.append(word)
        else:
            kept.append(word)
        target = found is not None and found.end() == len(word.exact)
    return kept, sent


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


def _group(
    words: list[Word],
) -> tuple[list[tuple[Word, list[Word]]], list[Word], list[Word]]:
    """Flags with their values, arrays, and the words before the first flag."""
    flags: list[tuple[Word, list[Word]]] = []
    expansions: list[Word] = []
    strays: list[Word] = []
    for word in words:
        value = word.value
        if _EXPANSION.fullmatch(value):
            expansions.append(word)
        elif value.startswith("--") and len(value) > 2:
            name, attached = word.part(2, None).partition("=")
            flags.append((name, [] if attached is None else [attached]))
        elif flags:
            flags[-1][1].append(word)
        else:
            strays.append(word)
    return flags, expansions, strays


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
