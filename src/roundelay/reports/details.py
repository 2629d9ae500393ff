"""One run by itself: its facts, staleness, work per learner, exchanges, epochs and recipe."""

from collections.abc import Mapping, Sequence
from statistics import median

from markupsafe import Markup

from roundelay.core.minibatch import recorded_text
from roundelay.reports.charts import ColumnBar, column_chart, figure, table
from roundelay.reports.markup import draw
from roundelay.reports.mixing import counted, exchange_map, gap_note, groups
from roundelay.reports.numbers import MISSING, percent, plain, seconds, short
from roundelay.reports.runs import Run, State, added
from roundelay.reports.series import Series

MOST_BARS = 96
STRAGGLER = 0.8  # of the median learner's frames


def run_section(series: Series, run: Run, *, unfolded: bool) -> Markup:
    """Return everything about one run, folded away unless there are only a few."""
    figures = [_staleness(series, run)]
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


def _staleness(series: Series, run: Run) -> Markup:
    total = added([s.histogram for s in run.staleness])
    while total and not total[-1]:
        total.pop()
    title = "Staleness of gradients"
    gradients = sum(total)
    if not gradients:
        return figure(title, "None recorded.")
    if len(total) == 1:
        return figure(title, f"None: each of the {gradients:,} gradients was applied to the row it was taken from.")
    last = max(len(s.histogram) for s in run.staleness)
    bars = _staleness_bars(total, open_ended=len(total) == last and any(s.largest >= last for s in run.staleness))
    said = f"mean {plain(run.stale_mean, 2)}, largest {plain(run.stale_largest, 0)}"
    chart = column_chart(bars, series.index, f"{title}: {said}", "versions of the learner's own row", "% of gradients")
    return figure(title, f"Age when applied: {said}.", chart)


def _staleness_bars(total: Sequence[int], *, open_ended: bool) -> list[ColumnBar]:
    """Return a column per staleness; beyond a dozen, the last half per cent of gradients goes into one."""
    gradients, rest, shown = sum(total), sum(total), 0
    while shown < len(total) and (shown < 12 or rest > 0.005 * gradients):
        rest -= total[shown]
        shown += 1
    tail = [(shown, len(total))] if shown < len(total) else []
    bars = []
    for first, end in [*groups(shown, MOST_BARS), *tail]:
        above = end == len(total) and (open_ended or tail)
        name = f"{first}+" if above else f"{first}" if end - first == 1 else f"{first}-{end - 1}"
        count = sum(total[first:end])
        hover = f"staleness {name}: {percent(count / gradients)}, {count:,} of {gradients:,} gradients"
        bars.append(ColumnBar(name, 100 * count / gradients, hover))
    return bars


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
    """Return the numbers behind the curves."""
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
