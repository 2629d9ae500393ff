"""The charts: data in, one SVG out. Each draws whatever it is given: no points, one, not finite, or huge.

Here are the axes and sizes; `charts.svg` has the marks. Series are told apart by colour and by mark (`index`);
everything with a hover text also has it as its accessible title.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

from markupsafe import Markup

from roundelay.reports.axes import Axis, axis
from roundelay.reports.markup import CHARACTER, draw
from roundelay.reports.numbers import short

DARKEST = 0.32
"""Added to a cell's opacity at most: the ink of its count keeps a contrast of 4.5 with every colour, dark or light."""
WIDE, NARROW = 560.0, 330.0
"""Pixels of the two drawings of a chart in a page."""
LINES_HEIGHT = 340.0


@dataclass(frozen=True)
class Point:
    """A point of a line; hollow where the model was given up afterwards."""

    x: float
    y: float
    hover: str
    hollow: bool = False


@dataclass(frozen=True)
class Line:
    """One run of a series, or the mean of all."""

    index: int
    points: tuple[Point, ...]
    band: tuple[tuple[float, float], ...] = ()  # lowest and highest y at every point, shaded
    quiet: bool = False  # thin and without marks: one of several behind their mean
    stands_for: tuple[int, ...] = ()  # the series a legend picks it out with, where it is not `index` alone


@dataclass(frozen=True)
class DotRow:
    """A series in a dot chart: its values and their hover texts, their middle, and an interval where there is one."""

    index: int
    name: str
    note: str  # printed at the right: the value in words
    dots: tuple[tuple[float, str], ...]
    middle: float | None = None
    interval: tuple[float, float] | None = None
    counts: str = ""  # what it rests on, left of the note where there is room


@dataclass(frozen=True)
class ColumnBar:
    """One column: what stands below it, how high it is, what it means."""

    name: str
    value: float
    hover: str
    outstanding: bool = False  # drawn in the second colour: the one to look at


@final
@dataclass(frozen=True)
class ChartAxes:
    """Both axes of a chart of lines.

    Attributes:
        x, y: their titles.
        ceiling: largest value that is drawn.
        from_zero: does the y axis begin at zero?
        x_ticks: the only values that the x axis names; none: round ones.
        reference: ends of a straight line to hold others against, (x, y) each; none without it.
    """

    x: str
    y: str
    ceiling: float = math.inf
    from_zero: bool = False
    x_ticks: Sequence[float] = ()
    reference: Sequence[tuple[float, float]] = ()


def empty_chart(width: float, message: str = "nothing measured yet") -> Markup:
    """Return a chart without data, which says so."""
    return draw("empty", width, message)


def line_chart(lines: Sequence[Line], width: float, label: str, axes: ChartAxes) -> Markup:
    """Return lines over an x axis from zero; the y axis covers what is there and not above its ceiling.

    A point that is not finite breaks its line; what lies above the ceiling is cut off there.
    """
    points = [p for line in lines for p in line.points if _finite(p.x, p.y)]
    if not points:
        return empty_chart(width)
    heights = [p.y for p in points if p.y <= axes.ceiling] or [p.y for p in points]
    bands = [v for line in lines for pair in line.band for v in pair if math.isfinite(v) and v <= axes.ceiling]
    heights += [*bands, *(y for _, y in axes.reference)]
    y = axis(heights, LINES_HEIGHT - 44, 34.0, from_zero=axes.from_zero)
    xs = [*(p.x for p in points), *(x for x, _ in axes.reference)]
    x = axis(xs, y.margin, width - 14, from_zero=True, about=_about(width))
    if axes.x_ticks:
        ticks = _roomy(axes.x_ticks, x.end - x.start)
        x = dataclasses.replace(x, low=0.0, high=max(*xs, *axes.x_ticks), ticks=ticks, label=short)
    size = 3.5 if sum(len(line.points) for line in lines if not line.quiet) <= 60 else 2.6
    above = 0.0 if math.isfinite(axes.ceiling) else 8.0
    return draw("lines", width, LINES_HEIGHT, label, axes, x, y, [_drawn(line, x, y) for line in lines], size, above)


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def _about(width: float) -> int:
    """Return about how many ticks an x axis has room for."""
    return 6 if width > 400 else 4


def _roomy(ticks: Sequence[float], width: float) -> tuple[float, ...]:
    """Return ticks whose labels have room, from the largest down."""
    kept: list[float] = []
    for tick in sorted(set(ticks), reverse=True):
        if not kept or (kept[-1] - tick) / max(ticks) * width > 4 * CHARACTER:
            kept.append(tick)
    return tuple(reversed(kept))


def _drawn(line: Line, x: Axis, y: Axis) -> dict[str, object]:
    """Return a line as the template draws it: strokes and bands, both interrupted where a point is not finite."""
    strokes = _stretches((p.x, p.y) for p in line.points)
    bands = _stretches((p.x, p.y, *pair) for p, pair in zip(line.points, line.band, strict=False))
    upper = [[(x.place(at), y.place(high)) for at, _, _, high in band] for band in bands]
    lower = [[(x.place(at), y.place(low)) for at, _, low, _ in reversed(band)] for band in bands]
    return {
        "index": line.index,
        "picked": " ".join(map(str, line.stands_for or (line.index,))),
        "quiet": line.quiet,
        "bands": [above + below for above, below in zip(upper, lower, strict=True)],
        "path": "".join("M" + "L".join(f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in one) for one in strokes),
        "marks": [p for p in line.points if _finite(p.x, p.y) and not line.quiet],
    }


def _stretches(rows: Iterable[tuple[float, ...]]) -> list[list[tuple[float, ...]]]:
    """Return stretches of neighbours, two at least, whose numbers are all finite."""
    parts = [list(part) for whole, part in groupby(rows, lambda row: _finite(*row)) if whole]
    return [part for part in parts if len(part) > 1]


def dot_chart(
    rows: Sequence[DotRow], width: float, label: str, x_title: str, *, from_zero: bool = True, stems: bool = False
) -> Markup:
    """Return a row per series: name and value above, dots and interval on a common axis below them.

    `stems`: a bar from zero to the middle, for amounts.
    """
    values = [v for row in rows for v in (*(v for v, _ in row.dots), *(row.interval or ())) if math.isfinite(v)]
    if not values:
        return empty_chart(width)
    step = min(104.0, max(46.0, 280 / len(rows)))
    x = axis(values, 10.0, width - 22, from_zero=from_zero, about=_about(width))
    return draw("dots", rows, width, label, x_title, x, step, 12 + step * len(rows), stems)


def column_chart(bars: Sequence[ColumnBar], index: int, label: str, x_title: str, y_title: str) -> Markup:
    """Return columns from zero."""
    width = 340.0
    values = [bar.value for bar in bars if math.isfinite(bar.value)]
    if not values:
        return empty_chart(width)
    y = axis(values, 186.0, 34.0, from_zero=True, about=4)
    slot = (width - 6 - y.margin) / len(bars)
    every = max(1, math.ceil(max(len(bar.name) for bar in bars) * (CHARACTER + 2) / slot))
    return draw("columns", bars, index, width, label, (x_title, y_title), y, y.margin, every)


def heat_map(
    matrix: Sequence[Sequence[float]], names: Sequence[str], index: int, label: str, far: Sequence[str] = ()
) -> Markup:
    """Return a square of cells, darker for more; rows begin, columns answer. `far` names columns that no row has."""
    width = 340.0
    if not names or max((value for row in matrix for value in row), default=0.0) <= 0:
        return empty_chart(width, "no exchanges")
    longest = max(map(len, names))
    left = max(longest * CHARACTER + 14, 44.0)
    cell = min((width - left - 4) / (len(names) + len(far)), 44.0)
    every = max(1, math.ceil(longest * (CHARACTER + 3) / cell))
    return draw("cells", matrix, [*names], [*far], index, width, label, left, cell, every, DARKEST)


# Figures: charts under a title ----------------------------------------------------------------------------------------

Families = Sequence[tuple[str, Sequence[tuple[str, Sequence[int]]]]]
"""A legend: for each family its name, or none, and its members, each with the series that it picks out."""


def figure(
    title: str,
    note: str,
    body: Markup | str = "",
    draws: Callable[[float], Markup] | None = None,
    families: Families = (),
    widths: tuple[float, float] = (WIDE, NARROW),
) -> Markup:
    """Return what `draws` makes of a width, under its title, with a line that says how to read it, and a legend."""
    charts = [draws(width) for width in widths] if draws else ()
    return draw("figure", title, note, body, families, charts, template="parts.html")


def line_figure(title: str, note: str, lines: Sequence[Line], axes: ChartAxes, said: str, families: Families) -> Markup:
    """Return lines under their title; `said` follows it where the chart is said aloud."""
    return figure(title, note, "", lambda width: line_chart(lines, width, f"{title}. {said}", axes), families)


def table(
    caption: str,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    meanings: Sequence[str] = (),
    words: Sequence[int] = (0,),
) -> Markup:
    """Return a table whose columns sort it; those named by `words` are words, the others numbers."""
    return draw("table", caption, titles, rows, meanings, words, template="parts.html")
