"""Results of `roundelay scaling`: a table for the terminal, scaling.json, and scaling.html with the picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.core.files import write_json, write_text
from roundelay.grids.results import CellState, configuration_json, outcome_json, spread_json
from roundelay.grids.scaling import OneClock, TrainedWay, rate_of
from roundelay.reports import load_run
from roundelay.reports.charts import table
from roundelay.reports.comparison import (
    Alone,
    Points,
    Spread,
    Together,
    at_end,
    beside_alone,
    kept_losses,
    kept_word_errors,
    seconds_to,
    spread,
)
from roundelay.reports.markup import page
from roundelay.reports.numbers import MISSING, plain, seconds
from roundelay.reports.panels import Scaling, scaling_figure
from roundelay.reports.series import Series, series_of, straggler_text
from roundelay.reports.table import as_text, packed
from roundelay.strategies.base import Strategy

SCALING_JSON, SCALING_HTML = "scaling.json", "scaling.html"
SCALING_SCHEMA = 1
PREDICTED = "predicted"
OF_WORDS = "seconds to WER", "sooner to WER"
SCALING_COLUMNS = {
    "strategy": "who talks to whom, and when",
    "learners": "data-parallel learners",
    "rate": "the learning rate: the best of those tried under a seed that judges nothing",
    "seconds": "until the held-out loss was that with which one learner alone ends: mean (fewest to most) of the seeds",
    PREDICTED: "seconds to the same loss of as many learners simulated at measured costs, at their own best rate",
    "times sooner": "mean seconds of one learner alone over these (least to most of the ratios, seed by seed)",
    OF_WORDS[0]: "until the word error rate was that with which one learner alone ends; decoding is not counted",
    OF_WORDS[1]: "the same ratio of these",
    "seeds": "that reached the loss, of those that judged",
}


@dataclass(frozen=True)
class Scaled:
    """The results of scaling: text for a terminal, and the files written."""

    table: str
    notes: tuple[str, ...]  # rates at an edge, losses that were not reached, failures: a sentence each
    failed: bool
    files: tuple[Path, ...]


@dataclass(frozen=True)
class _Beside:
    """A way to train compared with one learner alone, by one measure."""

    target: float | None = None  # value of the measure that seconds are counted to; None: one learner is not there yet
    # the way's own runs beside one learner; None for that one, and where not all judged runs are there.
    found: Together | None = None
    seconds: Spread = Spread(())  # to the target
    # ratios, sooner: times sooner than one learner alone, seed by seed and of the means; None: not all of its runs
    # reached the target, or are not there.
    ratios: Spread = Spread(())
    sooner: float | None = None

    @property
    def cells(self) -> list[str]:
        """Cells of the table: seconds ("" for none), and how many times sooner."""
        times = MISSING if self.sooner is None else f"{self.sooner:.2f}{_range(self.ratios, 2)}"
        return [_written(self.seconds), times]


@dataclass(frozen=True)
class _Row:
    """A row of the table: a way to train compared with one learner alone, by all measures."""

    way: TrainedWay
    virtual: bool
    # by_loss, by_words: beside it by the held-out loss, and by the word error rate.
    by_loss: _Beside
    by_words: _Beside = _Beside()
    decoded: str = ""  # the split of that; empty: nothing is decoded
    predicted: Spread = Spread(())  # seconds to the loss, of the same way simulated at measured costs

    @property
    def learners(self) -> int:
        """Number of learners."""
        return self.way.choice.tuning.configuration.learners

    @property
    def family(self) -> str:
        """Name without the number of learners: ways of the same name are a line of the picture."""
        what = self.way.choice.tuning.configuration
        parts = [what.strategy.label, straggler_text(what.stragglers), "simulated" * self.virtual]
        return ", ".join(part for part in parts if part)

    @property
    def name(self) -> str:
        """Name of the way."""
        return self.way.choice.name + ", simulated" * self.virtual

    @property
    def state(self) -> str:
        """Word that says why a way has no seconds."""
        if self.by_loss.found is not None:
            return "never"
        if self.way.choice.complete and self.way.choice.chosen is None:
            return "no rate learned"
        states = {outcome.state for outcome in self.way.judged}
        return CellState.FAILED.value if CellState.FAILED in states else CellState.WAITING.value


def summarise(clocks: Sequence[OneClock], folder: Path, width: int) -> Scaled:
    """Compare the ways to train; write scaling.json and scaling.html into `folder`."""
    rows, lead = list[_Row](), list[str]()
    simulated = {key: series for clock in clocks if clock.virtual for key, series in _by_way(clock).items()}
    for clock in clocks:
        said, found = _rows_of(clock, {} if clock.virtual else simulated)
        rows += found
        lead += said
    failures = [f"{one.cell.name}, failed: {one.error}" for row in rows for one in row.way.judged if one.error]
    failures += [f"{one.directory}, failed: {one.error}" for row in rows for one in row.way.choice.tried if one.error]
    failures += [f"{one.cell.name}: not decoded: {one.error}" for c in clocks for one in c.undecoded if one.error]
    notes = [*failures, *(note for row in rows for note in _notes(row))]
    files = folder / SCALING_JSON, folder / SCALING_HTML
    write_json(files[0], _to_json(clocks, rows))
    write_text(files[1], _page(clocks, rows, [*lead, *notes]))
    titles = _titles(rows)
    blocks = packed([titles, *_table(rows)], [False] + [True] * (len(titles) - 1), width)
    return Scaled(as_text([*blocks, lead] if lead else blocks), tuple(notes), bool(failures), files)


_Key = tuple[Strategy, int, tuple[str, ...]]
"""Identity of a way to train, on any clock: strategy, learners, stragglers."""


def _key(way: TrainedWay) -> _Key:
    what = way.choice.tuning.configuration
    return what.strategy, what.learners, what.stragglers


def _by_way(clock: OneClock) -> dict[_Key, Series]:
    """Return the judged runs of each way that has all of them."""
    found = {}
    for way in clock.ways:
        done = [one.cell.exp for one in way.judged if one.state is CellState.FINISHED]
        if done and len(done) == len(clock.trials.seeds):
            found[_key(way)] = series_of([load_run(exp) for exp in done])[0]
    return found


def _rows_of(clock: OneClock, simulated: Mapping[_Key, Series]) -> tuple[list[str], list[_Row]]:
    """Return sentences on one learner alone, and the rows of one clock's ways, with seconds of the same ways
    `simulated`."""
    series, split = _by_way(clock), clock.trials.decoded
    alone, losses = _besides(clock, series, clock.loss, kept_losses)
    words, errors = None, dict[_Key, _Beside]()
    if split:
        points, missing = kept_word_errors(split), {one.cell.exp for one in clock.undecoded}
        whole = {key: s for key, s in series.items() if not any(run.folder in missing for run in s.runs)}
        words, errors = _besides(clock, whole, clock.wer, points)
    rows = []
    for way in clock.ways:
        key = _key(way)
        times = [seconds_to(run, alone.loss) for run in simulated[key].runs] if key in simulated and alone else []
        predicted = Spread(()) if None in times else spread(times)
        by_words = errors.get(key, _Beside())
        rows.append(_Row(way, clock.virtual, losses.get(key, _Beside()), by_words, split, predicted))
    how, said = " (simulated)" * clock.virtual, list[str]()
    if alone:
        first = f"was at a held-out loss of {alone.loss:.4g} after {seconds(alone.seconds.mean)}"
        said = [f"One learner alone{how} {first}. Minibatch: {clock.trials.about}."]
    if words:
        first = f"was at a word error rate of {words.loss:.2f} % on {split} after {seconds(words.seconds.mean)}"
        said.append(f"One learner alone{how} {first}, training and evaluations counted, decoding not.")
    return said, rows


def _besides(
    clock: OneClock, series: Mapping[_Key, Series], target: float | None, points: Points
) -> tuple[Alone | None, dict[_Key, _Beside]]:
    """Compare each way with one learner alone, by the measure of `points`; return one learner's own result first."""
    first = _key(clock.ways[0])
    alone = beside_alone([*series.values()], target, points) if first in series else None
    if alone is None:
        return None, {}
    others = {id(one.series): one for one in alone.others}
    found = {first: _Beside(alone.loss, None, alone.seconds, Spread((1.0,)), 1.0)}
    for key, one in series.items():
        if (beside := others.get(id(one))) is not None:
            found[key] = _Beside(alone.loss, beside, beside.seconds, beside.ratios, beside.sooner)
    return alone, found


def _notes(row: _Row) -> list[str]:
    """Return warnings on a way: its best rate is at the edge of those tried, or runs did not reach the loss."""
    found = [note.replace(row.way.choice.name, row.name, 1) for note in row.way.choice.warnings()]
    measures = ((row.by_loss, "loss", kept_losses), (row.by_words, "word error rate", kept_word_errors(row.decoded)))
    for beside, what, points in measures:
        if beside.found is not None and beside.sooner is None:
            runs = beside.found.series.runs
            ends = ", ".join(plain(at_end(run, points)) for run in runs)
            missed = f"{len(runs) - beside.seconds.n} of {len(runs)} seeds"
            found.append(f"{row.name}: the {what} was not reached under {missed}; they ended with {ends}.")
    return found


def _titles(rows: Sequence[_Row]) -> list[str]:
    """Return the titles of the columns; those of predictions and of word errors only if a row has any."""
    without = set() if any(row.predicted.values for row in rows) else {PREDICTED}
    without |= set() if any(row.decoded for row in rows) else {*OF_WORDS}
    return [title for title in SCALING_COLUMNS if title not in without]


def _table(rows: Sequence[_Row]) -> list[list[str]]:
    return [[_cells(row)[title] for title in _titles(rows)] for row in rows]


def _cells(row: _Row) -> dict[str, str]:
    """Return the cells of a row of the table, by column title."""
    seeds = f"{row.by_loss.seconds.n}/{len(row.way.judged)}" if row.way.judged else MISSING
    rate = MISSING if row.way.rate is None else f"{row.way.rate:g}" + ", at the edge" * bool(row.way.choice.edges)
    (times, sooner), (words, sooner_words) = row.by_loss.cells, row.by_words.cells
    unsaid = "never" if row.by_words.found is not None else "not decoded" if row.decoded else MISSING
    cells = [
        row.family,
        str(row.learners),
        rate,
        times or row.state,
        _written(row.predicted) or MISSING,
        sooner,
        words or unsaid,
        sooner_words,
        seeds,
    ]
    return dict(zip(SCALING_COLUMNS, cells, strict=True))


def _written(times: Spread) -> str:
    """Return seconds as text, with their range; "" for none."""
    return f"{times.mean:.1f}{_range(times, 1)}" if times.values else ""


def _range(found: Spread, digits: int) -> str:
    """Return the range of values as ` (1.2 to 1.4)`; "" for one value."""
    return f" ({plain(min(found.values), digits)} to {plain(max(found.values), digits)})" if found.n > 1 else ""


# The page -------------------------------------------------------------------------------------------------------------


def _page(clocks: Sequence[OneClock], rows: Sequence[_Row], said: Sequence[str]) -> str:
    title = f"{clocks[0].trials.name}: how much sooner than one learner"
    titles = _titles(rows)
    whole = table("Ways to train", titles, _table(rows), [SCALING_COLUMNS[title] for title in titles])
    return page(
        "roundelay.grids/scaling.html",
        title,
        kind="scaling",
        lead=said,
        parts=[picture(rows), picture_of_words(rows), whole],
    )


def picture(rows: Sequence[_Row]) -> str:
    """Return a chart (SVG) of times sooner over the number of learners, a line a strategy, with the ideal; "" without
    data."""
    return _figure([(row, row.by_loss) for row in rows], "Times sooner than one learner alone", "held-out loss")


def picture_of_words(rows: Sequence[_Row]) -> str:
    """Return the chart of `picture` by the word error rate."""
    return _figure([(row, row.by_words) for row in rows], "Times sooner to a word error rate", "word error rate")


def _figure(beside: Sequence[tuple[_Row, _Beside]], title: str, measure: str) -> str:
    known = [(row, found) for row, found in beside if found.sooner is not None and row.learners > 1]
    if not known:
        return ""
    families = list(dict.fromkeys(row.family for row, _ in known))
    return scaling_figure(
        title,
        f"Seconds of one learner to the {measure} that it ends with, over those of several to the same, each way at "
        "its best learning rate. Dashed grey: as many times as learners. Shaded: from the lowest to the highest seed.",
        [
            Scaling(row.family, families.index(row.family), row.learners, found.sooner or 0.0, found.ratios, row.name)
            for row, found in known
        ],
        "times sooner",
    )


# scaling.json ---------------------------------------------------------------------------------------------------------


def _to_json(clocks: Sequence[OneClock], rows: Sequence[_Row]) -> dict[str, Any]:
    trials = clocks[0].trials
    return {
        "schema": SCALING_SCHEMA,
        "recipe": trials.name,
        "corpus": trials.data,
        "ways": [_way_json(row) for row in rows],
    }


def _way_json(row: _Row) -> dict[str, Any]:
    way, what = row.way, row.way.choice.tuning.configuration
    loss = row.by_loss.target
    tried = [
        {
            **outcome_json(record),
            "rate": rate_of(way.choice, record),
            "diverged": record.diverged,
            "held_out_loss": record.dev_cross_entropy,
        }
        for record in way.choice.tried
    ]
    judged = [
        {**outcome_json(one), "seed": one.cell.seed, **_run_json(one.cell.exp, row, one.state)} for one in way.judged
    ]
    return {
        **configuration_json(what),
        "virtual": row.virtual,
        "rate": way.rate,
        "at_the_edge": bool(way.choice.edges),
        "tried": tried,
        "judged": judged,
        "loss": loss,
        "predicted_seconds": spread_json(row.predicted),
        **_beside_json(row.by_loss),
        "words": {"split": row.decoded, "wer": row.by_words.target, **_beside_json(row.by_words)}
        if row.decoded
        else None,
    }


def _beside_json(beside: _Beside) -> dict[str, Any]:
    return {
        "seconds": spread_json(beside.seconds),
        "times_sooner": beside.sooner,
        "times_sooner_by_seed": spread_json(beside.ratios),
    }


def _run_json(exp: Path, row: _Row, state: CellState) -> dict[str, Any]:
    if state is not CellState.FINISHED:
        return {}
    run, loss, points = load_run(exp), row.by_loss.target, kept_word_errors(row.decoded)
    words = {"seconds_and_wer": points(run), "seconds_to_wer": seconds_to(run, row.by_words.target, points)}
    return {
        **(words if row.decoded else {}),
        "held_out_loss": run.cross_entropy,
        "seconds_to_loss": seconds_to(run, loss),
        "frames_per_second": run.frames_per_second,
        "machine": run.results.machine,
        "commit": run.results.commit,
    }
