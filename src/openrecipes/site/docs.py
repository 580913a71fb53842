"""The documentation as part of the site: hand-written pages, and pages made from the tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from markupsafe import Markup
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from openrecipes.files import packaged_folder
from openrecipes.flags.table import ENGINES, Flag, table
from openrecipes.layouts.rules import rules_table
from openrecipes.recipe.lint.relations import relations_table
from openrecipes.recipe.lint.rules import rules_table as lint_table
from openrecipes.recipe.schema import Recipe
from openrecipes.site import markup, render
from openrecipes.site.derive import FORMULAS
from openrecipes.site.sources import slug

#: Hand-written pages in the order in which a newcomer needs them; others follow by name.
ORDER = (
    "getting-started",
    "rows",
    "recipe",
    "train",
    "run",
    "miles",
    "run-record",
    "figures",
    "gate",
    "publish",
    "plan",
    "tune",
    "hardware",
    "site",
)


@dataclass(frozen=True)
class Doc:
    """A page of the documentation."""

    address: str
    title: str
    lead: str
    body: Markup


@cache
def pages() -> tuple[tuple[str, str], ...]:
    """Addresses and texts of all documentation pages, the list of them first."""
    return tuple(_pages())


def _pages() -> Iterator[tuple[str, str]]:
    written = list(_written())
    made = [_figures(), _schema(), _lint_rules(), _layout_rules(), _flags()]
    groups = [("Guides", written), ("Reference", made)]
    yield (
        "docs/index.html",
        render.page("docs.html", "docs/index.html", "docs", (), groups=groups),
    )
    for doc in [*written, *made]:
        yield (
            doc.address,
            render.page("doc.html", doc.address, "docs", ("site.js",), doc=doc),
        )


def folder() -> Path | None:
    """Where the hand-written pages lie: in the installed package, or in a checkout."""
    return packaged_folder("docs")


def _written() -> Iterator[Doc]:
    place = folder()
    if place is None:
        return
    names = {path.stem: path for path in sorted(place.glob("*.md")) if path.stem != "index"}
    ordered = [name for name in ORDER if name in names]
    for name in [*ordered, *(name for name in names if name not in ordered)]:
        yield _guide(name, names[name].read_text(encoding="utf-8"), set(names))


def _guide(name: str, text: str, names: set[str]) -> Doc:
    heading = re.match(r"#\s+(.+)\n+", text)
    title = heading[1].strip() if heading else name.replace("-", " ").capitalize()
    body = text[heading.end() :] if heading else text
    return Doc(f"docs/{slug(name)}.html", title, "", _linked(markup.markdown(body), names))


def _linked(html: Markup, names: set[str]) -> Markup:
    """Links between the files of the folder lead to their pages; other relative ones are text."""

    def follow(match: re.Match[str]) -> str:
        address, text = match[1], match[2]
        if address.startswith(("http://", "https://", "#")):
            return match[0]
        found = re.fullmatch(r"(?:\./)?([\w-]+)\.md(#[\w-]*)?", address)
        if found and found[1] in names:
            return f'<a href="{slug(found[1])}.html{found[2] or ""}">{text}</a>'
        return text

    linked = re.sub(r'<a href="([^"]*)"[^>]*>(.*?)</a>', follow, str(html), flags=re.DOTALL)
    return _anchors(Markup(linked))


def _anchors(html: Markup) -> Markup:
    """Headings get ids made from their text."""
    return Markup(re.sub(r"<h([23])>(.*?)</h\1>", _anchored, str(html)))


def _anchored(match: re.Match[str]) -> str:
    plain = re.sub(r"<[^>]*>|&\w+;", "", match[2])
    return f'<h{match[1]} id="{slug(plain)}">{match[2]}</h{match[1]}>'


def _figures() -> Doc:
    return Doc(
        "docs/reference/figures.html",
        "Figures: formulas, and what fixes each field",
        "The figures of a recipe's page, their formulas, and what fixes each numeric field.",
        _render("_figures.html", formulas=FORMULAS, relations=markup.markdown(relations_table())),
    )


def _lint_rules() -> Doc:
    return Doc(
        "docs/reference/lint-rules.html",
        "Lint rules",
        "The relations that must hold between a recipe's fields; openrecipes lint checks them.",
        _anchors(markup.markdown(lint_table())),
    )


def _layout_rules() -> Doc:
    return Doc(
        "docs/reference/layout-rules.html",
        "Layout rules",
        "What must hold between a layout, its model and its engine. Lint, train, rehearse, plan "
        "and tune check the same rules and print the same names.",
        markup.markdown(rules_table()),
    )


def _flags() -> Doc:
    flags = list(table().values())
    return Doc(
        "docs/reference/flags.html",
        "Flags and their classes",
        f"{len(flags)} arguments in Megatron's names: what each does, what a difference in it "
        "means for the question whether it still is the same training, and which engine honours "
        "it.",
        _render("_flags.html", flags=[_flag(flag) for flag in flags], engines=ENGINES),
    )


def _flag(flag: Flag) -> dict[str, Any]:
    shown = "" if flag.default in (None, [], False, "") else str(flag.default)
    if flag.default is False:
        shown = "off"
    return {
        "name": flag.name,
        "type": flag.type,
        "default": "on" if flag.default is True else shown,
        "kind": flag.class_,
        "effect": flag.effect,
        "reason": flag.reason,
        "support": [flag.support[engine].status for engine in ENGINES],
    }


def _schema() -> Doc:
    return Doc(
        "docs/reference/schema.html",
        "The recipe, field by field",
        "Schema version 1. Unknown keys are errors; a key with null says: not known.",
        _render("_schema.html", blocks=list(_blocks("", Recipe))),
    )


def _blocks(path: str, model: type[BaseModel]) -> Iterator[dict[str, Any]]:
    """The fields of ``model``, then those of the blocks in it, depth first."""
    fields, below = [], []
    for name, info in model.model_fields.items():
        key = info.alias or name
        inner = _model_of(info.annotation)
        fields.append(_field(key, info, inner))
        if inner is not None:
            below.append((f"{path}.{key}" if path else key, inner))
    yield {"path": path or "recipe", "text": model.__doc__ or "", "fields": fields}
    for deeper, inner in below:
        yield from _blocks(deeper, inner)


def _field(key: str, info: FieldInfo, inner: type[BaseModel] | None) -> dict[str, Any]:
    extra = info.json_schema_extra
    unit = extra.get("unit") if isinstance(extra, dict) else None
    example = info.examples[0] if info.examples else None
    return {
        "key": key,
        "required": info.is_required(),
        "text": info.description or "",
        "unit": unit if unit and unit != "1" else "",
        "example": "" if inner is not None or example is None else str(example)[:120],
    }


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The block within an annotation such as ``tuple[Trial, ...] | None``, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, tuple, list) or hasattr(
        annotation, "__metadata__"
    ):
        for part in get_args(annotation):
            found = _model_of(part)
            if found is not None:
                return found
    return None


def _render(template: str, **values: Any) -> Markup:
    return Markup(render.environment().get_template(template).render(**values))
