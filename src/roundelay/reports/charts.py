"""The charts: data in, one SVG out. Each draws any data: no points, one, not finite, or huge.

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

from roundelay.reports.markup import CHARACTER, draw, render
from roundelay.reports.numbers import short


@dataclass(frozen=True)
class Axis:
    """An axis of a chart: values from `low` to `high`, linear or logarithmic, on the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False
    label: Callable[[float], str] = short

    def place(self, value: float) -> float:
        """Return the pixel of a value; one outside is placed outside, but never so far that a browser would mind."""
        low, high, value = self.low, self.high, _tame(value)
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low / 1e9))
        share = min(5.0, max(-4.0, (value - low) / (high - low)))
        return self.start + share * (self.end - self.start)

    @property
    def margin(self) -> float:
        """Pixels that the labels of this axis need beside a chart."""
        return max((len(self.label(tick)) for tick in self.ticks), default=1) * CHARACTER + 12


def _tame(value: float) -> float:
    """Bring a value within the range that arithmetic on axes can bear: differences neither overflow nor vanish."""
    return 0.0 if abs(value) < 1e-100 else max(-1e100, min(1e100, value))


def axis(values: Sequence[float], start: float, end: float, *, from_zero: bool = False, about: int = 5) -> Axis:
    """Return an axis that shows all (finite) values, ending on round numbers.

    Logarithmic when positive values span more than a factor of 30 and the axis need not begin at zero.
    """
    low, high = _tame(min(values, default=0.0)), _tame(max(values, default=1.0))
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    elif low > 0 and high / low > 30:
        return _log_axis(low, high, start, end)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(high) / 2 or 0.5
        low, high = (min(0.0, low), high + room) if from_zero else (low - room, high + room)
    step = _round_step((high - low) / about)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(step * n for n in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], start, end, ticks, label=lambda value: _tick(value, step))


def _round_step(step: float) -> float:
    """Round `step` up to 1, 2, 2.5, 5 or 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0) if m * power >= step * 0.999)


def _tick(value: float, step: float) -> str:
    """Return the label of a tick, with the digits that all ticks `step` apart need: 1.0, 1.5, 2.0."""
    if max(abs(value), step) >= 10_000 or step < 1e-4:
        return short(value)
    digits = max(0, -math.floor(math.log10(step)) + (1 if f"{step:.1e}".startswith("2.5") else 0))
    return f"{value:.{digits}f}"


def _log_axis(low: float, high: float, start: float, end: float) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = -(-(last - first) // 6)
    marks = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [m * 10.0**n for n in range(first, last + 1, stride) for m in marks]
    inside = tuple(t for t in ticks if low / 3 <= t <= high * 3)
    return Axis(min(low, inside[0]), max(high, inside[-1]), start, end, inside, log=True)


DARKEST = 0.32
"""Most opacity that a cell's count adds: its text keeps a contrast of 4.5 with every colour, dark or light."""
WIDE, NARROW = 560.0, 330.0
"""Pixels of the two drawings of a chart in a page."""
LINES_HEIGHT = 340.0


@dataclass(frozen=True)
class Point:
    """A point of a line in a chart; hollow if the model there was given up afterwards."""

    x: float
    y: float
    hover: str
    hollow: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a chart: one run of a series, or the mean of all."""

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
    counts: str = ""  # the counts it rests on, left of the note where there is room


@dataclass(frozen=True)
class ColumnBar:
    """A column of a chart: the text below, its height and its meaning."""

    name: str
    value: float
    hover: str
    outstanding: bool = False  # drawn in the second colour: the one to look at


@final
@dataclass(frozen=True)
class ChartAxes:
    """Both axes of a chart of lines."""

    # x, y: their titles.
    x: str
    y: str
    ceiling: float = math.inf  # largest value that is drawn
    from_zero: bool = False  # does the y axis begin at zero?
    x_ticks: Sequence[float] = ()  # the only values that the x axis names; none: round ones
    # ends of a straight line to hold others against, (x, y) each; none without it.
    reference: Sequence[tuple[float, float]] = ()


def empty_chart(width: float, message: str = "nothing measured yet") -> Markup:
    """Return a chart without data, which says so."""
    return draw("empty", width, message)


def line_chart(lines: Sequence[Line], width: float, label: str, axes: ChartAxes) -> Markup:
    """Return lines over an x axis from zero; the y axis covers the points up to its ceiling.

    A point that is not finite breaks its line; a line above the ceiling is cut off there.
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
    """Return the approximate number of ticks that an x axis of `width` has room for."""
    return 6 if width > 400 else 4


def _roomy(ticks: Sequence[float], width: float) -> tuple[float, ...]:
    """Return those of `ticks` whose labels have room, chosen from the largest down."""
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
    """Return the runs of at least two successive rows whose numbers are all finite."""
    parts = [list(part) for whole, part in groupby(rows, lambda row: _finite(*row)) if whole]
    return [part for part in parts if len(part) > 1]


def dot_chart(
    rows: Sequence[DotRow], width: float, label: str, x_title: str, *, from_zero: bool = True, stems: bool = False
) -> Markup:
    """Return a chart with a row a series: name and value above, dots and an interval on a common axis below.

    `stems`: a bar from zero to the middle, for amounts.
    """
    values = [v for row in rows for v in (*(v for v, _ in row.dots), *(row.interval or ())) if math.isfinite(v)]
    if not values:
        return empty_chart(width)
    step = min(104.0, max(46.0, 280 / len(rows)))
    x = axis(values, 10.0, width - 22, from_zero=from_zero, about=_about(width))
    return draw("dots", rows, width, label, x_title, x, step, 12 + step * len(rows), stems)


def column_chart(bars: Sequence[ColumnBar], index: int, label: str, x_title: str, y_title: str) -> Markup:
    """Return a chart of columns from zero."""
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
    """Return a chart of a matrix, darker for larger counts; row learners begin, column learners answer. `far` names
    columns without a row."""
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
"""A legend: for each family of series its name, or "", and its members, each with the series it highlights."""


def figure(
    title: str,
    note: str,
    body: Markup | str = "",
    draws: Callable[[float], Markup] | None = None,
    families: Families = (),
    widths: tuple[float, float] = (WIDE, NARROW),
) -> Markup:
    """Return the chart that `draws` makes for a width, under its title, with a line that says how to read it, and a
    legend."""
    charts = [draws(width) for width in widths] if draws else ()
    return draw("figure", title, note, body, families, charts, template="parts.html")


def line_figure(title: str, note: str, lines: Sequence[Line], axes: ChartAxes, said: str, families: Families) -> Markup:
    """Return a chart of lines under its title; for screen readers the title is followed by `said`."""
    return figure(title, note, "", lambda width: line_chart(lines, width, f"{title}. {said}", axes), families)


def table(
    caption: str,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    meanings: Sequence[str] = (),
    words: Sequence[int] = (0,),
) -> Markup:
    """Return a table that can be sorted by its columns; those with an index in `words` are text, the others numbers."""
    return draw("table", caption, titles, rows, meanings, words, template="parts.html")


_Z = 1.96  # standard deviations of a 95 % interval


def reliability_picture(bins: Sequence[tuple[float, int, int]], label: str) -> str:
    """Return an SVG file: the share of right words over confidence, with 95 % intervals (Wilson), beside the diagonal
    on which true confidences lie.

    Args:
        bins: mean confidence, right words and words of each.
        label: its text for a screen reader.
    """
    found = [(confidence, right, words, *_wilson(right, words)) for confidence, right, words in bins]
    return str(render("reliability.svg", bins=found, label=label)) + "\n"


def _wilson(right: int, words: int) -> tuple[float, float]:
    """Return the 95 % interval of the share of `right` among `words` (Wilson 1927, equation 6)."""
    share, z2 = right / words, _Z**2 / words
    middle = (share + z2 / 2) / (1 + z2)
    half = _Z * math.sqrt(share * (1 - share) / words + z2 / (4 * words)) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)
