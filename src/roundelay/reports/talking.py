"""Effects of communication, series by series: staleness of gradients, and matrices of exchanges."""

from collections.abc import Sequence

from markupsafe import Markup

from roundelay.reports.charts import ChartAxes, Line, Point, figure, line_figure
from roundelay.reports.markup import draw
from roundelay.reports.mixing import FORMULA, counted, exchange_map, gap_note
from roundelay.reports.numbers import percent, plain
from roundelay.reports.panels import legend
from roundelay.reports.runs import added
from roundelay.reports.series import Series, finite, named

SHOWN = 0.995  # of the gradients; the rest of a long thin tail would only flatten the picture


def staleness(series: Sequence[Series]) -> Markup | None:
    """Return the age of gradients when applied, all seeds of a series together; None where none is recorded."""
    totals = {s.index: added([r.histogram for run in s.runs for r in run.staleness]) for s in series}
    recorded = [s for s in series if sum(totals[s.index])]
    if not recorded:
        return None
    spread_out = [s for s in recorded if sum(map(bool, totals[s.index])) > 1]
    title = "Staleness of gradients"
    note = "How many versions ahead the learner's own row (or the centre, with one) was when a gradient was applied."
    same: dict[int, list[Series]] = {}
    for s in recorded:
        if s not in spread_out:
            same.setdefault(next(age for age, n in enumerate(totals[s.index]) if n), []).append(s)
    note += "".join(f" Always {age}: {named(found, recorded)}." for age, found in sorted(same.items()))
    if not spread_out:
        return figure(title, note)
    lines = [_histogram(s, totals[s.index]) for s in spread_out]
    if any(len(totals[line.index]) > len(line.points) for line in lines):
        note += f" The oldest {percent(1 - SHOWN)} or less of each are not drawn."
    said = "; ".join(f"{s.name}: {_summary(s)}" for s in spread_out)
    return line_figure(
        title, note, lines, ChartAxes("versions", "% of gradients", from_zero=True), said, legend(spread_out)
    )


def _histogram(series: Series, histogram: Sequence[int]) -> Line:
    gradients, points, rest = sum(histogram), [], sum(histogram)
    for age, count in enumerate(histogram):
        if rest <= (1 - SHOWN) * gradients:
            break
        rest -= count
        share = count / gradients
        hover = f"{series.name}, staleness {age}: {percent(share)}, {count:,} of {gradients:,} gradients"
        points.append(Point(float(age), 100 * share, hover))
    return Line(series.index, tuple(points))


def _summary(series: Series) -> str:
    means, largest = finite(run.stale_mean for run in series.runs), finite(run.stale_largest for run in series.runs)
    mean = sum(means) / len(means) if means else None
    return f"mean {plain(mean, 2)}, largest {plain(max(largest, default=None), 0)}"


def exchanges(series: Sequence[Series]) -> Markup | None:
    """Return a matrix of every series whose learners exchange, all seeds together; None where none do."""
    figures = []
    for s in series:
        matrix = counted(s.runs)
        if any(map(any, matrix)):
            note = gap_note(matrix) + (f" {len(s.runs)} seeds." if len(s.runs) > 1 else "")
            figures.append(figure(s.name, note, exchange_map(matrix, s.index, f"Exchanges of {s.name}. {note}")))
    return draw("exchanges", FORMULA, figures, template="parts.html") if figures else None
