"""The table of runs: the same cells for the page and for the terminal."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from roundelay.report.numbers import MISSING, percent, plain, short
from roundelay.report.runs import Run
from roundelay.report.series import Series, finite, scored, series_of, wrong

CELL = 36  # characters of a cell where runs stand side by side: two runs in a terminal of 90


@dataclass(frozen=True)
class Column:
    """One quantity of a run."""

    title: str
    meaning: str  # for the page: what exactly, in which unit
    cell: Callable[[Run], str]
    number: bool = True


def _words(run: Run, split: str) -> str:
    errors = run.results.wer.get(split)
    return MISSING if errors is None else f"{plain(errors.wer, 2)} % ({wrong(errors)}/{errors.ref})"


def _staleness(run: Run) -> str:
    if run.stale_mean is None or run.stale_largest is None:
        return MISSING
    return f"{plain(run.stale_mean, 2)} / {plain(run.stale_largest, 0)}"


COLUMNS = (
    Column("run", "the run's directory", lambda run: run.name, number=False),
    Column("strategy", "who talks to whom, and when", lambda run: run.results.label, number=False),
    Column("learners", "data-parallel learners", lambda run: str(run.results.learners)),
    Column("seed", "of every random number", lambda run: str(run.results.seed)),
    Column("test WER", "word error rate, and errors of words in the references", lambda run: _words(run, "test")),
    Column("dev WER", "the same on the held-out split that chose the acoustic scale", lambda run: _words(run, "dev")),
    Column("dev loss", "frame cross-entropy on held-out speech, nats per frame",
           lambda run: plain(run.cross_entropy)),
    Column("dev accuracy", "frames whose tied state was the likeliest",
           lambda run: percent(run.accuracy)),
    Column("frames", "frames trained, all learners", lambda run: short(run.results.frames_seen)),
    Column("seconds", "of training; virtual where simulated",
           lambda run: plain(run.seconds, 1) + (" virtual" if run.simulated else "")),
    Column("frames/s", "frames trained per second, all learners, evaluation left out",
           lambda run: MISSING if run.frames_per_second is None else short(run.frames_per_second)),
    Column("staleness", "age of gradients when applied, mean / largest, in versions of the own row", _staleness),
    Column("stopped", "why, or how far", lambda run: run.stopped, number=False),
)  # fmt: skip


def summary_table(runs: Sequence[Run]) -> list[list[str]]:
    """The titles, then a row of cells per run."""
    return [[column.title for column in COLUMNS], *([column.cell(run) for column in COLUMNS] for run in runs)]


def means_table(runs: Sequence[Run]) -> list[list[str]]:
    """Means over seeds with the smallest and the largest, a row per series; empty unless something was run twice."""
    series = series_of(runs)
    if all(len(s.runs) == 1 for s in series):
        return []
    titles = ["strategy", "seeds", "test WER", "dev WER", "dev loss", "frames/s"]
    return [titles, *(_means(s) for s in series)]


def _means(series: Series) -> list[str]:
    runs = series.runs
    return [
        series.name,
        ", ".join(str(run.results.seed) for run in runs),
        _spread([e.wer for e in scored(series, "test")], " %", 2),
        _spread([e.wer for e in scored(series, "dev")], " %", 2),
        _spread([run.cross_entropy for run in runs], "", 3),
        _spread([run.frames_per_second for run in runs], "", 0),
    ]


def _spread(values: Sequence[float | None], unit: str, digits: int) -> str:
    """`5.95 % (5.30 to 6.34)`; says how many were left out because they are no numbers."""
    known = finite(values)
    if not known:
        return MISSING
    text = f"{plain(fmean(known), digits)}{unit}"
    if len(known) > 1:
        text += f" ({plain(min(known), digits)} to {plain(max(known), digits)})"
    broken = sum(value is not None and not math.isfinite(value) for value in values)
    return text + (f", {broken} not finite" if broken else "")


def text_table(runs: Sequence[Run], width: int = 100) -> str:
    """The table for a terminal of `width` characters, and means over seeds if there are any; no newline at the end.

    A few runs stand side by side, which is how two runs are compared; more stand below each other, their columns in as
    many blocks as the width asks for.
    """
    rows = [[cell if len(cell) <= CELL else cell[: CELL - 1] + "…" for cell in row] for row in summary_table(runs)]
    beside = _aligned([list(line) for line in zip(*rows, strict=True)], [False] * len(rows))
    if len(runs) > 1 and max(map(len, beside)) <= width:
        blocks = [beside]
    else:
        blocks = _packed(rows, [column.number for column in COLUMNS], width)
    means = means_table(runs)
    if means:
        blocks += _packed(means, [False] + [True] * 5, width)
    return "\n\n".join("\n".join(block) for block in blocks)


def _packed(rows: Sequence[Sequence[str]], numbers: Sequence[bool], width: int) -> list[list[str]]:
    """Columns in blocks of at most `width` characters (a lone one may be wider), the first column repeated in each."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    blocks: list[list[int]] = []
    room = 0
    for place in range(1, len(widths)):
        room -= widths[place] + 2
        if room < 0:
            blocks.append([0])
            room = width - widths[0] - widths[place] - 2
        blocks[-1].append(place)
    return [_aligned([[row[p] for p in block] for row in rows], [numbers[p] for p in block]) for block in blocks]


def _aligned(rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in rows
    ]
