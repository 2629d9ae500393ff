"""The tables of runs and of what they come to over seeds: the same cells for the page and for the terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap

from roundelay.reports.comparison import Comparison, Figures, Spread, briefly, compare_runs, shared, spread
from roundelay.reports.numbers import MISSING, percent, plain, short
from roundelay.reports.runs import Run, worded
from roundelay.reports.series import Series, scored, series_of, shortened, wrong
from roundelay.reports.wording import Wording

CELL = 36  # characters of a cell where runs stand side by side: two runs in a terminal of 90


@dataclass(frozen=True)
class Column:
    """One quantity of a run."""

    title: str
    meaning: str  # for the page: what exactly, in which unit
    cell: Callable[[Run], str]
    number: bool = True


def _words(run: Run, split: str, subset: str | None = None) -> str:
    errors = run.results.wer.get(split)
    if subset is not None:
        errors = errors and errors.subsets.get(subset)
    return MISSING if errors is None else f"{plain(errors.wer, 2)} % ({wrong(errors)}/{errors.ref})"


def _staleness(run: Run) -> str:
    if run.stale_mean is None or run.stale_largest is None:
        return MISSING
    return f"{plain(run.stale_mean, 2)} / {plain(run.stale_largest, 0)}"


def _columns(words: Wording) -> list[Column]:
    """Return the columns of runs that count and measure so."""
    return [
        Column("run", "the run's directory", lambda run: run.name, number=False),
        Column("strategy", "who talks to whom, and when", lambda run: run.results.label, number=False),
        Column("learners", "data-parallel learners", lambda run: str(run.results.learners)),
        Column("seed", "of every random number", lambda run: str(run.results.seed)),
        Column("test WER", "word error rate, and errors of words in the references", lambda run: _words(run, "test")),
        Column(
            "dev WER", "the same on the held-out split that chose the acoustic scale", lambda run: _words(run, "dev")
        ),
        Column(
            "dev loss", f"{words.loss_meaning} on held-out speech, {words.unit}", lambda run: plain(run.cross_entropy)
        ),
        Column("dev accuracy", words.right_meaning, lambda run: percent(run.accuracy)),
        Column(words.examples, f"{words.examples} trained, all learners", lambda run: short(run.results.frames_seen)),
        Column(
            "seconds",
            "of training; virtual where simulated",
            lambda run: plain(run.seconds, 1) + (" virtual" if run.simulated else ""),
        ),
        Column(
            f"{words.examples}/s",
            f"{words.examples} trained per second, all learners, evaluation left out",
            lambda run: MISSING if run.frames_per_second is None else short(run.frames_per_second),
        ),
        Column(
            "staleness",
            "age of gradients when applied, mean / largest, in versions of the own row or the centre",
            _staleness,
        ),
        Column("stopped", "why, or how far", lambda run: run.stopped, number=False),
    ]


def columns(runs: Sequence[Run]) -> list[Column]:
    """Return the columns for these runs, without what all share; subsets of the test split beside it where it has
    any."""
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


@dataclass(frozen=True)
class Mean:
    """One quantity of a series: what it is, and its cell."""

    title: str
    meaning: str
    cell: Callable[[Series], str]


def means(comparison: Comparison, *, seeds: bool = False) -> list[Mean]:
    """Return the columns of the table over seeds, without those that nothing is known for; seeds where they differ, or
    if `seeds`."""
    loss = "" if comparison.target is None else f"{comparison.target:.4g}"
    words = worded(run for run, _ in comparison.figures)
    clock = "virtual s" if all(run.simulated for run, _ in comparison.figures) else "seconds"

    def over(figure: Callable[[Run], float | None], digits: int) -> Callable[[Series], str]:
        return lambda s: spread(map(figure, s.runs)).written(digits, of=len(s.runs))

    def paired(figure: Callable[[Figures], float | None], digits: int) -> Callable[[Series], str]:
        return lambda s: comparison.over_seeds(s, figure).written(digits, of=len(s.runs))

    columns = [
        Mean("seeds", "of the runs behind the row", lambda s: ", ".join(str(run.results.seed) for run in s.runs)),
        Mean("test WER %", "word error rate", _error_rate("test")),
        Mean("dev WER %", "the same on the held-out split that chose the acoustic scale", _error_rate("dev")),
        Mean("dev loss", f"{words.loss_meaning} on held-out speech, {words.unit}", over(lambda r: r.cross_entropy, 3)),
        Mean(
            "speedup",
            f"{words.examples} per second over those of the one-learner run of the same seed, evaluation left out",
            paired(lambda f: f.speedup, 2),
        ),
        Mean(
            f"{clock} to {loss}",
            f"until the held-out loss was {loss}, linear between evaluations; real seconds include evaluating",
            lambda s: _time(comparison, s),
        ),
        Mean(
            "times sooner",
            "the one-learner run's seconds to that loss over these",
            paired(lambda f: f.sooner, 2),
        ),
        Mean(
            "speed kept %",
            f"with a straggler: {words.examples} per second over those of the same run without",
            paired(lambda f: None if f.undisturbed is None else 100 * f.undisturbed, 1),
        ),
        Mean(
            "staleness, largest",
            "mean age of gradients when applied, in versions of the own row or the centre; the largest of any seed",
            _stale_spread,
        ),
    ]
    if not seeds and shared(comparison.series).seeds:
        del columns[0]
    always = ("seeds", "dev loss")
    return [c for c in columns if c.title in always or any(c.cell(s) != MISSING for s in comparison.series)]


def means_table(comparison: Comparison, *, always: bool = False) -> list[list[str]]:
    """Return titles, then a row per series: mean ± standard deviation over seeds. Empty, unless `always`, without a
    second run to compare with."""
    if not always and len(comparison.series) < 2 and all(len(s.runs) == 1 for s in comparison.series):
        return []
    columns = means(comparison, seeds=always)
    names = shortened([s.name for s in comparison.series])
    rows = [[name, *(c.cell(s) for c in columns)] for name, s in zip(names, comparison.series, strict=True)]
    return [["strategy", *(column.title for column in columns)], *rows]


def _error_rate(split: str) -> Callable[[Series], str]:
    def cell(series: Series) -> str:
        rates = Spread(tuple(errors.wer for errors in scored(series, split)))
        return rates.written(2, of=len(series.runs))

    return cell


def _time(comparison: Comparison, series: Series) -> str:
    found = comparison.over_seeds(series, lambda f: f.seconds_to_target)
    never = comparison.target is not None and all(run.evaluations for run in series.runs)
    return found.written(1, of=len(series.runs)) if found.values or not never else "never"


def _stale_spread(series: Series) -> str:
    ages = spread(run.stale_mean for run in series.runs)
    oldest = spread(run.stale_largest for run in series.runs)
    if not ages.values or not oldest.values:
        return MISSING
    return f"{ages.written(2, of=len(series.runs))}, {plain(max(oldest.values), 0)}"


def text_table(runs: Sequence[Run], width: int = 100, target: float | None = None) -> str:
    """Return the table for a terminal of `width` characters, and means over seeds if there are any; no newline at the
    end.

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
    """Return blocks of lines, an empty line between them."""
    return "\n\n".join("\n".join(block) for block in blocks)


def packed(rows: Sequence[Sequence[str]], numbers: Sequence[bool], width: int) -> list[list[str]]:
    """Return columns in blocks of at most `width` characters (a lone one may be wider), the first column repeated in
    each."""
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
