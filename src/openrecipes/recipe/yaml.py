"""Recipe text to data and back, for text that nobody vouches for.

A recipe needs maps, lists and scalars, and nothing else of YAML: anchors, aliases, tags,
directives and several documents in one file are refused, so that reading one takes time and
memory in proportion to its size, and every reader sees the same data.
"""

from __future__ import annotations

import io
import re
from datetime import date
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, ScalarEvent

from openrecipes.errors import InputError

#: A recipe has about 10 kB; reading more than this much YAML in Python takes seconds.
MAX_BYTES = 256 * 1024
MAX_NODES = 20_000
MAX_DEPTH = 24
#: Longer than any line, so that no text is folded and writing twice changes nothing.
_WIDTH = 1 << 30

#: Control characters, line separators that YAML and Python count differently, and those that
#: change the direction of text, so that what is read is not what is shown.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff\ufffe\uffff]"
)

#: Plain scalars that readers of YAML 1.1 and 1.2 take for different values.
_AMBIGUOUS = re.compile(
    r"(?:y|n|yes|no|on|off)|[-+]?0[0-7_]+|0o[0-7]+|[-+]?\d+(?::[0-5]?\d)+(?:\.\d*)?"
    r"|[-+]?\d[\d_]*_[\d_]*|[-+]?(?:\d+|\d*\.\d+|\d+\.)[eE]\d+|[-+]?\d+[eE][-+]\d+",
    re.IGNORECASE,
)


class _Refused(YAMLError):
    """YAML that a recipe does not need."""

    def __init__(self, found: str, expected: str, line: int) -> None:
        super().__init__(found)
        self.found, self.expected, self.line = found, expected, line


class _PlainComposer(Composer):
    """Composes nodes, refuses what can blow up or differ between readers."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.depth = 0
        self.nodes = 0
        self.ambiguous: list[tuple[int, str]] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose one node, or refuse it."""
        event = self.parser.peek_event()
        line = event.start_mark.line + 1
        self.nodes += 1
        self.depth += 1
        if isinstance(event, AliasEvent) or event.anchor is not None:
            raise _Refused("an anchor or alias (& or *)", "the value written out", line)
        if getattr(event, "tag", None) is not None:
            raise _Refused(f"the tag {event.tag}", "a plain value", line)
        if isinstance(event, ScalarEvent) and event.style is None:
            if event.value == "<<":
                raise _Refused("a merge key (<<)", "the keys written out", line)
            if is_ambiguous(event.value):
                self.ambiguous.append((line, event.value))
        if self.depth > MAX_DEPTH:
            raise _Refused("nesting too deep", f"at most {MAX_DEPTH} levels", line)
        if self.nodes > MAX_NODES:
            raise _Refused("too many values", f"at most {MAX_NODES}", line)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _parser() -> YAML:
    parser = YAML(typ="rt")
    parser.Composer = _PlainComposer
    parser.preserve_quotes = True
    parser.width = _WIDTH
    parser.indent(mapping=2, sequence=2, offset=0)
    parser.representer.add_representer(type(None), _explicit_null)
    return parser


def _explicit_null(representer: Any, value: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def parse(text: str, file: str = "recipe") -> CommentedMap:
    """The map in a recipe's text, with comments and styles kept for ``write``.

    Args:
        text: the document.
        file: its name for messages.

    Raises:
        InputError: not YAML, not a map, or YAML that a recipe does not need.
    """
    return parse_warned(text, file)[0]


def parse_warned(text: str, file: str = "recipe") -> tuple[CommentedMap, list[tuple[int, str]]]:
    """The same, with the plain scalars that YAML 1.1 readers take for another value.

    Returns:
        The map; and line (from 1) and text of each such scalar.
    """
    _check_start(text, file)
    _check_characters(text, file)
    parser = _parser()
    try:
        data = parser.load(text)
    except _Refused as error:
        raise InputError(
            "write it plainly",
            file=f"{file}:{error.line}",
            found=error.found,
            expected=error.expected,
        ) from None
    except DuplicateKeyError as error:
        raise InputError(
            "keep one of the two",
            file=f"{file}:{error.problem_mark.line + 1}",
            found=str(error.problem).removeprefix("found "),
            expected="each key once",
        ) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}" if mark else file
        found = ", ".join(part for part in (error.problem, error.context) if part)
        found = found.removeprefix("found ")
        raise InputError("mend the YAML", file=place, found=found, expected="YAML") from None
    except (YAMLError, ValueError, TypeError, OverflowError, KeyError) as error:
        # Faults of construction: 2026-13-45, an integer of 10,000 digits.
        raise InputError("mend the value", file=file, found=str(error), expected="YAML") from None
    except RecursionError:
        raise InputError("flatten the YAML", file=file, found="nesting too deep") from None
    if not isinstance(data, CommentedMap):
        found = "an empty document" if data is None else type(plain(data)).__name__
        raise InputError("write a recipe", file=file, found=found, expected="a map of fields")
    _check_strings(data, file)
    return data, parser.composer.ambiguous


def is_ambiguous(value: str) -> bool:
    """Whether readers of YAML 1.1 and 1.2 take the unquoted ``value`` for different things."""
    return _AMBIGUOUS.fullmatch(value) is not None


def _check_start(text: str, file: str) -> None:
    if text.startswith("\ufeff"):
        raise InputError(
            "save the file without one",
            file=file,
            found="a byte order mark",
            expected="UTF-8 without a byte order mark",
        )
    first = next((line for line in text.split("\n") if line.strip() and line[0] != "#"), "")
    if first.startswith("%"):
        raise InputError(
            "remove it", file=file, found="a YAML directive (%)", expected="a plain document"
        )


def _check_characters(text: str, file: str) -> None:
    unsafe = _UNSAFE.search(text)
    if unsafe:
        line = text.count("\n", 0, unsafe.start()) + 1
        raise InputError(
            "remove the character",
            file=f"{file}:{line}",
            found=f"U+{ord(unsafe.group()):04X}",
            expected="printable text",
        )


def _check_strings(value: Any, file: str, path: str = "") -> None:
    """Refuse what escapes such as ``"\\0"`` bring in."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_strings(str(key), file, path)
            _check_strings(item, file, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_strings(item, file, f"{path}.{index}")
    elif isinstance(value, str):
        unsafe = _UNSAFE.search(value)
        if unsafe:
            raise InputError(
                "remove the character",
                file=file,
                field=path or None,
                found=f"U+{ord(unsafe.group()):04X}",
                expected="printable text",
            )


def line_of(data: CommentedMap, field: str) -> int | None:
    """The line (from 1) of a field such as ``layout.tp``, or of the nearest block above it."""
    line: int | None = None
    here: Any = data
    for part in field.split("."):
        if isinstance(here, CommentedMap) and part in here:
            line = here.lc.key(part)[0] + 1
            here = here[part]
        elif isinstance(here, CommentedSeq) and part.isdecimal() and int(part) < len(here):
            line = here.lc.item(int(part))[0] + 1
            here = here[int(part)]
        else:
            break
    return line


def write(data: Any) -> str:
    """The text of ``data``; what ``parse`` returned keeps its comments, order and styles."""
    stream = io.StringIO()
    _parser().dump(data, stream)
    return stream.getvalue()


def plain(value: Any) -> Any:
    """``value`` in Python's own types, without comments and styles; no map key is a container."""
    if isinstance(value, dict):
        return {
            key if key is None or isinstance(key, bool) else plain_scalar(key): plain(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return plain_scalar(value)


def plain_scalar(value: Any) -> Any:
    """A scalar of ruamel's as Python's own; what is neither text, number nor date as text."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value if isinstance(value, date) else str(getattr(value, "value", value))
