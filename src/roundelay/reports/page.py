"""One HTML page of any number of runs; and one run by itself: facts, staleness, work, exchanges, epochs and recipe."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from markupsafe import Markup

from roundelay.core.files import write_text
from roundelay.core.minibatch import recorded_text
from roundelay.core.records import Evaluation
from roundelay.reports.charts import ChartAxes, ColumnBar, Line, Point, column_chart, figure, line_figure, table
from roundelay.reports.comparison import Comparison, briefly, compare_runs, shared
from roundelay.reports.headline import headline, scored_split
from roundelay.reports.markup import draw, page
from roundelay.reports.mistakes import Listen, Part, mistakes
from roundelay.reports.numbers import MISSING, percent, plain, seconds, short
from roundelay.reports.panels import (
    counted,
    exchange_map,
    exchanges,
    gap_note,
    groups,
    legend,
    speed,
    speedup,
    staleness,
    time_to_target,
    word_errors,
)
from roundelay.reports.runs import Run, State, added, load_runs, worded
from roundelay.reports.series import Series, finite, named
from roundelay.reports.table import columns, means, means_table, summary_table
from roundelay.reports.timeline import timeline

Value = Callable[[Evaluation], float]
Place = Callable[[Run, Evaluation], float]
"""Function from a run and one of its evaluations to the place on the horizontal axis."""


def _over(over: str, series: Sequence[Series]) -> tuple[str, Place]:
    """Return the title of the curves' horizontal axis, and the function to places on it."""
    runs = [run for s in series for run in s.runs]
    if over == "frames":
        return f"{worded(runs).examples} trained, all learners", lambda run, e: float(e.frames)
    longest = max(finite(run.clock(e) for run in runs for e in run.evaluations), default=0.0)
    unit, size = ("seconds", 1.0) if longest < 600 else ("minutes", 60.0) if longest < 7200 else ("hours", 3600.0)
    virtual = "virtual " * all(run.simulated for run in runs)
    return virtual + unit, lambda run, e: run.clock(e) / size


def curves(series: Sequence[Series], over: str) -> Markup:
    """Return a chart of held-out loss over "frames", or the unit counted, or over "seconds"."""
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
    """Return a chart of the distance between learners' rows at the end of each epoch, over seconds; None without
    several learners."""
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
    """Return the evaluations of a run to draw: the untrained model's (epoch -1) only if there is no other, since it
    would flatten the curve."""
    return [e for e in run.evaluations if e.epoch >= 0] or run.evaluations


def _lines(series: Series, place: Place, value: Value, unit: str) -> list[Line]:
    """Return the lines of a series: the mean with its band and each seed thin behind it, or each run if there is no
    mean."""
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
    """Return the line of means over seeds, at each epoch that all seeds finished; None if there is no such epoch. A
    mean is not finite if one of its values is not."""
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
    """Return the mean of the values; NaN if one of them, or their sum, is not finite."""
    total = sum(values)
    return total / len(values) if math.isfinite(total) else math.nan


def _epoch(e: Evaluation) -> str:
    return f"epoch {e.epoch + 1}" if e.epoch >= 0 else "before training"


def _written(value: float, unit: str) -> str:
    return f"{_number(value, unit)} {unit}".rstrip()


def _number(value: float, unit: str) -> str:
    return plain(value) if unit else short(value)


def _ceiling(lines: Sequence[Line]) -> float:
    """Return the height at which curves are cut off, so that first epochs or a run that diverged do not flatten the
    rest; infinite if cutting would gain little. The end of a run is always shown, unless it is far out."""
    each = [finite(p.y for p in line.points) for line in lines]
    values = sorted(value for line in each for value in line)
    if len(values) < 6:
        return math.inf
    low, middle, high = values[0], values[len(values) // 2], values[-1]
    enough = max([low + 3 * (middle - low), *(line[-1] for line in each if line and line[-1] <= 5 * middle)])
    return enough if high - low > 1.4 * (enough - low) > 0 else math.inf


UNFOLDED = 4  # runs whose details stand open
MANY_SERIES = 8  # above it curves show those that are ticked
FIRST_SHOWN = 5


def write_report(
    folders: Sequence[Path],
    out: Path,
    target: float | None = None,
    warnings: Sequence[str] = (),
    listen: Listen | None = None,
) -> Path:
    """Read run directories and write the page about them; return its path.

    Args:
        target: held-out loss (nats per frame) to which seconds are counted; None: one that all runs reached.
        warnings: other facts that a reader must know, each a sentence under the headline.
        listen: finds the sounds of utterances for the page; None: no sound.

    Raises:
        UserError: folders are no run directories (names all), or the page cannot be written.
    """
    write_text(out, render_html(load_runs(folders), target, warnings, listen=listen))
    return out


def render_html(
    runs: Sequence[Run],
    target: float | None = None,
    warnings: Sequence[str] = (),
    tables: Sequence[Markup] = (),
    listen: Listen | None = None,
) -> str:
    """Return the page about `runs`; if given, `tables` stand in place of the means over seeds. Equal runs give an equal
    page, byte for byte."""
    whole = compare_runs(runs, target)
    common = shared(whole.series)
    comparison = briefly(whole, common)
    series = comparison.series
    corpora = list(dict.fromkeys(run.results.corpus for run in runs if run.results.corpus))
    race, over_seconds, over_frames = time_to_target(comparison), curves(series, "seconds"), curves(series, "frames")
    scaling = [panel for panel in (speed(series), speedup(comparison)) if panel]
    if race:
        first, learning = [race, word_errors(series)], [over_seconds, over_frames]
    else:
        first, learning, scaling = [word_errors(series), over_seconds], [over_frames, *scaling[:1]], scaling[1:]
    talking = [panel for panel in (staleness(series), consensus(series)) if panel]
    if len(runs) == 1:  # its own section shows the same
        talking = []
    shown, titles = columns(runs), summary_table(runs)
    words = [place for place, column in enumerate(shown) if not column.number]
    every = table("All runs", titles[0], titles[1:], [column.meaning for column in shown], words)
    sections: dict[str, list[Part | None]] = {
        "Result": [timeline(series), first, *(tables or _over_seeds(comparison))],
        "Learning": [learning],
        "Errors": [*mistakes(series, scored_split(runs), listen)],
        "Speed": [scaling],
        "Talking": [talking, exchanges(series)] if talking else [],
        "Runs": [every, *(run_section(s, run, unfolded=len(runs) <= UNFOLDED) for s in series for run in s.runs)],
    }
    kept = {name: [part for part in parts if part] for name, parts in sections.items()}
    return page(
        "report.html",
        f"{', '.join(corpora) or 'Roundelay'}: {len(runs)} run{'s' if len(runs) > 1 else ''}",
        sound=listen is not None,
        kind="report",
        lead=headline(comparison),
        warnings=warnings,
        common=common.sentence,
        choice=_choice(series),
        sections={name: parts for name, parts in kept.items() if parts},
    )


def _choice(series: Sequence[Series]) -> list[tuple[str, int, bool]]:
    """Return the boxes by which a reader chooses among many series: name, index, and True if ticked at first."""
    if len(series) <= MANY_SERIES:
        return []
    losses = [(min(finite(run.cross_entropy for run in s.runs), default=math.inf), s.index) for s in series]
    first = {index for _, index in sorted(losses)[:FIRST_SHOWN]}
    return [(s.name, s.index, s.index in first or s.runs[0].results.learners == 1) for s in series]


def _over_seeds(comparison: Comparison) -> list[Markup]:
    rows = means_table(comparison)
    if not rows:
        return []
    meanings = ["who talks to whom, and when", *(column.meaning for column in means(comparison))]
    several = any(len(s.runs) > 1 for s in comparison.series)
    caption = "Means over seeds ± standard deviation of one run" if several else "Beside each other"
    return [table(caption, rows[0], rows[1:], meanings)]


MOST_BARS = 96
STRAGGLER = 0.8  # of the median learner's frames


def run_section(series: Series, run: Run, *, unfolded: bool) -> Markup:
    """Return the section with everything about one run, folded away unless `unfolded`."""
    figures = [staleness([replace(series, runs=(run,))]) or figure("Staleness of gradients", "None recorded.")]
    if run.results.learners > 1:
        figures += [_frames(series, run), _exchanges(series, run)]
    ended, results = run.state is State.FINISHED, run.results
    facts = {
        "state": run.state.value if ended else run.stopped,
        "stopped": run.stopped if ended else "",
        "machine": results.machine,
        "commit": results.commit,
        "runtime": results.runtime,
        "parameters": short(results.parameters),
        "minibatch": recorded_text(results),
        "started from": results.started_from,
        "real time": seconds(results.wall_seconds),
        "virtual time": "" if results.virtual_seconds is None else seconds(results.virtual_seconds),
        "folder": str(run.folder),
    }
    return draw("section", series, run, facts, figures, _epochs(run), unfolded, template="run.html")


def _frames(series: Series, run: Run) -> Markup:
    examples = run.wording.examples
    title = f"{examples.capitalize()} by learner"
    frames = added([s.learner_frames for s in run.segments])
    if not any(frames):
        return figure(title, "No epoch finished yet.")
    usual = median(frames)
    slow = [rank for rank, n in enumerate(frames) if n < STRAGGLER * usual]
    note = "All within 20 % of the median learner."
    if slow:
        who = ", ".join(f"{rank} ({100 * frames[rank] / usual:.0f} %)" for rank in slow[:4])
        note = f"Behind the median learner: {who}{' and more' if len(slow) > 4 else ''}."
    bars = []
    together = groups(len(frames), MOST_BARS)
    for first, end in together:
        least = min(range(first, end), key=lambda rank: frames[rank])
        hover = f"learner {least}: {frames[least]:,} {examples}"
        bars.append(ColumnBar(str(first), float(frames[least]), hover, frames[least] < STRAGGLER * usual))
    if len(together) < len(frames):
        note += f" A column is the slowest of {together[0][1]} neighbours."
    return figure(title, note, column_chart(bars, series.index, f"{title}. {note}", "learner", examples))


def _exchanges(series: Series, run: Run) -> Markup:
    title = "Exchanges"
    matrix = counted([run])
    if not any(map(any, matrix)):
        return figure(title, "None: this strategy makes no one-sided exchanges.")
    note = f"Row began, column answered. {gap_note(matrix)}"
    return figure(title, note, exchange_map(matrix, series.index, f"{title} between learners. {note}"))


def _epochs(run: Run) -> Markup | None:
    """Return the table of a run's epochs, with the numbers of the curves."""
    segments, evaluations = {s.epoch: s for s in run.segments}, {e.epoch: e for e in run.evaluations}
    ages: Mapping[int, float] = {s.epoch: s.mean for s in run.staleness}
    epochs = sorted({*segments, *evaluations})
    if not epochs:
        return None
    examples = run.wording.examples
    titles = ["epoch", "learning rate", examples, "time", f"{examples}/s", "training loss", "training accuracy"]
    titles += [f"{run.held_out} loss", f"{run.held_out} accuracy", "kept", "consensus distance", "mean staleness"]
    rows = []
    for epoch in epochs:
        s, e = segments.get(epoch), evaluations.get(epoch)
        at = e or s
        clock = 0.0 if at is None else run.clock(at)
        rows.append(
            [
                str(epoch + 1) if epoch >= 0 else "before",
                f"{s.learning_rate:.3g}" if s else MISSING,
                short(e.frames if e else s.frames if s else 0),
                seconds(clock),
                short(s.frames_per_second) if s else MISSING,
                plain(s.loss) if s else MISSING,
                percent(s.accuracy) if s else MISSING,
                plain(e.cross_entropy) if e else MISSING,
                percent(e.accuracy) if e else MISSING,
                ("yes" if e.accepted else "no") if e else MISSING,
                f"{e.consensus_distance:.2g}" if e else MISSING,
                plain(ages.get(epoch), 2),
            ]
        )
    return table(f"Epochs of {run.name}", titles, rows, words=())
