"""Axes of charts: round numbers, placed on pixels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roundelay.reports.markup import CHARACTER
from roundelay.reports.numbers import short


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

    @property
    def margin(self) -> float:
        """Room for the labels of a vertical axis, in pixels."""
        return max((len(self.label(tick)) for tick in self.ticks), default=1) * CHARACTER + 12


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
