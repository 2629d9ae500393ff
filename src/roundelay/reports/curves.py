"""Curves of a run: held-out loss and consensus distance, over frames or over seconds.

Several seeds are drawn as their mean at each epoch that all of them finished, between the lowest and the highest.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from markupsafe import Markup

from roundelay.core.records import Evaluation
from roundelay.reports.charts import ChartAxes, Line, Point, figure, line_figure
from roundelay.reports.numbers import percent, plain, seconds, short
from roundelay.reports.panels import legend
from roundelay.reports.runs import Run, worded
from roundelay.reports.series import Series, finite, named

Value = Callable[[Evaluation], float]
Place = Callable[[Run, Evaluation], float]
"""From an evaluation of a run to its place on the horizontal axis."""


def _over(over: str, series: Sequence[Series]) -> tuple[str, Place]:
    """Return the horizontal axis of the curves: its title, and places on it."""
    runs = [run for s in series for run in s.runs]
    if over == "frames":
        return f"{worded(runs).examples} trained, all learners", lambda run, e: float(e.frames)
    longest = max(finite(run.clock(e) for run in runs for e in run.evaluations), default=0.0)
    unit, size = ("seconds", 1.0) if longest < 600 else ("minutes", 60.0) if longest < 7200 else ("hours", 3600.0)
    virtual = "virtual " * all(run.simulated for run in runs)
    return virtual + unit, lambda run, e: run.clock(e) / size


def curves(series: Sequence[Series], over: str) -> Markup:
    """Return held-out loss over "frames", or whatever is counted, or over "seconds"."""
    below, place = _over(over, series)
    words = worded(run for s in series for run in s.runs)
    lines = [line for s in series for line in _lines(s, place, lambda e: e.cross_entropy, words.unit)]
    ceiling = _ceiling(lines)
    note = "The same work on every curve: how well it was used."
    if over == "seconds":
        note = "Lower and further left is better."
    note += _band_note(lines)
    if any(p.hollow for line in lines for p in line.points):
        note += " A hollow mark: the schedule went back to the model before."
    note += _clock_note(series, over)
    if broken := sum(not math.isfinite(e.cross_entropy) for s in series for run in s.runs for e in _shown(run)):
        note += f" {broken} value{'s are' if broken > 1 else ' is'} not a finite number and not drawn."
    if math.isfinite(ceiling):
        note += f" Values above {ceiling:.1f} are cut off, so that the end can be read."
    ends = "; ".join(
        f"{s.name}, seed {run.results.seed}: {plain(run.evaluations[-1].cross_entropy)} at the end"
        for s in series
        for run in s.runs
        if run.evaluations
    )
    title = f"Held-out {words.loss} over {words.examples if over == 'frames' else 'time'}"
    return line_figure(title, note, lines, ChartAxes(below, words.unit, ceiling), ends, legend(series))


def consensus(series: Sequence[Series]) -> Markup | None:
    """Return distance between the learners' rows at the end of every epoch, over seconds; None without several
    learners."""
    several = [s for s in series if s.runs[0].results.learners > 1 and any(_shown(run) for run in s.runs)]
    apart = [s for s in several if any(e.consensus_distance for run in s.runs for e in _shown(run))]
    agree = [s for s in several if s not in apart]
    if not several:
        return None
    title = "Consensus distance over time"
    note = "Root mean square of rows minus their mean, at the end of every epoch: how far apart the learners are."
    same = f" Always 0, one model for all: {named(agree, several)}." if agree else ""
    if not apart:
        return figure(title, note + same)
    below, place = _over("seconds", apart)
    # Zero has no place on the logarithmic axis that one strategy far from the others brings about.
    lines = [line for s in apart for line in _lines(s, place, lambda e: e.consensus_distance or math.nan, "")]
    ends = "; ".join(f"{s.name}: {short(_last_distance(s))} at the end" for s in apart)
    note += _band_note(lines) + _clock_note(apart, "seconds") + same
    axes = ChartAxes(below, "root mean square, per parameter")
    return line_figure(title, note, lines, axes, ends, legend(apart))


def _last_distance(series: Series) -> float:
    return fmean(run.evaluations[-1].consensus_distance for run in series.runs if run.evaluations)


def _clock_note(series: Sequence[Series], over: str) -> str:
    clocks = {run.simulated for s in series for run in s.runs}
    return " Simulated runs: virtual seconds." if over == "seconds" and len(clocks) > 1 else ""


def _band_note(lines: Sequence[Line]) -> str:
    if not any(line.band for line in lines):
        return ""
    return " Several seeds: their mean at the same epoch, from the lowest to the highest shaded, each one thin."


# Lines ----------------------------------------------------------------------------------------------------------------


def _shown(run: Run) -> Sequence[Evaluation]:
    """Return the evaluations to draw: the untrained model (epoch -1) would flatten all that follows, so it is drawn
    only while it is alone."""
    return [e for e in run.evaluations if e.epoch >= 0] or run.evaluations


def _lines(series: Series, place: Place, value: Value, unit: str) -> list[Line]:
    """Return the mean with its band and each seed thin behind it; or each run by itself where there is no mean."""
    each = [
        Line(series.index, tuple(_point(series, run, e, place, value, unit) for e in _shown(run)))
        for run in series.runs
    ]
    mean = _mean(series, place, value, unit) if len(series.runs) > 1 else None
    if mean is None:
        return each
    return [mean, *(Line(series.index, line.points, quiet=True) for line in each)]


def _point(series: Series, run: Run, e: Evaluation, place: Place, value: Value, unit: str) -> Point:
    return Point(
        place(run, e),
        value(e),
        f"{series.name}, seed {run.results.seed}, {_epoch(e)}: {_written(value(e), unit)}, "
        f"{run.wording.right} {percent(e.accuracy)}, {short(e.frames)} {run.wording.examples}, {seconds(run.clock(e))}"
        + ("" if e.accepted else "; given up"),
        not e.accepted,
    )


def _mean(series: Series, place: Place, value: Value, unit: str) -> Line | None:
    """Return mean at each epoch that all seeds finished; None if there is none. Not finite where one of them is not."""
    by_epoch = [{e.epoch: e for e in _shown(run)} for run in series.runs]
    common = [epoch for epoch in by_epoch[0] if all(epoch in found for found in by_epoch)]
    points, band = [], []
    for epoch in common:
        found = [(run, epochs[epoch]) for run, epochs in zip(series.runs, by_epoch, strict=True)]
        xs, ys = [place(run, e) for run, e in found], [value(e) for _, e in found]
        low, high = min(ys), max(ys)
        given_up = sum(not e.accepted for _, e in found)
        at = fmean(run.clock(e) for run, e in found)
        hover = (
            f"{series.name}, {_epoch(found[0][1])}: {_written(_average(ys), unit)}, mean of {len(ys)} seeds "
            f"({_number(low, unit)} to {_number(high, unit)}), "
            f"{short(found[0][1].frames)} {found[0][0].wording.examples}, {seconds(at)}"
        )
        points.append(
            Point(_average(xs), _average(ys), hover + (f"; given up by {given_up}" if given_up else ""), given_up > 0)
        )
        band.append((low, high))
    return Line(series.index, tuple(points), tuple(band)) if points else None


def _average(values: Sequence[float]) -> float:
    """Return mean of the values; not a number where one is not finite, or their sum is not."""
    total = sum(values)
    return total / len(values) if math.isfinite(total) else math.nan


def _epoch(e: Evaluation) -> str:
    return f"epoch {e.epoch + 1}" if e.epoch >= 0 else "before training"


def _written(value: float, unit: str) -> str:
    return f"{_number(value, unit)} {unit}".rstrip()


def _number(value: float, unit: str) -> str:
    return plain(value) if unit else short(value)


def _ceiling(lines: Sequence[Line]) -> float:
    """Return the height that cuts curves off so that the first epochs, or a run that diverged, do not flatten all that
    matters.

    Infinite where cutting would gain little. The end of a run is always shown, unless it is far out.
    """
    each = [finite(p.y for p in line.points) for line in lines]
    values = sorted(value for line in each for value in line)
    if len(values) < 6:
        return math.inf
    low, middle, high = values[0], values[len(values) // 2], values[-1]
    enough = max([low + 3 * (middle - low), *(line[-1] for line in each if line and line[-1] <= 5 * middle)])
    return enough if high - low > 1.4 * (enough - low) > 0 else math.inf
