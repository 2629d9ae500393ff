"""The charts: data in, one SVG out. Each draws whatever it is given: no points, one, not finite, or huge.

Series are told apart by colour and by mark (`index`); everything with a hover text also has it as its accessible title.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from roundelay.reports.numbers import short
from roundelay.reports.svg import (
    CHARACTER,
    Axis,
    axis,
    clip,
    colours,
    element,
    esc,
    left_margin,
    mark,
    svg,
    text,
    x_axis,
    y_axis,
)


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
class Reference:
    """A straight line to hold others against, from `start` to `end`, (x, y) each."""

    start: tuple[float, float]
    end: tuple[float, float]


@dataclass(frozen=True)
class Dot:
    """One value of a row."""

    value: float
    hover: str


@dataclass(frozen=True)
class DotRow:
    """A series in a dot chart: its values, their middle, and an interval where there is one."""

    index: int
    name: str
    note: str  # printed at the right: the value in words
    dots: tuple[Dot, ...]
    middle: float | None = None
    interval: tuple[float, float] | None = None
    counts: str = ""  # what it rests on, left of the note where there is room


def _title(content: str) -> str:
    return element("title", esc(content))


def empty_chart(width: float, message: str) -> str:
    """Return a chart without data, which says so."""
    return svg(width, 120, message, text(clip(message, width - 20), width / 2, 64, class_="unit", anchor="middle"))


DARKEST = 0.32
"""Added to a cell's opacity at most: the ink of its count keeps a contrast of 4.5 with every colour, dark or light."""
LINES_HEIGHT = 340.0
"""Units of the drawing."""


@final
@dataclass(frozen=True)
class ChartAxes:
    """Both axes of a chart of lines.

    Attributes:
        x, y: their titles.
        ceiling: largest value that is drawn.
        from_zero: does the y axis begin at zero?
        x_ticks: the only values that the x axis names; none: round ones.
    """

    x: str
    y: str
    ceiling: float = math.inf
    from_zero: bool = False
    x_ticks: Sequence[float] = ()


def line_chart(
    lines: Sequence[Line],
    width: float,
    label: str,
    axes: ChartAxes,
    reference: Reference | None = None,
) -> str:
    """Return lines over an x axis from zero; the y axis covers what is there and not above its ceiling.

    A point that is not finite breaks its line; what lies above the ceiling is cut off there.
    """
    ceiling, height = axes.ceiling, LINES_HEIGHT
    points = [p for line in lines for p in line.points if math.isfinite(p.x) and math.isfinite(p.y)]
    if not points:
        return empty_chart(width, "nothing measured yet")
    top, bottom = 34.0, height - 44.0
    heights = [p.y for p in points if p.y <= ceiling] or [p.y for p in points]
    heights += [v for line in lines for pair in line.band for v in pair if math.isfinite(v) and v <= ceiling]
    heights += [reference.start[1], reference.end[1]] if reference else []
    y = axis(heights, bottom, top, from_zero=axes.from_zero)
    left, right = left_margin(y), width - 14.0
    xs = [p.x for p in points] + ([reference.start[0], reference.end[0]] if reference else [])
    x = axis(xs, left, right, from_zero=True, about=6 if width > 400 else 4)
    if axes.x_ticks:
        ticks = _roomy(axes.x_ticks, left, right)
        x = dataclasses.replace(x, low=0.0, high=max(*xs, *axes.x_ticks), ticks=ticks, label=short)
    size = 3.5 if sum(len(line.points) for line in lines if not line.quiet) <= 60 else 2.6
    drawn = [_band(line, x, y) for line in lines] + [_reference(reference, x, y)]
    drawn += [_line(line, x, y, size) for line in sorted(lines, key=lambda line: not line.quiet)]
    # A viewport of its own cuts off what is above the ceiling, and leaves room for marks that sit on other edges.
    above = 0.0 if math.isfinite(ceiling) else 8.0
    box = (left - 10, top - above, right - left + 20, bottom - top + 10 + above)
    window = element(
        "svg", *drawn, x=box[0], y=box[1], width=box[2], height=box[3], viewBox=" ".join(f"{v:.2f}" for v in box)
    )
    return svg(width, height, label, y_axis(y, left, right, axes.y), x_axis(x, bottom, axes.x), window)


def _roomy(ticks: Sequence[float], left: float, right: float) -> tuple[float, ...]:
    """Return ticks whose labels have room, from the largest down."""
    kept: list[float] = []
    for tick in sorted(set(ticks), reverse=True):
        if not kept or (kept[-1] - tick) / max(ticks) * (right - left) > 4 * CHARACTER:
            kept.append(tick)
    return tuple(reversed(kept))


def _reference(line: Reference | None, x: Axis, y: Axis) -> str:
    if line is None:
        return ""
    (x1, y1), (x2, y2) = ((x.place(a), y.place(b)) for a, b in (line.start, line.end))
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="reference")


def _group(line: Line) -> dict[str, str]:
    """Return class and legend names of what belongs to a series."""
    picked = " ".join(map(str, line.stands_for or (line.index,)))
    return {"class_": f"series {colours(line.index)}", "data_s": picked}


def _band(line: Line, x: Axis, y: Axis) -> str:
    """Return the area between lowest and highest, interrupted where the line is."""
    parts: list[list[tuple[float, float, float]]] = [[]]
    for point, (low, high) in zip(line.points, line.band, strict=False):
        if all(map(math.isfinite, (point.x, point.y, low, high))):
            parts[-1].append((x.place(point.x), y.place(low), y.place(high)))
        elif parts[-1]:
            parts.append([])
    shapes = [
        " ".join(
            f"{px:.1f},{py:.1f}"
            for px, py in [(at, high) for at, _, high in part] + [(at, low) for at, low, _ in part[::-1]]
        )
        for part in parts
        if len(part) > 1
    ]
    if not shapes:
        return ""
    return element("g", *(element("polygon", points=shape, class_="band") for shape in shapes), **_group(line))


def _line(line: Line, x: Axis, y: Axis, size: float) -> str:
    kept = [p if math.isfinite(p.x) and math.isfinite(p.y) else None for p in line.points]
    kind = "mark" if size > 3 else "mark small"
    marks = [
        element(
            "g",
            _title(p.hover),
            element("circle", cx=x.place(p.x), cy=y.place(p.y), r=10.0, class_="target"),
            mark(line.index, x.place(p.x), y.place(p.y), size, f"{kind} hollow" if p.hollow else kind),
        )
        for p in kept
        if p and not line.quiet
    ]
    path = ""
    for a, b, lifted in _steps(kept):
        path += f"M{x.place(a.x):.1f},{y.place(a.y):.1f}" if lifted else ""
        path += f"L{x.place(b.x):.1f},{y.place(b.y):.1f}"
    stroke = element("path", d=path, class_="line quiet" if line.quiet else "line") if path else ""
    return element("g", stroke, *marks, **_group(line))


def _steps(points: Sequence[Point | None]) -> list[tuple[Point, Point, bool]]:
    """Return pairs of neighbours to join, and whether the pen must first be moved."""
    steps: list[tuple[Point, Point, bool]] = []
    lifted = True
    for a, b in pairwise(points):
        if a and b:
            steps.append((a, b, lifted))
        lifted = not (a and b)
    return steps


def dot_chart(
    rows: Sequence[DotRow], width: float, label: str, x_title: str, *, from_zero: bool = True, stems: bool = False
) -> str:
    """Return a row per series: name and value above, dots and interval on a common axis below them.

    `stems`: a bar from zero to the middle, for amounts.
    """
    values = [v for row in rows for v in (*(d.value for d in row.dots), *(row.interval or ())) if math.isfinite(v)]
    if not values:
        return empty_chart(width, "nothing measured yet")
    step, top = min(104.0, max(46.0, 280 / len(rows))), 8.0
    bottom = top + step * len(rows) + 4
    x = axis(values, 10.0, width - 22.0, from_zero=from_zero, about=6 if width > 400 else 4)
    grid = [element("line", x1=x.place(t), x2=x.place(t), y1=top, y2=bottom, class_="grid") for t in x.ticks]
    first = top + (step - 46) / 2
    drawn = [_dot_row(row, first + step * place, width, x, stems=stems) for place, row in enumerate(rows)]
    return svg(width, bottom + 44, label, *grid, x_axis(x, bottom, x_title), *drawn)


def _dot_row(row: DotRow, top: float, width: float, x: Axis, *, stems: bool) -> str:
    y, place = top + 34, x.place
    free = width - 10 - (CHARACTER + 1.5) * len(row.note) - 10  # the note is bold, its letters wider
    parts = [text(row.note, width - 10, top + 17, class_="value", anchor="end")]
    if width > 400 and row.counts:
        parts.append(text(row.counts, free, top + 17, class_="counts", anchor="end"))
        free -= CHARACTER * len(row.counts) + 14
    parts.append(element("g", _title(row.name), text(clip(row.name, 0.9 * (free - 10)), 10, top + 17, class_="name")))
    if row.interval and all(map(math.isfinite, row.interval)):
        low, high = map(place, row.interval)
        parts.append(element("line", x1=low, x2=high, y1=y, y2=y, class_="whisker"))
        parts += [element("line", x1=end, x2=end, y1=y - 4, y2=y + 4, class_="whisker") for end in (low, high)]
    if stems and row.middle is not None and math.isfinite(row.middle):
        parts.append(element("line", x1=place(0.0), x2=place(row.middle), y1=y, y2=y, class_="stem"))
    if row.middle is not None and math.isfinite(row.middle) and len(row.dots) > 1:
        at = place(row.middle)
        parts.append(element("line", x1=at, x2=at, y1=y - 9, y2=y + 9, class_="middle"))
    for dot in row.dots:
        if math.isfinite(dot.value):
            at = place(dot.value)
            target = element("circle", cx=at, cy=y, r=11.0, class_="target")
            parts.append(element("g", _title(dot.hover), target, mark(row.index, at, y, 5.0)))
    return element("g", *parts, class_=f"series row {colours(row.index)}", data_s=row.index)


@dataclass(frozen=True)
class ColumnBar:
    """One column: what stands below it, how high it is, what it means."""

    name: str
    value: float
    hover: str
    outstanding: bool = False  # drawn in the second colour: the one to look at


def column_chart(
    bars: Sequence[ColumnBar], index: int, label: str, x_title: str, y_title: str, *, width: float = 340
) -> str:
    """Return columns from zero."""
    values = [bar.value for bar in bars if math.isfinite(bar.value)]
    if not values:
        return empty_chart(width, "nothing measured yet")
    height, top, bottom = 230.0, 34.0, 186.0
    y = axis(values, bottom, top, from_zero=True, about=4)
    left, right = left_margin(y), width - 6.0
    slot = (right - left) / len(bars)
    wide = min(slot * 0.72 if slot > 4 else slot, 46.0)
    every = max(1, math.ceil(max(len(bar.name) for bar in bars) * (CHARACTER + 2) / slot))
    drawn = []
    for place, bar in enumerate(bars):
        middle = left + slot * (place + 0.5)
        if place % every == 0:
            drawn.append(text(bar.name, middle, bottom + 18, anchor="middle"))
        if math.isfinite(bar.value):
            high = y.place(bar.value)
            drawn.append(
                element(
                    "g",
                    _title(bar.hover),
                    element("rect", x=left + slot * place, y=top, width=slot, height=bottom - top, class_="target"),
                    element(
                        "rect",
                        x=middle - wide / 2,
                        y=high,
                        width=wide,
                        height=max(bottom - high, 0.0),
                        class_="bar low" if bar.outstanding else "bar",
                    ),
                )
            )
    floor = element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis")
    unit = text(x_title, right, bottom + 36, class_="unit", anchor="end")
    return svg(
        width, height, label, y_axis(y, left, right, y_title), *drawn, floor, unit, class_=f"chart {colours(index)}"
    )


def heat_map(
    matrix: Sequence[Sequence[float]],
    names: Sequence[str],
    index: int,
    label: str,
    *,
    columns: Sequence[str] = (),
    width: float = 340,
) -> str:
    """Return a square of cells, darker for more; rows begin, columns answer. Counts are printed where they fit.

    `columns` names the columns where they are not the same as the rows; a long name among them stands a line above.
    """
    columns = columns or names
    most = max((value for row in matrix for value in row), default=0.0)
    if not names or most <= 0:
        return empty_chart(width, "no exchanges")
    top, left = 44.0, max(max(map(len, names)) * CHARACTER + 14, 44.0)
    cell = min((width - left - 4) / len(columns), 44.0)
    every = max(1, math.ceil(max(map(len, names)) * (CHARACTER + 3) / cell))
    parts = [
        text("with learner" if len(columns) > 2 or columns == names else "with", left, 14, class_="unit"),
        text("began", left - 8, top - 10, class_="unit", anchor="end"),
    ]
    for j, name in enumerate(columns):
        if j >= len(names) or name != names[j]:
            parts.append(text(name, left + cell * (j + 1), 14, anchor="end"))
        elif j % every == 0:
            parts.append(text(name, left + cell * (j + 0.5), top - 10, anchor="middle"))
    for i, name in enumerate(names):
        if i % max(1, math.ceil(14 / cell)) == 0:
            parts.append(text(name, left - 8, top + cell * (i + 0.5) + 4, anchor="end"))
        for j, other in enumerate(columns):
            value = matrix[i][j]
            share = value / most
            shade = {"class_": "cell", "fill_opacity": 0.06 + DARKEST * share} if value else {"class_": "cell none"}
            x, y = left + cell * j + 0.5, top + cell * i + 0.5
            box = element("rect", x=x, y=y, width=cell - 1, height=cell - 1, **shade)
            written = short(value)
            fits = value and len(written) * CHARACTER < cell - 2 and cell >= 16
            count = (
                text(
                    written,
                    left + cell * (j + 0.5),
                    top + cell * (i + 0.5) + 4,
                    anchor="middle",
                    class_="off",
                )
                if fits
                else ""
            )
            parts.append(element("g", _title(f"{name} began {value:,.0f} exchanges with {other}"), box, count))
    return svg(width, top + cell * len(names) + 6, label, *parts, class_=f"chart {colours(index)}")
