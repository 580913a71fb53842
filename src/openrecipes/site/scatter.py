"""Price against rate of many recipes: dots that are links, or clouds where there are too many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from openrecipes.site import words
from openrecipes.site.scales import Scale, Tick, log_ticks
from openrecipes.site.shapes import Chart, Dot

#: More points than this in a scatter would write their names over each other.
MOST_NAMES = 12


@dataclass(frozen=True)
class Point:
    """A recipe in the scatter: what it costs, how fast it is."""

    usd: float | None
    rate: float | None
    title: str
    kind: str = ""
    link: str | None = None
    name: str = ""


def price_and_rate(points: Sequence[Point], most_links: int = 200) -> Chart | None:
    """USD per million tokens against tokens/s per GPU, both logarithmic.

    Up to ``most_links`` points are links with a tooltip; more are drawn as clouds by kind, so that
    a thousand weigh a few kilobytes.
    """
    known = [
        (p, p.usd, p.rate)
        for p in points
        if p.usd is not None and p.rate is not None and p.usd > 0 and p.rate > 0
    ]
    if len(known) < 2:
        return None
    usd = [u for _, u, _ in known]
    rate = [r for _, _, r in known]
    x = Scale(min(rate) / 1.3, max(rate) * 1.3, log=True)
    y = Scale(min(usd) / 1.3, max(usd) * 1.3, flip=True, log=True)
    clouds: dict[str, list[str]] = {}
    if len(known) > most_links:
        for p, u, r in known:
            clouds.setdefault(p.kind, []).append(f"M{x(r):g} {y(u):g}h0")
    return Chart(
        title="Price against rate",
        summary=f"Price against rate of {words.plural(len(known), 'recipe')}; "
        "down and to the right is better. Both axes are logarithmic.",
        x_label="tokens/s per GPU",
        y_label="$ per 1M tokens",
        x_ticks=tuple(Tick(x(v), words.significant(v, 1)) for v in log_ticks(x.low, x.high)),
        y_ticks=tuple(Tick(y(v), words.dollars(v)) for v in log_ticks(y.low, y.high)),
        dots=() if clouds else tuple(Dot(x(r), y(u), p.title, p.kind, p.link) for p, u, r in known),
        clouds=tuple((kind, "".join(path)) for kind, path in clouds.items()),
        keys=tuple((f"dot-{kind}", kind) for kind in sorted({p.kind for p, _, _ in known})),
    )


def _named(dots: list[Dot]) -> tuple[Dot, ...]:
    """``dots`` without the names that would lie over another's, without any where they are many."""
    kept: list[Dot] = []
    for dot in dots:
        near = any(abs(o.x - dot.x) < 20 and abs(o.y - dot.y) < 6 for o in kept if o.name)
        crowded = near or len(dots) > MOST_NAMES
        kept.append(replace(dot, name="") if crowded else dot)
    return tuple(kept)
