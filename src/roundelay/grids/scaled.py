"""Results of `roundelay scaling`: a table for the terminal, scaling.json, and scaling.html with the picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roundelay.core.files import write_json, write_text
from roundelay.grids.results import CellState, configuration_json, outcome_json, spread_json
from roundelay.grids.scaling import OneClock, TrainedWay, rate_of
from roundelay.reports import load_run
from roundelay.reports.alone import Alone, Together, beside_alone
from roundelay.reports.charts import table
from roundelay.reports.comparison import Spread, seconds_to, spread
from roundelay.reports.markup import page
from roundelay.reports.numbers import MISSING, plain, seconds
from roundelay.reports.panels import Scaling, scaling_figure
from roundelay.reports.series import Series, series_of, straggler_text
from roundelay.reports.table import as_text, packed
from roundelay.strategies.base import Strategy

SCALING_JSON, SCALING_HTML = "scaling.json", "scaling.html"
SCALING_SCHEMA = 1
PREDICTED = "predicted"
SCALING_COLUMNS = {
    "strategy": "who talks to whom, and when",
    "learners": "data-parallel learners",
    "rate": "the learning rate: the best of those tried under a seed that judges nothing",
    "seconds": "until the held-out loss was that with which one learner alone ends: mean (fewest to most) of the seeds",
    PREDICTED: "seconds to the same loss of as many learners simulated at measured costs, at their own best rate",
    "times sooner": "mean seconds of one learner alone over these (least to most of the ratios, seed by seed)",
    "seeds": "that reached the loss, of those that judged",
}


@dataclass(frozen=True)
class Scaled:
    """Ways to train side by side: text for a terminal, the rest in files."""

    table: str
    notes: tuple[str, ...]  # rates at an edge, losses that were not reached, failures: a sentence each
    failed: bool
    files: tuple[Path, ...]


@dataclass(frozen=True)
class _Row:
    """A way beside one learner alone.

    Attributes:
        alone: the one beside it; None: it is not there yet.
        found: the way's own runs beside it; None for that one, and where not all judged runs are there.
        seconds: to the loss.
        ratios, sooner: times sooner than one learner alone, seed by seed and of the means; None: not all of its runs
            reached the loss, or are not there.
        predicted: seconds to the loss, of the same way simulated at measured costs.
    """

    way: TrainedWay
    virtual: bool
    alone: Alone | None
    found: Together | None
    seconds: Spread = Spread(())
    ratios: Spread = Spread(())
    sooner: float | None = None
    predicted: Spread = Spread(())

    @property
    def learners(self) -> int:
        """Number of learners."""
        return self.way.choice.tuning.configuration.learners

    @property
    def family(self) -> str:
        """Name without the number of learners: those of one name are a line."""
        what = self.way.choice.tuning.configuration
        parts = [what.strategy.label, straggler_text(what.stragglers), "simulated" * self.virtual]
        return ", ".join(part for part in parts if part)

    @property
    def name(self) -> str:
        """Name of the way."""
        return self.way.choice.name + ", simulated" * self.virtual

    @property
    def state(self) -> str:
        """Word on a way that has no seconds."""
        if self.found is not None:
            return "never"
        if self.way.choice.complete and self.way.choice.chosen is None:
            return "no rate learned"
        states = {outcome.state for outcome in self.way.judged}
        return CellState.FAILED.value if CellState.FAILED in states else CellState.WAITING.value


def summarise(clocks: Sequence[OneClock], folder: Path, width: int) -> Scaled:
    """Set the ways side by side; write scaling.json and scaling.html."""
    rows, lead = list[_Row](), list[str]()
    simulated = {key: series for clock in clocks if clock.virtual for key, series in _by_way(clock).items()}
    for clock in clocks:
        alone, found = _rows_of(clock, {} if clock.virtual else simulated)
        rows += found
        lead += [_lead(clock, alone)] if alone else []
    failures = [f"{one.cell.name}, failed: {one.error}" for row in rows for one in row.way.judged if one.error]
    failures += [f"{one.directory}, failed: {one.error}" for row in rows for one in row.way.choice.tried if one.error]
    notes = [*failures, *(note for row in rows for note in _notes(row))]
    files = folder / SCALING_JSON, folder / SCALING_HTML
    write_json(files[0], _to_json(clocks, rows))
    write_text(files[1], _page(clocks, rows, [*lead, *notes]))
    titles = _titles(rows)
    blocks = packed([titles, *_table(rows)], [False] + [True] * (len(titles) - 1), width)
    return Scaled(as_text([*blocks, lead] if lead else blocks), tuple(notes), bool(failures), files)


_Key = tuple[Strategy, int, tuple[str, ...]]
"""A way apart from its clock: strategy, learners, stragglers."""


def _key(way: TrainedWay) -> _Key:
    what = way.choice.tuning.configuration
    return what.strategy, what.learners, what.stragglers


def _by_way(clock: OneClock) -> dict[_Key, Series]:
    """Return the judged runs of each way; none of one of which some are not there."""
    found = {}
    for way in clock.ways:
        done = [one.cell.exp for one in way.judged if one.state is CellState.FINISHED]
        if done and len(done) == len(clock.trials.seeds):
            found[_key(way)] = series_of([load_run(exp) for exp in done])[0]
    return found


def _rows_of(clock: OneClock, simulated: Mapping[_Key, Series]) -> tuple[Alone | None, list[_Row]]:
    """Return rows of one clock's ways, with the seconds of the same that were `simulated`."""
    series = _by_way(clock)
    first = series.get(_key(clock.ways[0]))
    alone = None if first is None else beside_alone([*series.values()], clock.loss)
    beside = {id(one.series): one for one in alone.others} if alone else {}
    rows = []
    for way in clock.ways:
        one, other = series.get(_key(way)), simulated.get(_key(way))
        times = [seconds_to(run, alone.loss) for run in other.runs] if other and alone else []
        found = None if one is None else beside.get(id(one))
        row = _Row(way, clock.virtual, alone, found, predicted=Spread(()) if None in times else spread(times))
        if row.learners == 1 and alone is not None:
            row = replace(row, seconds=alone.seconds, ratios=Spread((1.0,)), sooner=1.0)
        elif found is not None:
            row = replace(row, seconds=found.seconds, ratios=found.ratios, sooner=found.sooner)
        rows.append(row)
    return alone, rows


def _lead(clock: OneClock, alone: Alone) -> str:
    how = " (simulated)" if clock.virtual else ""
    return (
        f"One learner alone{how} was at a held-out loss of {alone.loss:.4g} after {seconds(alone.seconds.mean)}. "
        f"Minibatch: {clock.trials.about}."
    )


def _notes(row: _Row) -> list[str]:
    """Return sentences on a way: a best rate at the edge of those tried, and runs that did not reach the loss."""
    found = [note.replace(row.way.choice.name, row.name, 1) for note in row.way.choice.warnings()]
    if row.found is not None and row.found.sooner is None:
        runs = row.found.series.runs
        ends = ", ".join(plain(run.cross_entropy) for run in runs)
        missed = f"{len(runs) - row.found.seconds.n} of {len(runs)} seeds"
        found.append(f"{row.name}: the loss was not reached under {missed}; they ended with {ends}.")
    return found


def _titles(rows: Sequence[_Row]) -> list[str]:
    """Return titles of the columns; of what was predicted only where something was."""
    return [title for title in SCALING_COLUMNS if title != PREDICTED or any(row.predicted.values for row in rows)]


def _table(rows: Sequence[_Row]) -> list[list[str]]:
    return [[_cells(row)[title] for title in _titles(rows)] for row in rows]


def _cells(row: _Row) -> dict[str, str]:
    """Return cells by title."""
    times = row.seconds
    seeds = f"{times.n}/{len(row.way.judged)}" if row.way.judged else MISSING
    rate = MISSING if row.way.rate is None else f"{row.way.rate:g}" + ", at the edge" * bool(row.way.choice.edges)
    cells = [
        row.family,
        str(row.learners),
        rate,
        _written(times) or row.state,
        _written(row.predicted) or MISSING,
        MISSING if row.sooner is None else f"{row.sooner:.2f}{_range(row.ratios, 2)}",
        seeds,
    ]
    return dict(zip(SCALING_COLUMNS, cells, strict=True))


def _written(times: Spread) -> str:
    """Return seconds, with their range; empty for none."""
    return f"{times.mean:.1f}{_range(times, 1)}" if times.values else ""


def _range(found: Spread, digits: int) -> str:
    """Return ` (1.2 to 1.4)`; empty for one value."""
    return f" ({plain(min(found.values), digits)} to {plain(max(found.values), digits)})" if found.n > 1 else ""


# The page -------------------------------------------------------------------------------------------------------------


def _page(clocks: Sequence[OneClock], rows: Sequence[_Row], said: Sequence[str]) -> str:
    title = f"{clocks[0].trials.name}: how much sooner than one learner"
    titles = _titles(rows)
    whole = table("Ways to train", titles, _table(rows), [SCALING_COLUMNS[title] for title in titles])
    return page("roundelay.grids/scaling.html", title, kind="scaling", lead=said, parts=[picture(rows), whole])


def picture(rows: Sequence[_Row]) -> str:
    """Return times sooner over the number of learners, a line for each strategy, beside the ideal; empty without
    any."""
    known = [row for row in rows if row.sooner is not None and row.learners > 1]
    if not known:
        return ""
    families = list(dict.fromkeys(row.family for row in known))
    return scaling_figure(
        "Times sooner than one learner alone",
        "Seconds of one learner to the held-out loss that it ends with, over those of several to the same, each way at "
        "its best learning rate. Dashed grey: as many times as learners. Shaded: from the lowest to the highest seed.",
        [
            Scaling(row.family, families.index(row.family), row.learners, row.sooner or 0.0, row.ratios, row.name)
            for row in known
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
    loss = row.alone.loss if row.alone else None
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
        {**outcome_json(one), "seed": one.cell.seed, **_run_json(one.cell.exp, loss, one.state)} for one in way.judged
    ]
    return {
        **configuration_json(what),
        "virtual": row.virtual,
        "rate": way.rate,
        "at_the_edge": bool(way.choice.edges),
        "tried": tried,
        "judged": judged,
        "loss": loss,
        "seconds": spread_json(row.seconds),
        "predicted_seconds": spread_json(row.predicted),
        "times_sooner": row.sooner,
        "times_sooner_by_seed": spread_json(row.ratios),
    }


def _run_json(exp: Path, loss: float | None, state: CellState) -> dict[str, Any]:
    if state is not CellState.FINISHED:
        return {}
    run = load_run(exp)
    return {
        "held_out_loss": run.cross_entropy,
        "seconds_to_loss": seconds_to(run, loss),
        "frames_per_second": run.frames_per_second,
        "machine": run.results.machine,
        "commit": run.results.commit,
    }
