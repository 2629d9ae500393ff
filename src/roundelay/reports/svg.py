"""Elements of charts: escaped SVG elements and axes. SVG coordinates are in pixels, y downwards."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roundelay.reports.numbers import short

CHARACTER = 6.7  # width of an average character of 12-pixel system sans-serif; labels are placed, not measured


def esc(text: object) -> str:
    """Return text as HTML or SVG content or attribute. What no page may hold (control characters, surrogates) is
    replaced."""
    clean = "".join(c if c in "\t\n" or (c >= " " and not "\x7f" <= c <= "\x9f") else "\ufffd" for c in str(text))
    return html.escape(clean.encode("utf-8", "replace").decode(), quote=True)


def element(tag: str, *content: str, **attributes: object) -> str:
    """Return `<tag ...>content</tag>`. Content is markup already; attributes are escaped, `class_` is `class`."""
    text = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{tag}{text}>{''.join(content)}</{tag}>"


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else esc(value)


def text(content: str, x: float, y: float, class_: str = "", anchor: str = "start") -> str:
    """Return a line of text; `y` is its baseline."""
    return element("text", esc(content), x=x, y=y, class_=class_, text_anchor=anchor)


def clip(content: str, width: float) -> str:
    """Return text cut to about `width` pixels."""
    fits = max(1, int(width / CHARACTER))
    return content if len(content) <= fits else content[: fits - 1] + "…"


def svg(width: float, height: float, label: str, *content: str, class_: str = "chart") -> str:
    """Return a picture that scales with its column; `label` is what a screen reader says instead of it."""
    return element(
        "svg", *content, class_=class_, viewBox=f"0 0 {width:.0f} {height:.0f}", role="img", aria_label=label
    )


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, linear or logarithmic, placed on the pixels from `start` to `end`."""

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


def _tame(value: float) -> float:
    """Bring a value within what arithmetic on axes can bear: differences neither overflow nor vanish."""
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
    """Return the smallest of 1, 2, 2.5, 5, 10 x a power of ten that is at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0) if m * power >= step * 0.999)


def _tick(value: float, step: float) -> str:
    """Return all ticks of an axis with the same digits after the point: 1.0, 1.5, 2.0."""
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


def left_margin(scale: Axis) -> float:
    """Return room for the labels of a vertical axis."""
    return max((len(scale.label(tick)) for tick in scale.ticks), default=1) * CHARACTER + 12


def x_axis(scale: Axis, bottom: float, title: str) -> str:
    """Return ticks below, title at the right end below them."""
    left, right = min(scale.start, scale.end), max(scale.start, scale.end)
    parts = [element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis")]
    for tick in scale.ticks:
        x = scale.place(tick)
        parts.append(element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(text(scale.label(tick), x, bottom + 18, anchor="middle"))
    parts.append(text(title, right, bottom + 36, class_="unit", anchor="end"))
    return "".join(parts)


def y_axis(scale: Axis, left: float, right: float, title: str) -> str:
    """Return grid lines with ticks at the left, title above, where it is read without turning the head."""
    parts = [text(title, 0.0, min(scale.start, scale.end) - 12, class_="unit")]
    for tick in scale.ticks:
        y = scale.place(tick)
        parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(text(scale.label(tick), left - 8, y + 4, anchor="end"))
    return "".join(parts)


def mark(index: int, x: float, y: float, size: float = 4.0, class_: str = "mark") -> str:
    """Return the mark of a series: colour by class, shape too, so that neither colour sight nor colour print is
    needed."""
    shape = index % 4
    if shape == 0:
        return element("circle", cx=x, cy=y, r=size, class_=class_)
    if shape == 1:
        side = size * 1.8
        return element("rect", x=x - side / 2, y=y - side / 2, width=side, height=side, class_=class_)
    s = size * 1.25
    corners = (
        [(x, y - s), (x + s, y), (x, y + s), (x - s, y)]
        if shape == 2
        else [(x, y - s), (x + s, y + s * 0.8), (x - s, y + s * 0.8)]
    )
    return element("polygon", points=" ".join(f"{px:.1f},{py:.1f}" for px, py in corners), class_=class_)


def colours(index: int) -> str:
    """Return classes of a series: eight colours, then the same again with other dashes."""
    return f"c{index % 8} d{index // 8 % 4}"
