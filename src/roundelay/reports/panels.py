"""Figures that compare series: word error rates, time to a loss, speed, speedup."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from roundelay.core.records import WordErrors
from roundelay.reports.charts import ChartAxes, Dot, DotRow, Line, Point, Reference, dot_chart, line_chart
from roundelay.reports.comparison import Comparison, Spread
from roundelay.reports.headline import scored_split, shared_cores
from roundelay.reports.numbers import MISSING, plain, seconds, short
from roundelay.reports.runs import worded
from roundelay.reports.series import (
    Series,
    bootstrapped,
    errors_interval,
    finite,
    scored,
    series_interval,
    shortened,
    words,
    wrong,
)
from roundelay.reports.svg import colours, element, esc, mark

WIDE, NARROW = 560.0, 330.0  # each chart is drawn twice, so that letters keep their size on a telephone


def figure(title: str, note: str, body: str) -> str:
    """Return a chart under its title, with a line that says how to read it."""
    caption = element("figcaption", element("h3", esc(title)), element("p", esc(joined(note))))
    return element("figure", caption, body, class_="panel")


def joined(sentence: str) -> str:
    """Return the text with a number and its per cent sign on one line."""
    return sentence.replace(" %", "\u00a0%")


def twice(draw: Callable[[float], str]) -> str:
    return element("div", draw(WIDE), class_="wide") + element("div", draw(NARROW), class_="narrow")


def legend(series: Sequence[Series]) -> str:
    """Return names of the series, each with its line and mark; page.js lets them pick a series out.

    Where strategies come in several variants (learners, stragglers), a line for each strategy.
    """
    by_label: dict[str, list[Series]] = {}
    for s in series:
        by_label.setdefault(s.runs[0].results.label, []).append(s)
    if len(by_label) == len(series):
        return legend_of([(s.name, (s.index,)) for s in series])
    items = []
    for label, variants in by_label.items():
        buttons = [_button(_variant(s, label), (s.index,)) for s in variants]
        items.append(element("li", element("span", esc(label)), *buttons, class_="family"))
    return element("ul", *items, class_="legend")


def legend_of(entries: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    """Return a legend of names, each for one series or several; the first one's line is shown."""
    return element("ul", *(element("li", _button(name, indices)) for name, indices in entries), class_="legend")


def _button(name: str, indices: tuple[int, ...]) -> str:
    sample = element(
        "svg",
        element("line", x1=1, x2=25, y1=7, y2=7, class_="line"),
        mark(indices[0], 13.0, 7.0, 3.5),
        class_=colours(indices[0]),
        viewBox="0 0 26 14",
        width=26,
        height=14,
        aria_hidden="true",
    )
    return element("button", sample, esc(name), type="button", data_s=" ".join(map(str, indices)), aria_pressed="false")


def _variant(series: Series, label: str) -> str:
    """Return the part of a name that follows the strategy's label."""
    return series.name.removeprefix(label).removeprefix(", ") or series.name


def word_errors(series: Sequence[Series]) -> str:
    """Return the picture to look at first; the held-out loss instead while nothing is decoded."""
    split = scored_split([run for s in series for run in s.runs])
    if split is None:
        return _losses(series)
    rows = []
    for s in _best_first(series, lambda s: fmean(e.wer for e in found) if (found := scored(s, split)) else None):
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
        f"Lower is better. A dot is a run, the line a 95 % interval {_whence(series, split)}",
        twice(
            lambda width: dot_chart(_beneath(rows), width, f"Word error rate on {split}. {said}", "% of words wrong")
        ),
    )


def _whence(series: Sequence[Series], split: str) -> str:
    if bootstrapped(errors for s in series for errors in scored(s, split)):
        return "from a bootstrap over utterances."
    return "from the number of errors alone. Errors cluster in utterances, so the truth is a little wider."


def _counts(errors: WordErrors) -> str:
    low, high = errors_interval(errors)
    kinds = f"{errors.ins} ins, {errors.del_} del, {errors.sub} sub"
    return (
        f"{plain(errors.wer, 2)} % WER, {wrong(errors)} errors in {errors.ref} words ({kinds}); "
        f"95 %: {plain(low, 1)} to {plain(high, 1)} %"
    )


def _losses(series: Sequence[Series]) -> str:
    words = worded(run for s in series for run in s.runs)
    ordered = _best_first(series, lambda s: _mean(run.cross_entropy for run in s.runs))
    rows = [_row(s, [run.cross_entropy for run in s.runs], words.unit, plain) for s in ordered]
    said = "; ".join(f"{row.name}: {row.note}" for row in rows)
    title = f"Held-out {words.loss}"
    return figure(
        title,
        "Lower is better. Nothing is decoded yet, so there are no word error rates.",
        twice(lambda width: dot_chart(_beneath(rows), width, f"{title}. {said}", words.unit, from_zero=False)),
    )


def _beneath(rows: Sequence[DotRow]) -> list[DotRow]:
    """Return the series with names as they are said of rows below each other."""
    names = shortened([row.name for row in rows])
    return [dataclasses.replace(row, name=name) for row, name in zip(rows, names, strict=True)]


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
    """Return frames, or what else is counted, per second of all learners together."""
    runs = [run for s in series for run in s.runs]
    examples = worded(runs).examples
    unit = f"{examples} per second"
    ordered = _best_first(series, lambda s: _mean(-(run.frames_per_second or 0.0) for run in s.runs))
    rows = [_row(s, [run.frames_per_second for run in s.runs], unit, short) for s in ordered]
    said = "; ".join(f"{row.name}: {row.note}" for row in rows)
    clocks = {run.simulated for run in runs}
    note = f"More is better. {examples.capitalize()} of all learners together, evaluation left out."
    if clocks == {True, False}:
        note += " Simulated runs count virtual seconds: compare them with each other only."
    note += shared_cores(runs)
    return figure(
        "Training speed",
        note,
        twice(lambda width: dot_chart(_beneath(rows), width, f"Training speed. {said}", unit, stems=True)),
    )


def time_to_target(comparison: Comparison) -> str:
    """Return seconds to the target loss, fastest first, each straggler below its undisturbed series.

    Empty where that is no race: one series, two kinds of clock, or a loss that nobody reached.
    """
    reached = {s.index: comparison.over_seeds(s, lambda f: f.seconds_to_target) for s in comparison.series}
    if len(comparison.series) < 2 or not comparison.one_clock or not any(r.values for r in reached.values()):
        return ""
    virtual = "virtual " * comparison.series[0].runs[0].simulated
    rows = []
    for s in _best_first(comparison.series, lambda s: reached[s.index].mean if reached[s.index].values else None):
        time, sooner = reached[s.index], comparison.over_seeds(s, lambda f: f.sooner)
        dots = tuple(
            Dot(value, f"{s.name}, seed {run.results.seed}: {seconds(value)} {virtual}to the target")
            for run in s.runs
            if (value := comparison.of(run).seconds_to_target) is not None
        )
        missed = len(s.runs) - time.n
        counts = f"{plain(sooner.mean, 1)} x" if sooner.values else ""
        if missed and time.values:
            counts = f"{missed} of {len(s.runs)} seeds never"
        note = f"{time.mean:.1f} s" if time.values else "never"
        rows.append(DotRow(s.index, s.name, note, dots, time.mean if time.values else None, counts=counts))
    said = "; ".join(f"{row.name}: {row.note} {row.counts}" for row in rows)
    target = f"{comparison.target:.4g}"
    paired = any(comparison.over_seeds(s, lambda f: f.sooner).values for s in comparison.series)
    against_one = " 2 x: in half the one-learner run's time." * paired
    why = "" if comparison.given else " Every run reached it" + _but(comparison) + "."
    return figure(
        f"Time to a held-out loss of {target}",
        f"Shorter is better. A dot is a run, the bar their mean.{why}{against_one}",
        twice(
            lambda width: dot_chart(
                _beneath(rows), width, f"Time to a held-out loss of {target}. {said}", f"{virtual}seconds", stems=True
            )
        ),
    )


def _best_first(series: Sequence[Series], measure: Callable[[Series], float | None]) -> list[Series]:
    """Return the least measure first, none last; but a series with stragglers right below the same without."""

    def place(s: Series) -> tuple[float, int, bool, int]:
        calm = _calm(s, series)
        value = measure(calm)
        return math.inf if value is None else value, calm.index, calm is not s, s.index

    return sorted(series, key=place)


def _mean(values: Iterable[float | None]) -> float | None:
    known = finite(values)
    return fmean(known) if known else None


def _calm(series: Series, all_: Sequence[Series]) -> Series:
    """Return the series that differs from this one in having no stragglers; or this one."""
    own = series.runs[0]
    if not own.stragglers:
        return series
    wanted = own.results.label, own.results.learners, own.simulated
    return next(
        (
            s
            for s in all_
            if not (run := s.runs[0]).stragglers and (run.results.label, run.results.learners, run.simulated) == wanted
        ),
        series,
    )


def _but(comparison: Comparison) -> str:
    if not comparison.behind:
        return ""
    return f", but for what learned too little: {comparison.without()}"


_LEARNERS = re.compile(r", \d+ learners")


def speedup(comparison: Comparison) -> str:
    """Return frames per second against those of one learner, over the number of learners; empty without such pairs."""
    known = [
        (s, found)
        for s in comparison.series
        if s.runs[0].results.learners > 1 and (found := comparison.over_seeds(s, lambda f: f.speedup)).values
    ]
    if not known:
        return ""
    examples = worded(run for s, _ in known for run in s.runs).examples
    groups: dict[str, list[tuple[Series, Spread]]] = {}
    for s, found in known:  # all learners of one name together
        groups.setdefault(_LEARNERS.sub("", s.name), []).append((s, found))
    lines, entries = [], []
    for name, group in groups.items():
        ordered = sorted(group, key=lambda pair: pair[0].runs[0].results.learners)
        points, band = [Point(1.0, 1.0, "one learner: 1")], [(1.0, 1.0)]
        for s, found in ordered:
            learners = s.runs[0].results.learners
            spread = f" ({plain(min(found.values), 2)} to {plain(max(found.values), 2)})" if found.n > 1 else ""
            hover = f"{s.name}: {plain(found.mean, 2)} times one learner's {examples} per second{spread}"
            points.append(Point(float(learners), found.mean, hover))
            band.append((min(found.values), max(found.values)))
        shaded = tuple(band) if any(found.n > 1 for _, found in ordered) else ()
        indices = tuple(s.index for s, _ in ordered)
        lines.append(Line(indices[0], tuple(points), shaded, stands_for=indices))
        entries.append((name, indices))
    most = max(s.runs[0].results.learners for s, _ in known)
    ticks = [1.0, *(float(s.runs[0].results.learners) for s, _ in known)]
    said = "; ".join(f"{s.name}: {plain(found.mean, 2)}" for s, found in known)
    shaded_note = " Shaded: from the lowest to the highest seed." if any(line.band for line in lines) else ""
    return figure(
        "Speedup",
        f"{examples.capitalize()} per second over those of the one-learner run of the same seed. Dashed grey: as many "
        "times as learners." + shaded_note + shared_cores([run for s, _ in known for run in s.runs]),
        legend_of(entries)
        + twice(
            lambda width: line_chart(
                lines,
                width,
                f"Speedup over one learner. {said}",
                ChartAxes("learners", "times one learner", from_zero=True, x_ticks=ticks),
                Reference((1.0, 1.0), (float(most), float(most))),
            )
        ),
    )
