"""Wrong usage, told as every other wrong input is: field, found, expected, what to do."""

from __future__ import annotations

import re

from typer.exceptions import TyperException

from openrecipes.errors import InputError

#: The parser's own words for a bad value.
_SHOULD_BE = re.compile(r"Input should be (?P<expected>.+?)(?:, unable to .+)?", re.DOTALL)
_QUOTED = re.compile(r"'(?P<name>.*?)'", re.DOTALL)


def usage_error(error: TyperException) -> InputError:
    """What the parser found wrong with the command line, as an InputError."""
    context = getattr(error, "ctx", None)
    action = f"see `{context.command_path if context else 'openrecipes'} --help`"
    text = error.format_message().rstrip(".")
    field = _field(error)
    option = getattr(error, "option_name", None)
    if option is not None:
        near = ", ".join(getattr(error, "possibilities", None) or [])
        return InputError(
            action, field=option, found=text, expected=f"perhaps {near}" if near else None
        )
    if type(error).__name__ == "MissingParameter":
        return InputError(action, field=field, found="nothing", expected="a value")
    if field is None:
        return InputError(action, found=text)
    message = str(getattr(error, "message", text)).rstrip(".")
    told = _SHOULD_BE.fullmatch(message)
    if told is None:
        return InputError(action, field=field, found=message)
    return InputError(action, field=field, found=_given(error), expected=told["expected"])


def _given(error: TyperException) -> object:
    """The value as it was typed, where the parser kept it."""
    told = getattr(error.__cause__ or error.__context__, "errors", None)  # pydantic's
    faults = told() if callable(told) else []
    return faults[0]["input"] if faults else "another value"


def _field(error: TyperException) -> str | None:
    """The option or argument at fault, as it is written on the command line."""
    parameter = getattr(error, "param", None)
    if parameter is not None:
        written = [name for name in parameter.opts if name.startswith("-")]
        return max(written, key=len) if written else str(parameter.name).upper()
    hint = getattr(error, "param_hint", None)
    named = _QUOTED.search(hint) if isinstance(hint, str) else None
    return named["name"] if named else hint if isinstance(hint, str) else None
