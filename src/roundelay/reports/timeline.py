"""Timelines of learners, a lane each: a picture in the page, and a trace for Perfetto."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from markupsafe import Markup

from roundelay.core.files import write_text
from roundelay.core.records import SPAN_KINDS, Timeline
from roundelay.reports.charts import axis, figure
from roundelay.reports.markup import draw
from roundelay.reports.numbers import percent, plain, seconds
from roundelay.reports.runs import Run
from roundelay.reports.series import Series

MOST_SERIES, MOST_LANES = 6, 8
WORTH_SAYING = 0.01
"""Share of time waiting from which a learner's waits are mentioned."""
GRADIENTS = 8
"""Number of gradients of the slowest learner that a timeline shows."""
WHOLE_WIDTH, HALF_WIDTH = 1120.0, 330.0
LANE, GAP, NAME = 21.0, 5.0, 22.0  # pixels: from a lane to the next, more after the last, and of the name above
KIND_WORDS = {
    "gradient": "gradient",
    "update": "step, exchanges that go with it",
    "exchange": "exchange",
    "mean": "mean, waits for others",
    "minibatch": "wait for a minibatch",
}


def timeline(series: Sequence[Series]) -> Markup | None:
    """Return the timelines of one run of each series on one time scale; None if no run has learners that meet."""
    shown = [(s, one) for s in series if (one := _last(s.runs[0])) is not None][:MOST_SERIES]
    ends = [lane[-1][2] for _, one in shown for lane in one.lanes if lane]
    if not ends:
        return None
    slowest = max(
        (median(some) for _, one in shown for lane in one.lanes if (some := _gradients(one, lane))), default=0.0
    )
    end = min(*ends, GRADIENTS * slowest or ends[0])
    said = "; ".join(_waits(s.name, one, end) for s, one in shown)
    long = f"{plain(1e3 * end, 0)} ms" if end < 1 else seconds(end)
    clock = " in virtual time" if all(s.runs[0].simulated for s, _ in shown) else ""
    note = f"The first {long} of an epoch{clock}, a lane for each learner. {said}."
    kinds = [kind for kind in SPAN_KINDS if any(_of(one, kind, end) for _, one in shown)]
    legend = draw("kinds", [(kind, KIND_WORDS[kind]) for kind in kinds], template="parts.html")

    def lanes(width: float) -> Markup:
        return _chart(shown, end, width, f"Timeline. {said}")

    return figure("Who works and who waits", note, legend, lanes, widths=(WHOLE_WIDTH, HALF_WIDTH))


def write_trace(runs: Sequence[Run], out: Path) -> Path:
    """Write the timelines of `runs` as a Chrome trace (JSON), for ui.perfetto.dev or chrome://tracing; return `out`.

    Each run and epoch is a process there, each learner a thread.
    """
    events: list[dict[str, Any]] = []
    known = [(run, one) for run in runs for one in run.timelines]
    for process, (run, one) in enumerate(known):
        name = f"{run.name}: {run.results.label}, epoch {one.epoch + 1}"
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})
        for rank, lane in enumerate(one.lanes):
            place = {"pid": process, "tid": rank}
            events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": f"learner {rank}"}})
            events += [
                {"ph": "X", "name": one.kinds[int(kind)], "ts": 1e6 * start, "dur": 1e6 * (stop - start), **place}
                for kind, start, stop in lane
            ]
    write_text(out, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return out


def _last(run: Run) -> Timeline | None:
    """Return the last timeline of a run with several lanes; one of a replacement has only a lane of its own."""
    return next((one for one in reversed(run.timelines) if sum(map(bool, one.lanes)) > 1), None)


def _gradients(one: Timeline, lane: Sequence[Sequence[float]]) -> list[float]:
    return [stop - start for kind, start, stop in lane if one.kinds[int(kind)] == "gradient"]


def _of(one: Timeline, kind: str, end: float) -> bool:
    return any(one.kinds[int(number)] == kind and start < end for lane in one.lanes for number, start, _ in lane)


def _waits(name: str, one: Timeline, end: float) -> str:
    """Return a sentence on the learner that waits most: the share of the time up to `end`."""
    most, who = 0.0, 0
    for rank, lane in enumerate(one.lanes):
        waits = [span for span in lane if one.kinds[int(span[0])] in ("mean", "minibatch")]
        spent = sum(max(0.0, min(stop, end) - start) for _, start, stop in waits)
        if spent > most:
            most, who = spent, rank
    if most < WORTH_SAYING * end:
        return f"{name}: no learner waits"
    return f"{name}: learner {who} waits {percent(most / end)} of it"


def _chart(shown: Sequence[tuple[Series, Timeline]], end: float, width: float, label: str) -> Markup:
    scale, unit = (1e3, "ms") if end < 1 else (1.0, "s")
    ticks = axis([0.0, scale * end], 16.0, width - 8, from_zero=True, about=6 if width > HALF_WIDTH else 3)
    x = replace(ticks, high=scale * end, ticks=tuple(tick for tick in ticks.ticks if tick <= scale * end))
    rows: list[tuple[float, str, list[tuple[str, str, float, float]] | None]] = []
    top = 4.0
    for s, one in shown:
        more = f", learners 0 to {MOST_LANES - 1} of {len(one.lanes)}" if len(one.lanes) > MOST_LANES else ""
        rows.append((top, s.name + more, None))
        top += NAME
        for rank, lane in enumerate(one.lanes[:MOST_LANES]):
            spans = [(one.kinds[int(kind)], start, stop) for kind, start, stop in lane if start < end]
            drawn = [
                (
                    kind,
                    f"learner {rank}: {kind}, {seconds(stop - start)}",
                    x.place(scale * start),
                    x.place(scale * min(stop, end)),
                )
                for kind, start, stop in spans
            ]
            rows.append((top, str(rank), drawn))
            top += LANE
        top += GAP
    return draw("lanes", rows, width, label, unit, x, top)
