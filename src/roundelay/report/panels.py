"""Figures that compare series: word error rates, learning curves, speed."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from roundelay.core.records import WordErrors
from roundelay.report.charts import Dot, DotRow, Line, Point, dot_chart, line_chart
from roundelay.report.headline import scored_split, shared_cores
from roundelay.report.numbers import MISSING, percent, plain, seconds, short
from roundelay.report.runs import Run
from roundelay.report.series import Series, finite, interval, scored, series_interval, words, wrong
from roundelay.report.svg import colours, element, esc, mark

WIDE, NARROW = 560.0, 330.0  # each chart is drawn twice, so that letters keep their size on a telephone


def figure(title: str, note: str, body: str) -> str:
    """A chart under its title, with a line that says how to read it."""
    caption = element("figcaption", element("h3", esc(title)), element("p", esc(joined(note))))
    return element("figure", caption, body, class_="panel")


def joined(sentence: str) -> str:
    """A number and its per cent sign stay on one line."""
    return sentence.replace(" %", "\u00a0%")


def _twice(draw: Callable[[float], str]) -> str:
    return element("div", draw(WIDE), class_="wide") + element("div", draw(NARROW), class_="narrow")


def legend(series: Sequence[Series]) -> str:
    """Names of the series, each with its line and mark; page.js lets them pick a series out."""
    items = []
    for s in series:
        sample = element(
            "svg",
            element("line", x1=1, x2=25, y1=7, y2=7, class_="line"),
            mark(s.index, 13.0, 7.0, 3.5),
            class_=colours(s.index),
            viewBox="0 0 26 14",
            width=26,
            height=14,
            aria_hidden="true",
        )
        items.append(element("li", element("button", sample, esc(s.name), type="button", data_s=s.index)))
    return element("ul", *items, class_="legend")


def word_errors(series: Sequence[Series]) -> str:
    """The picture to look at first; the held-out loss instead while nothing is decoded."""
    split = scored_split([run for s in series for run in s.runs])
    if split is None:
        return _losses(series)
    rows = []
    for s in series:
        scores = scored(s, split)
        if not scores:
            rows.append(DotRow(s.index, s.name, "not decoded", ()))
            continue
        mean = fmean(e.wer for e in scores)
        counts = f"{wrong(scores[0])} of {scores[0].ref} words" if len(scores) == 1 else f"mean of {len(scores)} seeds"
        dots = tuple(
            Dot(e.wer, f"{s.name}, seed {run.results.seed}: {_counts(e)}") for run in s.runs if (e := words(run, split))
        )
        rows.append(DotRow(s.index, s.name, f"{plain(mean, 2)} %", dots, mean, series_interval(scores), counts))
    said = "; ".join(f"{row.name}: {row.note} {row.counts}" for row in rows)
    return figure(
        f"Word error rate, {split}",
        "Lower is better. A dot is a run, the line a 95 % interval from the number of errors alone. "
        "Errors cluster in utterances, so the truth is a little wider.",
        _twice(lambda width: dot_chart(rows, width, f"Word error rate on {split}. {said}", "% of words wrong")),
    )


def _counts(errors: WordErrors) -> str:
    low, high = interval(wrong(errors), errors.ref)
    kinds = f"{errors.ins} ins, {errors.del_} del, {errors.sub} sub"
    return (
        f"{plain(errors.wer, 2)} % WER, {wrong(errors)} errors in {errors.ref} words ({kinds}); "
        f"95 %: {plain(low, 1)} to {plain(high, 1)} %"
    )


def _losses(series: Sequence[Series]) -> str:
    rows = [_row(s, [run.cross_entropy for run in s.runs], "nats per frame", plain) for s in series]
    said = "; ".join(f"{row.name}: {row.note}" for row in rows)
    return figure(
        "Held-out cross-entropy",
        "Lower is better. Nothing is decoded yet, so there are no word error rates.",
        _twice(
            lambda width: dot_chart(rows, width, f"Held-out cross-entropy. {said}", "nats per frame", from_zero=False)
        ),
    )


def _row(series: Series, values: Sequence[float | None], unit: str, written: Callable[[float], str]) -> DotRow:
    known = finite(values)
    dots = tuple(
        Dot(value, f"{series.name}, seed {run.results.seed}: {written(value)} {unit}")
        for run, value in zip(series.runs, values, strict=True)
        if value is not None
    )
    broken = MISSING if all(value is None for value in values) else "not finite"
    return DotRow(
        series.index, series.name, written(fmean(known)) if known else broken, dots, fmean(known) if known else None
    )


def speed(series: Sequence[Series]) -> str:
    """Frames per second of all learners together."""
    rows = [_row(s, [run.frames_per_second for run in s.runs], "frames per second", short) for s in series]
    said = "; ".join(f"{row.name}: {row.note}" for row in rows)
    runs = [run for s in series for run in s.runs]
    clocks = {run.simulated for run in runs}
    note = "More is better. Frames of all learners together, evaluation left out."
    if clocks == {True, False}:
        note += " Simulated runs count virtual seconds: compare them with each other only."
    note += shared_cores(runs)
    return figure(
        "Training speed",
        note,
        _twice(lambda width: dot_chart(rows, width, f"Training speed. {said}", "frames per second", stems=True)),
    )


def curves(series: Sequence[Series], over: str) -> str:
    """Held-out cross-entropy over "frames" or over "seconds"."""
    runs = [run for s in series for run in s.runs]
    longest = max(finite(_seconds_at(run, e.wall_s, e.virtual_s) for run in runs for e in run.evaluations), default=0.0)
    unit, size = ("seconds", 1.0) if longest < 600 else ("minutes", 60.0) if longest < 7200 else ("hours", 3600.0)
    lines = [Line(s.index, _points(s, run, over, size)) for s in series for run in s.runs]
    ceiling = _ceiling(lines)
    left_out = sum(not math.isfinite(p.y) for line in lines for p in line.points)
    note = (
        "Lower and further left is better."
        if over == "seconds"
        else "The same work on every curve: how well it was used."
    )
    if any(p.hollow for line in lines for p in line.points):
        note += " A hollow mark: the schedule went back to the model before."
    if over == "seconds" and len({run.simulated for run in runs}) > 1:
        note += " Simulated runs: virtual seconds."
    elif over == "seconds" and runs[0].simulated:
        unit = f"virtual {unit}"
    if left_out:
        note += f" {left_out} value{'s are' if left_out > 1 else ' is'} not a finite number and not drawn."
    if math.isfinite(ceiling):
        note += f" Values above {ceiling:.1f} are cut off, so that the end can be read."
    title = f"Held-out cross-entropy over {'frames' if over == 'frames' else 'time'}"
    ends = "; ".join(
        f"{s.name}, seed {run.results.seed}: {plain(run.evaluations[-1].cross_entropy)} at the end"
        for s in series
        for run in s.runs
        if run.evaluations
    )
    x_title = "frames trained, all learners" if over == "frames" else unit
    return figure(
        title,
        note,
        legend(series)
        + _twice(
            lambda width: line_chart(lines, width, f"{title}. {ends}", x_title, "nats per frame", ceiling=ceiling)
        ),
    )


def _points(series: Series, run: Run, over: str, size: float) -> tuple[Point, ...]:
    """The untrained model (epoch -1) would flatten all that follows; it is drawn only while it is alone."""
    evaluations = [e for e in run.evaluations if e.epoch >= 0] or run.evaluations
    return tuple(
        Point(
            float(e.frames) if over == "frames" else _seconds_at(run, e.wall_s, e.virtual_s) / size,
            e.cross_entropy,
            f"{series.name}, seed {run.results.seed}, {f'epoch {e.epoch + 1}' if e.epoch >= 0 else 'before training'}: "
            f"{plain(e.cross_entropy)} nats per frame, accuracy {percent(e.accuracy)}, {short(e.frames)} frames, "
            f"{seconds(_seconds_at(run, e.wall_s, e.virtual_s))}" + ("" if e.accepted else "; given up"),
            not e.accepted,
        )
        for e in evaluations
    )


def _ceiling(lines: Sequence[Line]) -> float:
    """Where to cut curves off so that the first epochs, or a run that diverged, do not flatten all that matters.

    Infinite where cutting would gain little. Whatever a run ends with is shown, unless it is far out.
    """
    each = [finite(p.y for p in line.points) for line in lines]
    values = sorted(value for line in each for value in line)
    if len(values) < 6:
        return math.inf
    low, middle, high = values[0], values[len(values) // 2], values[-1]
    enough = max([low + 3 * (middle - low), *(line[-1] for line in each if line and line[-1] <= 5 * middle)])
    return enough if high - low > 1.4 * (enough - low) > 0 else math.inf


def _seconds_at(run: Run, wall_s: float, virtual_s: float | None) -> float:
    return virtual_s if run.simulated and virtual_s is not None else wall_s
