"""What pictures are made of: bars, dots, lines and bands in percent of the plot.

Templates turn them into SVG. In percent of the plot's width and height a picture fits a phone and a
wide screen alike while its text keeps its size. y counts downwards, as in SVG.
"""

from __future__ import annotations

from dataclasses import dataclass

from openrecipes.site.scales import Tick


@dataclass(frozen=True)
class Bar:
    """A bar from the base line up; ``cut`` when it is taller than the picture."""

    x: float
    y: float
    width: float
    height: float
    title: str
    kind: str = ""
    cut: bool = False


@dataclass(frozen=True)
class Dot:
    """A point with its tooltip, and a link where it leads somewhere."""

    x: float
    y: float
    title: str
    kind: str = ""
    link: str | None = None
    name: str = ""


@dataclass(frozen=True)
class Line:
    """A polyline in segments (gaps between them), each an SVG ``points`` string."""

    kind: str
    label: str
    segments: tuple[str, ...]
    dots: tuple[Dot, ...] = ()


@dataclass(frozen=True)
class Band:
    """A shaded span along x or y, in percent."""

    start: float
    size: float


@dataclass(frozen=True)
class Chart:
    """One plot: axes and what lies in it."""

    title: str
    summary: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    bars: tuple[Bar, ...] = ()
    lines: tuple[Line, ...] = ()
    dots: tuple[Dot, ...] = ()
    x_band: Band | None = None
    y_band: Band | None = None
    rule: float | None = None
    keys: tuple[tuple[str, str], ...] = ()
    clouds: tuple[tuple[str, str], ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    table_head: tuple[str, ...] = ()
