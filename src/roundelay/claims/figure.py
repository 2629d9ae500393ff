"""The figure of a claim: lines over a few values of a key, as an SVG file that stands alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from roundelay.claims.claim import Claim, Figure
from roundelay.claims.evidence import Evidence
from roundelay.claims.rule import Measured, measured
from roundelay.reports.svg import Axis, axis, colours, element, esc, left_margin, mark, text, x_axis, y_axis

WIDTH, HEIGHT, ROW = 640.0, 340.0, 20.0
TOP = 34.0
STYLE = """
svg { font: 12px system-ui, sans-serif; background: #fff }
text { fill: #444 } .unit { fill: #666 } .axis { stroke: #999 } .grid { stroke: #e3e3e3 }
.line { fill: none; stroke: currentColor; stroke-width: 1.6 } .mark { fill: currentColor }
.spread { stroke: currentColor; stroke-width: 1.2; opacity: 0.6 }
.c0 { color: #1f77b4 } .c1 { color: #d95f02 } .c2 { color: #2a9d4e } .c3 { color: #c0392b }
.c4 { color: #7b52ab } .c5 { color: #8c6239 } .c6 { color: #c2187a } .c7 { color: #4d4d4d }
.d1 .line { stroke-dasharray: 6 3 } .d2 .line { stroke-dasharray: 2 3 } .d3 .line { stroke-dasharray: 8 3 2 3 }
"""


@dataclass(frozen=True)
class _Drawn:
    """A line: its name, and what was measured at each value of x."""

    name: str
    points: tuple[tuple[object, Measured], ...]


def draw(claim: Claim, evidence: Evidence) -> str:
    """The SVG of a claim's figure; empty where it has none."""
    if claim.figure is None:
        return ""
    figure = claim.figure
    lines, xs = _lines(figure, evidence)
    values = [v for line in lines for _, m in line.points for v in (m.mean, *m.values) if isfinite(v)]
    bottom = HEIGHT - 44.0
    y = axis(values, bottom, TOP)
    left = left_margin(y) + 4
    x = Axis(
        0, max(1, len(xs) - 1), left + 20, WIDTH - 24, tuple(range(len(xs))), label=lambda place: f"{xs[round(place)]}"
    )
    drawn = [_line(index, line, xs, x, y) for index, line in enumerate(lines)]
    legend = [_legend(index, line.name, HEIGHT + 8 + ROW * index) for index, line in enumerate(lines) if line.name]
    what = figure.title or f"{figure.y} by {figure.x}"
    height = HEIGHT + 8 + ROW * len(legend)
    content = (y_axis(y, left, WIDTH - 14, what), x_axis(x, bottom, figure.x), *drawn, *legend)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" '
        f'aria-label="{esc(f"{claim.title}: {what}")}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(content)}</svg>\n'
    )


def _lines(figure: Figure, evidence: Evidence) -> tuple[list[_Drawn], list[object]]:
    """The lines, and the values of x in order."""
    found = measured(evidence.rows, evidence.keys, figure.y, figure.rows, figure.over, figure.same)
    groups: dict[str, list[tuple[object, Measured]]] = {}
    for one in found:
        keys = dict(one.configuration)
        if figure.x in keys:
            name = ", ".join(_word(key, keys[key]) for key in figure.lines if key in keys)
            groups.setdefault(name, []).append((keys[figure.x], one))
    xs = list(dict.fromkeys(x for points in groups.values() for x, _ in points))
    if all(isinstance(x, int | float) for x in xs):
        xs.sort(key=float)  # type: ignore[arg-type]
    return [_Drawn(name, tuple(points)) for name, points in groups.items()], xs


def _word(key: str, value: object) -> str:
    return f"{value} learners" if key == "learners" else str(value) if isinstance(value, str) else f"{key} {value}"


def _line(index: int, line: _Drawn, xs: Sequence[object], x: Axis, y: Axis) -> str:
    """Means joined, with a stroke from the lowest seed to the highest; a run that diverged stands at the upper edge."""
    parts, path = [], ""
    for value, one in sorted(line.points, key=lambda point: xs.index(point[0])):
        px = x.place(xs.index(value))
        ends = [v for v in one.values if isfinite(v)]
        py = y.place(one.mean) if isfinite(one.mean) else TOP - 6
        path += f"{'L' if path else 'M'}{px:.1f},{py:.1f}"
        if len(ends) > 1:
            parts.append(element("line", x1=px, x2=px, y1=y.place(min(ends)), y2=y.place(max(ends)), class_="spread"))
        parts.append(mark(index, px, py, 3.5))
    return element("g", element("path", d=path, class_="line"), *parts, class_=colours(index))


def _legend(index: int, name: str, y: float) -> str:
    line = element("path", d=f"M14,{y:.1f}L42,{y:.1f}", class_="line")
    return element("g", line, mark(index, 28.0, y, 3.5), text(name, 50.0, y + 4), class_=colours(index))
