"""The pages that list recipes: the index, one page per model, the comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from openrecipes.site import render, words
from openrecipes.site.programs import index_json
from openrecipes.site.scatter import Point, price_and_rate
from openrecipes.site.sidebyside import ROWS, table
from openrecipes.site.sources import slug
from openrecipes.site.summary import Summary

#: More recipes than this are too many for one table; the best per kind of GPU are shown then.
_MOST_COLUMNS = 8


@dataclass(frozen=True)
class ColumnHead:
    """A column of the index."""

    key: str
    label: str
    number: bool = False


COLUMNS = (
    ColumnHead("model", "Model"),
    ColumnHead("gpu", "GPU"),
    ColumnHead("gpus", "GPUs", True),
    ColumnHead("rate", "Tokens/s per GPU", True),
    ColumnHead("usd", "$ / 1M", True),
    ColumnHead("mfu", "MFU", True),
    ColumnHead("measured", "Measured"),
    ColumnHead("status", "Status"),
)


@dataclass(frozen=True)
class IndexRow:
    """A line of the index as text."""

    page: str
    model: str
    layout: str
    gpu: str
    gpus: int
    rate: str
    usd: str
    mfu: str
    measured: str
    status: str


@dataclass(frozen=True)
class Filter:
    """A choice of the index's filter."""

    name: str
    label: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class ModelLink:
    """A model's own page, and what it holds."""

    page: str
    name: str
    told: str


def pages(summaries: Sequence[Summary]) -> Iterable[tuple[str, str]]:
    """Addresses and texts of all pages that list recipes."""
    ordered = sorted(summaries, key=_best_first)
    by_model = _by_model(ordered)
    yield "index.json", index_json(sorted(summaries, key=lambda s: s.path))
    yield "index.html", _index(ordered, by_model)
    yield "compare.html", _compare()
    for address, (name, own) in by_model.items():
        yield address, _model(address, name, own)


def _model(address: str, name: str, own: Sequence[Summary]) -> str:
    shown = own if len(own) <= _MOST_COLUMNS else best_of_each(own)
    return render.page(
        "model.html",
        address,
        "index",
        (),
        name=name,
        table=table(shown),
        count=len(own),
        shown=len(shown),
        filtered="index.html?" + urlencode({"model": name}),
        query="?" + urlencode([("r", s.path) for s in shown[:4]]),
    )


def best_of_each(own: Sequence[Summary]) -> list[Summary]:
    """Of each kind and number of GPUs the first, which is the best, up to a table's width."""
    best: dict[tuple[str, int], Summary] = {}
    for s in own:
        best.setdefault((s.gpu, s.gpus), s)
    return list(best.values())[:_MOST_COLUMNS]


def _best_first(s: Summary) -> tuple[str, bool, float, str]:
    """By model; within a model the cheapest token first, unknown prices by rate after them."""
    usd = s.usd_per_million_tokens
    rate = s.tokens_per_s_per_gpu or 0.0
    return (s.model.lower(), usd is None, -rate if usd is None else usd, s.path)


def _by_model(summaries: Sequence[Summary]) -> dict[str, tuple[str, list[Summary]]]:
    grouped: dict[str, tuple[str, list[Summary]]] = {}
    for s in summaries:
        address = f"models/{slug(s.model)}.html"
        grouped.setdefault(address, (s.model, []))[1].append(s)
    return grouped


def _index(summaries: Sequence[Summary], by_model: dict[str, tuple[str, list[Summary]]]) -> str:
    filters = (
        Filter("model", "Model", _values(s.model for s in summaries)),
        Filter("gpu", "GPU", _values(s.gpu for s in summaries)),
        Filter("gpus", "GPUs", tuple(map(str, sorted({s.gpus for s in summaries})))),
        Filter("status", "Status", _values(s.status for s in summaries)),
    )
    models = [ModelLink(page, name, _told(own)) for page, (name, own) in by_model.items()]
    return render.page(
        "index.html",
        "index.html",
        "index",
        ("index.js",),
        rows=[_row(s) for s in summaries],
        columns=COLUMNS,
        filters=[f for f in filters if len(f.values) > 1],
        scatter=price_and_rate(_points(summaries)),
        models=models,
    )


def _values(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(items), key=str.lower))


def _told(own: Sequence[Summary]) -> str:
    gpus = ", ".join(_values(s.gpu for s in own))
    return f"{words.plural(len(own), 'recipe')} on {gpus}"


def _row(s: Summary) -> IndexRow:
    def known(value: float | None, text: str) -> str:
        return "" if value is None else text

    return IndexRow(
        page=s.page,
        model=s.model,
        layout=s.layout,
        gpu=s.gpu,
        gpus=s.gpus,
        rate=known(s.tokens_per_s_per_gpu, words.number(s.tokens_per_s_per_gpu, 2)),
        usd=known(s.usd_per_million_tokens, words.dollars(s.usd_per_million_tokens)),
        mfu=known(s.mfu, words.percent(s.mfu)),
        measured="" if s.measured is None else words.day(s.measured),
        status=s.status,
    )


def _points(summaries: Sequence[Summary]) -> list[Point]:
    return [
        Point(
            s.usd_per_million_tokens,
            s.tokens_per_s_per_gpu,
            f"{s.model}, {s.gpus} x {s.gpu}: {words.number(s.tokens_per_s_per_gpu, 2)} "
            f"tokens/s per GPU, {words.dollars(s.usd_per_million_tokens)} per 1M tokens",
            s.status,
            s.page,
            f"{s.model} · {s.gpus} x {s.gpu}",
        )
        for s in summaries
    ]


def _compare() -> str:
    return render.page(
        "compare.html",
        "compare.html",
        "compare",
        ("compare.js",),
        specs=[asdict(row) for row in ROWS],
    )
