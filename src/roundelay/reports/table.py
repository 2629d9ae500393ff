"""The tables of runs and of their results over seeds: the same cells for the page and for the terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Generic, TypeVar

from roundelay.reports.comparison import Comparison, Figures, briefly, compare_runs, shared, spread
from roundelay.reports.numbers import MISSING, percent, plain, short
from roundelay.reports.runs import Run, Wording, worded
from roundelay.reports.series import Series, finite, series_of, shortened, wrong
from roundelay.reports.series import words as scored_words

CHOSE_THE_SCALE = "the same on the held-out split that chose the acoustic scale"
CELL = 36  # characters of a cell where runs stand side by side: two runs in a terminal of 90


T = TypeVar("T", Run, Series)


@dataclass(frozen=True)
class Column(Generic[T]):
    """One quantity of a run, or of a series."""

    title: str
    meaning: str  # for the page: the exact meaning and the unit
    cell: Callable[[T], str]
    number: bool = True


def _words(run: Run, split: str, subset: str | None = None) -> str:
    errors = run.results.wer.get(split)
    if subset is not None:
        errors = errors and errors.subsets.get(subset)
    return MISSING if errors is None else f"{plain(errors.wer, 2)} % ({wrong(errors)}/{errors.ref})"


def _seconds(run: Run) -> str:
    return plain(run.seconds, 1) + " virtual" * run.simulated


def _speed(run: Run) -> str:
    return MISSING if run.frames_per_second is None else short(run.frames_per_second)


def _staleness(run: Run) -> str:
    if run.stale_mean is None or run.stale_largest is None:
        return MISSING
    return f"{plain(run.stale_mean, 2)} / {plain(run.stale_largest, 0)}"


def _columns(words: Wording) -> list[Column[Run]]:
    """Return the columns of the table of runs, in these words for what runs count and measure."""
    what, loss = words.examples, f"{words.loss_meaning} on held-out speech, {words.unit}"
    ages = "age of gradients when applied, mean / largest, in versions of the own row or the centre"
    return [
        Column("run", "the run's directory", lambda run: run.name, number=False),
        Column("strategy", "who talks to whom, and when", lambda run: run.results.label, number=False),
        Column("learners", "data-parallel learners", lambda run: str(run.results.learners)),
        Column("seed", "of every random number", lambda run: str(run.results.seed)),
        Column("test WER", "word error rate, and errors of words in the references", partial(_words, split="test")),
        Column("dev WER", CHOSE_THE_SCALE, partial(_words, split="dev")),
        Column("dev loss", loss, lambda run: plain(run.cross_entropy)),
        Column("dev accuracy", words.right_meaning, lambda run: percent(run.accuracy)),
        Column(what, f"{what} trained, all learners", lambda run: short(run.results.frames_seen)),
        Column("seconds", "of training; virtual where simulated", _seconds),
        Column(f"{what}/s", f"{what} trained per second, all learners, evaluation left out", _speed),
        Column("staleness", ages, _staleness),
        Column("stopped", "why, or how far", lambda run: run.stopped, number=False),
    ]


def columns(runs: Sequence[Run]) -> list[Column[Run]]:
    """Return the table's columns for `runs`, without those in which all agree, with subsets of the test split."""
    usual = _columns(worded(runs))
    splits = [errors for run in runs if (errors := run.results.wer.get("test"))]
    parts = [
        Column(f"test {name} WER", f"the same on the subset {name}", partial(_words, split="test", subset=name))
        for name in dict.fromkeys(name for errors in splits for name in errors.subsets)
    ]
    common = shared(series_of(runs))
    one_seed = common.seeds and len({run.results.seed for run in runs}) == 1
    told = {"learners": common.learners, "seed": one_seed}
    usual = [column for column in usual if not told.get(column.title)]
    place = next(place for place, column in enumerate(usual) if column.title == "dev WER")
    return [*usual[:place], *parts, *usual[place:]]


def summary_table(runs: Sequence[Run]) -> list[list[str]]:
    """Return the titles, then a row of cells per run."""
    shown = columns(runs)
    return [[column.title for column in shown], *([column.cell(run) for column in shown] for run in runs)]


def means(comparison: Comparison, *, seeds: bool = False) -> list[Column[Series]]:
    """Return the columns of the table over seeds, without empty ones; seeds only if their number differs, or
    `seeds`."""
    target = "" if comparison.target is None else f"{comparison.target:.4g}"
    words = worded(run for run, _ in comparison.figures)
    clock = "virtual s" if all(run.simulated for run, _ in comparison.figures) else "seconds"
    rate, baseline = f"{words.examples} per second", "the one-learner run"
    loss = f"{words.loss_meaning} on held-out speech, {words.unit}"
    speedup = f"{rate} over those of {baseline} of the same seed, evaluation left out"
    reached = f"until the held-out loss was {target}, linear between evaluations; real seconds include evaluating"
    ages = "mean age of gradients when applied, in versions of the own row or the centre; the largest of any seed"

    def over(figure: Callable[[Run, Figures], float | None], digits: int) -> Callable[[Series], str]:
        return lambda s: spread(figure(run, comparison.of(run)) for run in s.runs).written(digits, of=len(s.runs))

    def errors(split: str) -> Callable[[Series], str]:
        return over(lambda run, _: found.wer if (found := scored_words(run, split)) else None, 2)

    def time(series: Series) -> str:
        never = comparison.target is not None and all(run.evaluations for run in series.runs)
        found = over(lambda _, f: f.seconds_to_target, 1)(series)
        return "never" if found == MISSING and never else found

    def stale(series: Series) -> str:
        oldest = finite(run.stale_largest for run in series.runs)
        mean = over(lambda run, _: run.stale_mean, 2)(series)
        return f"{mean}, {plain(max(oldest), 0)}" if oldest and mean != MISSING else MISSING

    columns: list[Column[Series]] = [
        Column("seeds", "of the runs behind the row", lambda s: ", ".join(str(run.results.seed) for run in s.runs)),
        Column("test WER %", "word error rate", errors("test")),
        Column("dev WER %", CHOSE_THE_SCALE, errors("dev")),
        Column("dev loss", loss, over(lambda run, _: run.cross_entropy, 3)),
        Column("speedup", speedup, over(lambda _, f: f.speedup, 2)),
        Column(f"{clock} to {target}", reached, time),
        Column("times sooner", f"{baseline}'s seconds to that loss over these", over(lambda _, f: f.sooner, 2)),
        Column(
            "speed kept %",
            f"with a straggler: {rate} over those of the same run without",
            over(lambda _, f: None if f.undisturbed is None else 100 * f.undisturbed, 1),
        ),
        Column("staleness, largest", ages, stale),
    ]
    if not seeds and shared(comparison.series).seeds:
        del columns[0]
    always = ("seeds", "dev loss")
    return [c for c in columns if c.title in always or any(c.cell(s) != MISSING for s in comparison.series)]


def means_table(comparison: Comparison, *, always: bool = False) -> list[list[str]]:
    """Return titles, then a row per series: mean ± standard deviation over seeds. Without `always`, empty if no series
    has two runs."""
    if not always and len(comparison.series) < 2 and all(len(s.runs) == 1 for s in comparison.series):
        return []
    columns = means(comparison, seeds=always)
    names = shortened([s.name for s in comparison.series])
    rows = [[name, *(c.cell(s) for c in columns)] for name, s in zip(names, comparison.series, strict=True)]
    return [["strategy", *(column.title for column in columns)], *rows]


def text_table(runs: Sequence[Run], width: int = 100, target: float | None = None) -> str:
    """Return the table of runs for a terminal of `width` characters, and means over seeds if there are any; no newline
    at the end.

    A few runs stand side by side, which is how two runs are compared; more stand below each other, their columns in as
    many blocks as the width asks for.
    """
    rows = [[cell if len(cell) <= CELL else cell[: CELL - 1] + "…" for cell in row] for row in summary_table(runs)]
    beside = _aligned([list(line) for line in zip(*rows, strict=True)], [False] * len(rows))
    if len(runs) > 1 and max(map(len, beside)) <= width:
        blocks = [beside]
    else:
        blocks = packed(rows, [column.number for column in columns(runs)], width)
    comparison = compare_runs(runs, target)
    common = shared(comparison.series)
    over_seeds = means_table(briefly(comparison, common))
    if over_seeds:
        blocks += packed(over_seeds, [False] + [True] * len(over_seeds[0]), width)
    return as_text([*([wrap(common.sentence, width)] if common.sentence else []), *blocks])


def as_text(blocks: Sequence[Sequence[str]]) -> str:
    """Join blocks of lines, with an empty line between blocks."""
    return "\n\n".join("\n".join(block) for block in blocks)


def packed(rows: Sequence[Sequence[str]], numbers: Sequence[bool], width: int) -> list[list[str]]:
    """Divide a table into blocks of columns, each at most `width` characters wide (a lone column may be wider), with
    the first column repeated."""
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
