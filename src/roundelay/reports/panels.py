"""Figures that compare series: word error rates, time to a loss, speed, speedup."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from markupsafe import Markup

from roundelay.core.records import WordErrors
from roundelay.reports.charts import ChartAxes, DotRow, Families, Line, Point, dot_chart, figure, line_figure
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


def legend(series: Sequence[Series]) -> Families:
    """Return names of the series; where strategies come in several variants (learners, stragglers), by strategy."""
    by_label: dict[str, list[Series]] = {}
    for s in series:
        by_label.setdefault(s.runs[0].results.label, []).append(s)
    if len(by_label) == len(series):
        return [("", [(s.name, [s.index])]) for s in series]
    return [
        (label, [(s.name.removeprefix(label).removeprefix(", ") or s.name, [s.index]) for s in variants])
        for label, variants in by_label.items()
    ]


def _figure(title: str, note: str, rows: Sequence[DotRow], unit: str, *, said: str = "", **how: bool) -> Markup:
    """Return rows under their title; `said` is what a screen reader says for it."""
    names = shortened([row.name for row in rows])
    beneath = [dataclasses.replace(row, name=name) for row, name in zip(rows, names, strict=True)]
    label = f"{said or title}. " + "; ".join(f"{row.name}: {row.note} {row.counts}".rstrip() for row in rows)
    return figure(title, note, draws=lambda width: dot_chart(beneath, width, label, unit, **how))


def _row(
    series: Series,
    found: Sequence[tuple[float | None, str]],
    note: Callable[[float], str],
    counts: str = "",
    interval: tuple[float, float] | None = None,
    without: str = MISSING,
) -> DotRow:
    """Return a row of each run's value and what it means; `note` writes their mean, `without` stands where there is
    no value."""
    there = [(run.results.seed, value, said) for run, (value, said) in zip(series.runs, found, strict=True)]
    dots = tuple((value, f"{series.name}, seed {seed}: {said}") for seed, value, said in there if value is not None)
    known = finite(value for value, _ in dots)
    said = note(fmean(known)) if known else "not finite" if dots else without
    return DotRow(series.index, series.name, said, dots, fmean(known) if known else None, interval, counts)


def word_errors(series: Sequence[Series]) -> Markup:
    """Return the picture to look at first; the held-out loss instead while nothing is decoded."""
    split = scored_split([run for s in series for run in s.runs])
    if split is None:
        return _losses(series)
    rows = []
    for s in _best_first(series, lambda s: _mean(e.wer for e in scored(s, split))):
        scores = scored(s, split)
        counts = f"mean of {len(scores)} seeds" if len(scores) > 1 else ""
        counts = f"{wrong(scores[0])} of {scores[0].ref} words" if len(scores) == 1 else counts
        found = [(errors.wer, _counts(errors)) if (errors := words(run, split)) else (None, "") for run in s.runs]
        interval = series_interval(scores) if scores else None
        rows.append(_row(s, found, lambda mean: f"{plain(mean, 2)} %", counts, interval, "not decoded"))
    whence = "from the number of errors alone. Errors cluster in utterances, so the truth is a little wider."
    if bootstrapped(errors for s in series for errors in scored(s, split)):
        whence = "from a bootstrap over utterances."
    note = f"Lower is better. A dot is a run, the line a 95 % interval {whence}"
    title = "Word error rate"
    return _figure(f"{title}, {split}", note, rows, "% of words wrong", said=f"{title} on {split}")


def _counts(errors: WordErrors) -> str:
    low, high = errors_interval(errors)
    kinds = f"{errors.ins} ins, {errors.del_} del, {errors.sub} sub"
    return (
        f"{plain(errors.wer, 2)} % WER, {wrong(errors)} errors in {errors.ref} words ({kinds}); "
        f"95 %: {plain(low, 1)} to {plain(high, 1)} %"
    )


def _losses(series: Sequence[Series]) -> Markup:
    words = worded(run for s in series for run in s.runs)
    rows = [
        _row(s, [(run.cross_entropy, f"{plain(run.cross_entropy)} {words.unit}") for run in s.runs], plain)
        for s in _best_first(series, lambda s: _mean(run.cross_entropy for run in s.runs))
    ]
    note = "Lower is better. Nothing is decoded yet, so there are no word error rates."
    return _figure(f"Held-out {words.loss}", note, rows, words.unit, from_zero=False)


def speed(series: Sequence[Series]) -> Markup:
    """Return frames, or what else is counted, per second of all learners together."""
    runs = [run for s in series for run in s.runs]
    examples = worded(runs).examples
    unit = f"{examples} per second"
    rows = [
        _row(
            s, [(speed, f"{short(speed or 0.0)} {unit}") for run in s.runs for speed in [run.frames_per_second]], short
        )
        for s in _best_first(series, lambda s: _mean(-(run.frames_per_second or 0.0) for run in s.runs))
    ]
    note = f"More is better. {examples.capitalize()} of all learners together, evaluation left out."
    if len({run.simulated for run in runs}) > 1:
        note += " Simulated runs count virtual seconds: compare them with each other only."
    return _figure("Training speed", note + shared_cores(runs), rows, unit, stems=True)


def time_to_target(comparison: Comparison) -> Markup | None:
    """Return seconds to the target loss, fastest first, each straggler below its undisturbed series.

    None where that is no race: one series, two kinds of clock, or a loss that nobody reached.
    """
    series = comparison.series
    reached = {s.index: comparison.over_seeds(s, lambda f: f.seconds_to_target) for s in series}
    if len(series) < 2 or not comparison.one_clock or not any(r.values for r in reached.values()):
        return None
    virtual = "virtual " * series[0].runs[0].simulated
    rows = []
    paired = ""
    for s in _best_first(series, lambda s: _mean(reached[s.index].values)):
        sooner = comparison.over_seeds(s, lambda f: f.sooner)
        if sooner.values:
            paired = " 2 x: in half the one-learner run's time."
        missed = len(s.runs) - reached[s.index].n
        counts = f"{plain(sooner.mean, 1)} x" if sooner.values else ""
        if 0 < missed < len(s.runs):
            counts = f"{missed} of {len(s.runs)} seeds never"
        times = [comparison.of(run).seconds_to_target for run in s.runs]
        found = [(time, f"{seconds(time or 0.0)} {virtual}to the target") for time in times]
        rows.append(_row(s, found, lambda mean: f"{mean:.1f} s", counts, without="never"))
    but = f", but for what learned too little: {comparison.without()}" if comparison.behind else ""
    why = "" if comparison.given else f" Every run reached it{but}."
    title = f"Time to a held-out loss of {comparison.target:.4g}"
    note = f"Shorter is better. A dot is a run, the bar their mean.{why}{paired}"
    return _figure(title, note, rows, f"{virtual}seconds", stems=True)


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

    def kind(s: Series) -> tuple[str, int, bool]:
        run = s.runs[0]
        return run.results.label, run.results.learners, run.simulated

    if not series.runs[0].stragglers:
        return series
    return next((s for s in all_ if not s.runs[0].stragglers and kind(s) == kind(series)), series)


_LEARNERS = re.compile(r", \d+ learners")


def speedup(comparison: Comparison) -> Markup | None:
    """Return frames per second against those of one learner, over the number of learners; None without such pairs."""
    known = [
        Scaling(_LEARNERS.sub("", s.name), s.index, s.runs[0].results.learners, found.mean, found, s.name)
        for s in comparison.series
        if s.runs[0].results.learners > 1 and (found := comparison.over_seeds(s, lambda f: f.speedup)).values
    ]
    if not known:
        return None
    runs = [run for s in comparison.series if s.index in {one.index for one in known} for run in s.runs]
    examples = worded(runs).examples
    shaded = " Shaded: from the lowest to the highest seed." * any(one.found.n > 1 for one in known)
    note = f"{examples.capitalize()} per second over those of the one-learner run of the same seed. Dashed grey: as "
    note += f"many times as learners.{shaded}{shared_cores(runs)}"
    return scaling_figure(
        "Speedup over one learner", note, known, "times one learner", f"one learner's {examples} per second"
    )


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Several learners beside one.

    Attributes:
        family: those of one are a line.
        times: how much faster, or sooner, in the mean; `found` has the seeds' values.
    """

    family: str
    index: int
    learners: int
    times: float
    found: Spread
    name: str


def scaling_figure(title: str, note: str, known: Sequence[Scaling], unit: str, of: str = "") -> Markup:
    """Return a line for each family over the number of learners, beside the ideal."""
    lines, families = [], []
    for family in dict.fromkeys(one.family for one in known):
        mine = sorted((one for one in known if one.family == family), key=lambda one: one.learners)
        points, band = [Point(1.0, 1.0, "one learner: 1")], [(1.0, 1.0)]
        for one in mine:
            low, high = min(one.found.values), max(one.found.values)
            between = f" ({plain(low, 2)} to {plain(high, 2)})" if one.found.n > 1 else ""
            hover = f"{one.name}: {plain(one.times, 2)}{f' times {of}' if of else ''}{between}"
            points.append(Point(float(one.learners), one.times, hover))
            band.append((low, high))
        shaded = tuple(band) if any(one.found.n > 1 for one in mine) else ()
        picked = tuple(dict.fromkeys(one.index for one in mine))
        lines.append(Line(picked[0], tuple(points), shaded, stands_for=picked))
        families.append(("", [(family, picked)]))
    most = float(max(one.learners for one in known))
    ticks = [1.0, *(float(one.learners) for one in known)]
    ideal = ((1.0, 1.0), (most, most))
    axes = ChartAxes("learners", unit, from_zero=True, x_ticks=ticks, reference=ideal)
    said = "; ".join(f"{one.name}: {plain(one.times, 2)}" for one in known)
    return line_figure(title, note, lines, axes, said, families)
