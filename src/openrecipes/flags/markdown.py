"""The flags that an engine takes, as a Markdown table for the documentation."""

from __future__ import annotations

import sys
from pathlib import Path

from openrecipes.flags.table import Flag, Support, Value, table

BEGIN, END = "<!-- flags: begin -->", "<!-- flags: end -->"


def flag_table(engine: str) -> str:
    """One row per flag that ``engine`` looks at: name, default, what it does, its class."""
    rows = ["| Flag | Default | What it does | Class |", "|---|---|---|---|"]
    rows += [
        f"| `--{flag.name}` | {_default(flag.support[engine].default)} "
        f"| {_effect(flag, flag.support[engine])} | {flag.class_} |"
        for flag in table().values()
        if flag.support[engine].status in ("honoured", "mapped")
    ]
    return "\n".join(rows)


def restricted_table(engine: str) -> str:
    """One row per flag of which ``engine`` takes some values only, or none but the default."""
    rows = ["| Flag | Values taken | Why |", "|---|---|---|"]
    rows += [
        f"| `--{flag.name}` | {_taken(flag.support[engine])} "
        f"| {flag.support[engine].note or 'The engine does not have it.'} |"
        for flag in table().values()
        if flag.support[engine].status == "refused"
    ]
    return "\n".join(rows)


def fill(text: str, engine: str = "native") -> str:
    """``text`` with what stands between the two markers replaced by both tables."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = [
        "### Flags that the engine takes",
        flag_table(engine),
        "### Flags of which it takes some values only",
        restricted_table(engine),
    ]
    return "\n\n".join([before + BEGIN, *tables, END + after])


def _effect(flag: Flag, support: Support) -> str:
    choices = [f"`{choice}`" for choice in flag.choices if support.takes(choice)]
    limits = [" or ".join(choices)] if choices else []
    notes = [support.note] if support.note else []
    more = "; ".join([*limits, *notes])
    return flag.effect + (f" ({more})" if more else "")


def _default(value: Value) -> str:
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`"


def _taken(support: Support) -> str:
    allowed = [_default(value) for value in support.allows or ()]
    if not allowed and support.default not in (None, False, []):
        allowed = [_default(support.default)]
    return ", ".join(allowed) or "absent"


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(fill(document.read_text(encoding="utf-8")), encoding="utf-8")
