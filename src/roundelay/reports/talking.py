"""Effects of communication, series by series: staleness of gradients, and matrices of exchanges."""

from collections.abc import Sequence

from roundelay.reports.charts import ChartAxes, Line, Point, line_chart
from roundelay.reports.mixing import counted, exchange_map, formula, gap_note
from roundelay.reports.numbers import percent, plain
from roundelay.reports.panels import figure, legend, twice
from roundelay.reports.runs import added
from roundelay.reports.series import Series, named
from roundelay.reports.svg import element, esc

SHOWN = 0.995  # of the gradients; the rest of a long thin tail would only flatten the picture


def staleness(series: Sequence[Series]) -> str:
    """Return the age of gradients when applied, all seeds of a series together; empty where none is recorded."""
    totals = {s.index: added([r.histogram for run in s.runs for r in run.staleness]) for s in series}
    recorded = [s for s in series if sum(totals[s.index])]
    if not recorded:
        return ""
    spread_out = [s for s in recorded if sum(map(bool, totals[s.index])) > 1]
    title = "Staleness of gradients"
    note = "How many versions ahead the learner's own row (or the centre, with one) was when a gradient was applied."
    same: dict[int, list[Series]] = {}
    for s in recorded:
        if s not in spread_out:
            same.setdefault(next(age for age, n in enumerate(totals[s.index]) if n), []).append(s)
    note += "".join(f" Always {age}: {named(found, recorded)}." for age, found in sorted(same.items()))
    if not spread_out:
        return figure(title, note, "")
    lines = [_histogram(s, totals[s.index]) for s in spread_out]
    cut = max((len(totals[line.index]) - len(line.points) for line in lines), default=0)
    if cut > 0:
        note += f" The oldest {percent(1 - SHOWN)} or less of each are not drawn."
    said = "; ".join(f"{s.name}: {_summary(s)}" for s in spread_out)
    return figure(
        title,
        note,
        legend(spread_out)
        + twice(
            lambda width: line_chart(
                lines, width, f"{title}. {said}", ChartAxes("versions", "% of gradients", from_zero=True)
            )
        ),
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
    means = [run.stale_mean for run in series.runs if run.stale_mean is not None]
    largest = [run.stale_largest for run in series.runs if run.stale_largest is not None]
    mean = sum(means) / len(means) if means else None
    return f"mean {plain(mean, 2)}, largest {plain(max(largest, default=None), 0)}"


def exchanges(series: Sequence[Series]) -> str:
    """Return a matrix of every series whose learners exchange, all seeds together; empty where none do."""
    figures = []
    for s in series:
        matrix = counted(s.runs)
        if any(map(any, matrix)):
            seeds = f" {len(s.runs)} seeds." if len(s.runs) > 1 else ""
            note = f"{gap_note(matrix)}{seeds}"
            figures.append(figure(s.name, note, exchange_map(matrix, s.index, f"Exchanges of {s.name}. {note}")))
    if not figures:
        return ""
    title = element("h3", esc("Who exchanged with whom"))
    said = element("p", esc("Row began, column answered. Darker: more often."))
    return element("div", title, said, formula(), element("div", *figures, class_="three"), class_="panel who")
