"""Figures that compare series: word error rates, time to a loss, speed, speedup, staleness, matrices of exchanges.

How fast exchanges would mix is told by the effective spectral gap of those that are counted. Counts come as a matrix of
L rows: n[i][j] exchanges that learner i began with row j. A strategy with a centre has one more column, the last, for
exchanges with it.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from roundelay.core.records import WordErrors
from roundelay.reports.charts import ChartAxes, DotRow, Families, Line, Point, dot_chart, figure, heat_map, line_figure
from roundelay.reports.comparison import Comparison, Spread
from roundelay.reports.headline import scored_split, shared_cores
from roundelay.reports.markup import draw
from roundelay.reports.numbers import MISSING, percent, plain, seconds, short
from roundelay.reports.runs import Run, added, worded
from roundelay.reports.series import (
    Series,
    bootstrapped,
    errors_interval,
    finite,
    named,
    scored,
    series_interval,
    shortened,
    words,
    wrong,
)


def legend(series: Sequence[Series]) -> Families:
    """Return the legend of the series, by strategy if strategies have several variants (learners, stragglers)."""
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
    """Return a dot chart under its title; `said` is its text for a screen reader."""
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
    """Return the row of a series: `found` has each run's value and its meaning, `note` writes their mean, `without`
    stands for no value."""
    there = [(run.results.seed, value, said) for run, (value, said) in zip(series.runs, found, strict=True)]
    dots = tuple((value, f"{series.name}, seed {seed}: {said}") for seed, value, said in there if value is not None)
    known = finite(value for value, _ in dots)
    said = note(fmean(known)) if known else "not finite" if dots else without
    return DotRow(series.index, series.name, said, dots, fmean(known) if known else None, interval, counts)


def word_errors(series: Sequence[Series]) -> Markup:
    """Return a chart of word error rates, the first of the page; of held-out losses if nothing is decoded."""
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
    """Return a chart of the frames, or the unit counted, per second of all learners together."""
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
    """Return a chart of seconds to the target loss, fastest first, each series with stragglers below the same without.
    None where series cannot be compared: one series, two kinds of clock, or a loss that no run reached."""
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
    but = f", without runs that learned too little: {comparison.without()}" if comparison.behind else ""
    why = "" if comparison.given else f" Every run reached it{but}."
    title = f"Time to a held-out loss of {comparison.target:.4g}"
    note = f"Shorter is better. A dot is a run, the bar their mean.{why}{paired}"
    return _figure(title, note, rows, f"{virtual}seconds", stems=True)


def _best_first(series: Sequence[Series], measure: Callable[[Series], float | None]) -> list[Series]:
    """Sort series by their measure, least first, none last, and each with stragglers right below the same without."""

    def place(s: Series) -> tuple[float, int, bool, int]:
        calm = _calm(s, series)
        value = measure(calm)
        return math.inf if value is None else value, calm.index, calm is not s, s.index

    return sorted(series, key=place)


def _mean(values: Iterable[float | None]) -> float | None:
    known = finite(values)
    return fmean(known) if known else None


def _calm(series: Series, all_: Sequence[Series]) -> Series:
    """Return the series that is as `series` but without stragglers; `series` itself if there is none."""

    def kind(s: Series) -> tuple[str, int, bool]:
        run = s.runs[0]
        return run.results.label, run.results.learners, run.simulated

    if not series.runs[0].stragglers:
        return series
    return next((s for s in all_ if not s.runs[0].stragglers and kind(s) == kind(series)), series)


_LEARNERS = re.compile(r", \d+ learners")


def speedup(comparison: Comparison) -> Markup | None:
    """Return a chart of frames per second over those of one learner, by learners; None without runs of one learner."""
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
    """Speedup of several learners over one: a point of `scaling_figure`."""

    family: str  # those of one are a line
    index: int
    learners: int
    times: float  # how much faster, or sooner, in the mean; `found` has the seeds' values
    found: Spread
    name: str


def scaling_figure(title: str, note: str, known: Sequence[Scaling], unit: str, of: str = "") -> Markup:
    """Return a chart of speedups over the number of learners, a line a family, beside the ideal."""
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


SHOWN = 0.995  # of the gradients; the rest of a long thin tail would only flatten the picture


def staleness(series: Sequence[Series]) -> Markup | None:
    """Return a chart of the ages of gradients when applied, all seeds of a series together; a sentence if each series
    has a single age; None if no age is recorded."""
    totals = {s.index: added([r.histogram for run in s.runs for r in run.staleness]) for s in series}
    recorded = [s for s in series if sum(totals[s.index])]
    if not recorded:
        return None
    spread_out = [s for s in recorded if sum(map(bool, totals[s.index])) > 1]
    title = "Staleness of gradients"
    note = "How many versions ahead the learner's own row (or the centre, with one) was when a gradient was applied."
    same: dict[tuple[int, str], list[Series]] = {}
    for s in recorded:
        if s not in spread_out:
            age = next(age for age, n in enumerate(totals[s.index]) if n)
            same.setdefault((age, _age(s, age, totals[s.index])), []).append(s)
    note += "".join(f" Always {age}: {named(found, recorded)}." for (_, age), found in sorted(same.items()))
    if not spread_out:
        return figure(title, note)
    lines = [_histogram(s, totals[s.index]) for s in spread_out]
    if any(len(totals[line.index]) > len(line.points) for line in lines):
        note += f" The oldest {percent(1 - SHOWN)} or less of each are not drawn."
    said = "; ".join(f"{s.name}: {_summary(s)}" for s in spread_out)
    return line_figure(
        title, note, lines, ChartAxes("versions", "% of gradients", from_zero=True), said, legend(spread_out)
    )


def _age(series: Series, age: int, histogram: Sequence[int]) -> str:
    """Return the label of an age, `3`; `40+` for the last bin if it has all ages above."""
    open_ended = any(one.largest >= len(one.histogram) for run in series.runs for one in run.staleness)
    return f"{age}{'+' * (open_ended and age == len(histogram) - 1)}"


def _histogram(series: Series, histogram: Sequence[int]) -> Line:
    gradients, points, rest = sum(histogram), [], sum(histogram)
    for age, count in enumerate(histogram):
        if rest <= (1 - SHOWN) * gradients:
            break
        rest -= count
        share = count / gradients
        said = f"{percent(share)}, {count:,} of {gradients:,} gradients"
        hover = f"{series.name}, staleness {_age(series, age, histogram)}: {said}"
        points.append(Point(float(age), 100 * share, hover))
    return Line(series.index, tuple(points))


def _summary(series: Series) -> str:
    means, largest = finite(run.stale_mean for run in series.runs), finite(run.stale_largest for run in series.runs)
    mean = sum(means) / len(means) if means else None
    return f"mean {plain(mean, 2)}, largest {plain(max(largest, default=None), 0)}"


def exchanges(series: Sequence[Series]) -> Markup | None:
    """Return a chart of the matrix of exchanges of each series that has any, over all seeds; None if no series has."""
    figures = []
    for s in series:
        matrix = counted(s.runs)
        if any(map(any, matrix)):
            note = gap_note(matrix) + (f" {len(s.runs)} seeds." if len(s.runs) > 1 else "")
            figures.append(figure(s.name, note, exchange_map(matrix, s.index, f"Exchanges of {s.name}. {note}")))
    return draw("exchanges", FORMULA, figures, template="parts.html") if figures else None


MOST_CELLS = 32  # learners drawn one by one in a matrix; more are drawn in groups of neighbours
CENTRE = "centre"

Matrix = list[list[int]]


def counted(runs: Sequence[Run]) -> Matrix:
    """Return the matrix of all exchanges of all runs, (L, L) or (L, L + 1); empty if none is recorded."""
    matrices = [e.matrix for run in runs for e in run.exchanges]
    height = max((len(matrix) for matrix in matrices), default=0)
    width = max((len(row) for matrix in matrices for row in matrix), default=0)
    width = min(max(width, height), height + 1)  # a row too long or too short is a damaged record's
    total = [[0] * width for _ in range(height)]
    for matrix in matrices:
        for i, row in enumerate(matrix):
            for j, count in enumerate(row[:width]):
                total[i][j] += count
    return total


def has_centre(matrix: Matrix) -> bool:
    """Return True if the last column of a matrix of exchanges is a centre."""
    return bool(matrix) and len(matrix[0]) == len(matrix) + 1


@dataclass(frozen=True)
class Gap:
    """Speed of mixing: the share of the squared distance from consensus that is gone at least, on average."""

    exchange: float  # after one exchange
    round: float  # after as many as there are learners
    learners: int  # that took part


def effective_gap(matrix: Matrix) -> Gap | None:
    """Return the spectral gap that counted pair averages imply.

    One average of rows i and j is the mixing matrix P = I - (e_i - e_j)(e_i - e_j)' / 2, a projection. Let pairs come
    independently, in the proportions n of the counts: the mean matrix is

        W = sum_ij n_ij P_ij / sum_ij n_ij,

    and since P'P = P, the expected squared distance from consensus after an exchange is x'Wx, at most the second
    eigenvalue of W times that before (Boyd et al. 2006, randomized gossip). The gap is 1 - lambda_2(W) for one
    exchange, and 1 - lambda_2(W)^L for a round of L. Learners without any exchange are left out. Zero: some learners
    never mix with others, even indirectly.

    None without exchanges, and with a centre, since exchanges with a centre are not averages.
    """
    if has_centre(matrix):
        return None
    weight = [[matrix[i][j] + matrix[j][i] if i != j else 0 for j in range(len(matrix))] for i in range(len(matrix))]
    present = [i for i, row in enumerate(weight) if any(row)]
    if not present:
        return None
    # Here, for the first matrix: a page without exchanges is made without numpy.
    import numpy as np  # noqa: PLC0415

    from roundelay.core.topology import second_eigenvalue  # noqa: PLC0415

    pairs = np.array([[weight[i][j] for j in present] for i in present], float)
    mean = np.eye(len(present)) - (np.diag(pairs.sum(1)) - pairs) / pairs.sum()
    kept = min(1.0, max(0.0, second_eigenvalue(mean)))
    kept = 1.0 if 1 - kept < 1e-12 else kept
    return Gap(1 - kept, 1 - kept ** len(present), len(present))


def gap_note(matrix: Matrix) -> str:
    """Return words on the number of exchanges and their spectral gap."""
    total = f"{sum(map(sum, matrix)):,} exchanges."
    if has_centre(matrix):
        return f"{total} With the centre they are not averages, so there is no spectral gap."
    gap = effective_gap(matrix)
    if gap is None:
        return total
    if not gap.exchange:
        return f"{total} Spectral gap 0: some learners never heard of some others by exchanges."
    return f"{total} Spectral gap {plain(gap.exchange)} an exchange, {plain(gap.round)} a round of {gap.learners}."


_IJ = "<sub>ij</sub>"
FORMULA = Markup(
    "Spectral gap: an average of rows i and j is the mixing matrix "
    f"P{_IJ} = I − (e<sub>i</sub> − e<sub>j</sub>)(e<sub>i</sub> − e<sub>j</sub>)ᵀ / 2. With n{_IJ} such exchanges "
    f"counted, W = Σ n{_IJ} P{_IJ} / Σ n{_IJ} is their mean, and the gap is 1 − λ₂(W): if pairs came independently in "
    "these proportions, an exchange would take at least that share off the squared distance from consensus, in the "
    "mean, and a round of L exchanges 1 − λ₂(W)<sup>L</sup>."
)
"""Formula of the spectral gap, for readers of the page."""


def exchange_map(matrix: Matrix, index: int, label: str) -> Markup:
    """Return a heat map of a matrix of exchanges, with many learners in groups of neighbours."""
    size = len(matrix)
    rows = groups(size, MOST_CELLS)
    centre = [(size, size + 1)] * has_centre(matrix)
    cells = [[float(sum(sum(matrix[i][c:d]) for i in range(a, b))) for c, d in [*rows, *centre]] for a, b in rows]
    names = [f"{a}" if b - a == 1 else f"{a}-{b - 1}" for a, b in rows]
    return heat_map(cells, names, index, label, [CENTRE] * len(centre))


def groups(size: int, most: int) -> list[tuple[int, int]]:
    """Divide 0 to `size` into at most `most` ranges of equal length (the last may be shorter)."""
    length = -(-size // most)
    return [(first, min(first + length, size)) for first in range(0, size, length)]
