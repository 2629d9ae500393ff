"""Results of a grid's cells as records, and which of the values that were tried is the best.

A training *diverged* if its held-out cross-entropy at the end is not a number, or not below that of the model it began
with.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.grids.grid import Cell, Configuration, Grid, Tuning, shown
from roundelay.reports import load_run
from roundelay.reports.comparison import Spread
from roundelay.reports.numbers import plain as digits
from roundelay.reports.runs import Run


class CellState(Enum):
    """State of a cell when its run ended."""

    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    WAITING = "not begun"


@dataclass(frozen=True)
class CellOutcome:
    """CellOutcome of a cell: state, and the error if it failed."""

    cell: Cell
    state: CellState
    trained: bool  # its results are there, also if decoding failed or has not begun
    error: str = ""  # a mistake that the user can mend


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """One cell and its result. Numbers are None where it was not trained to its end."""

    directory: Path
    axes: Mapping[str, Any]  # by dotted key, of tuned options too; None where an axis means nothing to the strategy
    strategy: str
    label: str
    options: Mapping[str, Any]
    learners: int
    stragglers: tuple[str, ...]
    seed: int
    state: CellState
    error: str = ""
    dev_cross_entropy: float | None = None  # of the model kept, nats per frame; may be NaN
    dev_accuracy: float | None = None  # 0 to 1
    wer: Mapping[str, float] = field(default_factory=dict)  # by split, percent
    diverged: bool = False
    wall_seconds: float | None = None
    virtual_seconds: float | None = None  # simulated runs only
    staleness_mean: float | None = None  # in versions of the own row or the centre
    staleness_largest: float | None = None
    consensus_distance: float | None = None

    @property
    def learned(self) -> bool:
        """True if it was trained to its end and did not diverge."""
        return self.dev_cross_entropy is not None and not self.diverged


@dataclass(frozen=True)
class Tuned:
    """A configuration with all values tried, and the one chosen: None while some are not tried, or if none learned."""

    tuning: Tuning
    tried: tuple[CellRecord, ...]
    chosen: CellRecord | None
    edges: tuple[str, ...]  # keys whose chosen value is the smallest or the largest tried

    @property
    def name(self) -> str:
        """Name of the configuration, without tuned options."""
        return self.tuning.configuration.whole_name

    @property
    def best(self) -> Configuration | None:
        """The configuration with the values chosen; None where none is."""
        directory = self.chosen.directory if self.chosen else None
        return next((cell.configuration for cell in self.tuning.trials if cell.exp == directory), None)

    @property
    def complete(self) -> bool:
        """True if every value has been tried."""
        return all(record.state in (CellState.FINISHED, CellState.FAILED) for record in self.tried)

    def said(self) -> str:
        """Return the choice in a sentence, with all that was tried."""
        tried = "; ".join(f"{self.values(record)}: {_came_to(record)}" for record in self.tried)
        if self.chosen is None:
            verdict = "no value learned" if self.complete else "not all tried yet"
        else:
            verdict = f"{self.values(self.chosen)} is the best on dev"
        return f"{self.name}: {verdict} ({tried}; seed {self.tried[0].seed})"

    def warnings(self) -> list[str]:
        """Return a sentence for every chosen value at the edge of the tried range."""
        found = []
        for key in self.edges if self.chosen else ():
            value = self.chosen.axes[key]  # type: ignore[union-attr]
            end = "largest" if value == max(record.axes[key] for record in self.tried) else "smallest"
            found.append(
                f"{self.name}: the best {key}, {shown(value)}, is the {end} tried; a wider range may do better."
            )
        return found

    def values(self, record: CellRecord) -> str:
        """Return the values tried in one of its records, with their keys."""
        return ", ".join(f"{key} {shown(record.axes[key])}" for key in self.tuning.keys)


Cost = Callable[[CellRecord], tuple[float, ...]]
"""Measure of which the best of several trained values has least."""


def held_out_loss(record: CellRecord) -> tuple[float, ...]:
    """Return held-out cross-entropy at the end, nats per frame."""
    return (record.dev_cross_entropy or 0.0,)


def tuned(tuning: Tuning, outcomes: Sequence[CellOutcome], cost: Cost = held_out_loss) -> Tuned:
    """Return the best of the tried values, that of least `cost`; of equal ones the first."""
    by_directory = {outcome.cell.exp: outcome for outcome in outcomes}
    waiting = (CellOutcome(cell, CellState.WAITING, trained=False) for cell in tuning.trials)
    tried = tuple(record_of(by_directory.get(outcome.cell.exp, outcome)) for outcome in waiting)
    complete = all(record.state in (CellState.FINISHED, CellState.FAILED) for record in tried)
    learned = [record for record in tried if record.learned]
    if not complete or not learned:
        return Tuned(tuning, tried, None, ())
    best = min(learned, key=cost)
    edges = tuple(key for key in tuning.keys if _at_edge(best.axes[key], [record.axes[key] for record in tried]))
    return Tuned(tuning, tried, best, edges)


def tunings(grid: Grid, outcomes: Sequence[CellOutcome]) -> list[Tuned]:
    """Return the choices of all configurations that are tuned, in the order of the grid."""
    return [tuned(tuning, outcomes) for tuning in grid.tunings]


def judged(grid: Grid, outcomes: Sequence[CellOutcome]) -> list[CellOutcome]:
    """Return the outcomes that count: without those of values that were tried."""
    trials = {cell.exp for tuning in grid.tunings for cell in tuning.trials}
    return [outcome for outcome in outcomes if outcome.cell.exp not in trials]


def cell_records(grid: Grid, outcomes: Sequence[CellOutcome]) -> list[CellRecord]:
    """Return a record for every cell that counts, those that failed or wait included."""
    return [record_of(outcome) for outcome in judged(grid, outcomes)]


def record_of(outcome: CellOutcome) -> CellRecord:
    """Return the record of one cell. A run that cannot be read makes it a failed one."""
    cell, what, numbers = outcome.cell, outcome.cell.configuration, dict[str, Any]()
    try:
        run = load_run(cell.exp) if outcome.trained else None
    except UserError as error:
        run, outcome = None, CellOutcome(cell, CellState.FAILED, trained=False, error=str(error))
    if run is not None:
        numbers = {
            "dev_cross_entropy": run.cross_entropy,
            "dev_accuracy": run.accuracy,
            "wer": {split: errors.wer for split, errors in run.results.wer.items()},
            "diverged": diverged(run),
            "wall_seconds": run.results.wall_seconds,
            "virtual_seconds": run.results.virtual_seconds,
            "staleness_mean": run.stale_mean,
            "staleness_largest": run.stale_largest,
            "consensus_distance": run.results.consensus_distance,
        }
    return CellRecord(
        directory=cell.exp,
        axes=dict(what.axes),
        strategy=what.strategy.name,
        label=what.strategy.label,
        options=plain(what.strategy),
        learners=what.learners,
        stragglers=what.stragglers,
        seed=cell.seed,
        state=outcome.state,
        error=outcome.error,
        **numbers,
    )


def configuration_json(what: Configuration) -> dict[str, Any]:
    """Return a configuration in files for machines: who trains together, without axes."""
    return {
        "strategy": what.strategy.name,
        "label": what.strategy.label,
        "learners": what.learners,
        "stragglers": list(what.stragglers),
    }


def outcome_json(outcome: CellOutcome | CellRecord) -> dict[str, Any]:
    """Return the end of a training in files for machines."""
    folder = outcome.directory if isinstance(outcome, CellRecord) else outcome.cell.exp
    return {"directory": folder.name, "state": outcome.state.value, "error": outcome.error or None}


def spread_json(found: Spread) -> dict[str, Any] | None:
    """Return a figure over seeds in files for machines; None without values."""
    if not found.values:
        return None
    return {
        "mean": found.mean,
        "sd": found.sd,
        "n": found.n,
        "least": min(found.values),
        "most": max(found.values),
        "not_finite": found.broken,
    }


def diverged(run: Run) -> bool:
    """Return True if the model kept is no better on held-out speech than the one it began with, or not a number."""
    loss, before = run.cross_entropy, [e.cross_entropy for e in run.evaluations[:1] if e.epoch < 0]
    return loss is not None and not (math.isfinite(loss) and all(loss < b for b in before if math.isfinite(b)))


def _at_edge(value: object, tried: Iterable[object]) -> bool:
    """Return True if a number is the smallest or the largest of several tried; words have no order."""
    numbers = {other for other in tried if isinstance(other, int | float) and not isinstance(other, bool)}
    return len(numbers) > 1 and value in (min(numbers), max(numbers))


def _came_to(record: CellRecord) -> str:
    if record.dev_cross_entropy is None:
        return record.state.value
    loss = digits(record.dev_cross_entropy)
    return f"diverged, dev loss {loss}" if record.diverged else f"dev loss {loss}"
