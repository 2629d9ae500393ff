"""Results of a grid: a table for the terminal, compare.json for machines, compare.html for everybody."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from roundelay.compare.grid import Grid
from roundelay.compare.running import CellState, Outcome
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import write_json, write_text
from roundelay.report import load_run, render_html
from roundelay.report.comparison import Comparison, Figures, Spread, compare_runs, spread
from roundelay.report.numbers import MISSING
from roundelay.report.runs import Run
from roundelay.report.series import Series, scored, shortened
from roundelay.report.table import as_text, means_table, packed

NOTE = (
    "Means over seeds ± standard deviation of one run. Speedup (frames per second) and times sooner are against sgd, "
    "1 learner,\nof the same seed."
)
JSON, HTML = "compare.json", "compare.html"
SCHEMA = 1


@dataclass(frozen=True)
class Compared:
    """A grid after its trainings: text for a terminal, the rest in files."""

    table: str
    failed: tuple[str, ...]  # a sentence each
    files: str  # where the rest is


def summarise(grid: Grid, outcomes: Sequence[Outcome], target: float | None, width: int) -> Compared:
    """Compare the finished cells; write compare.json and compare.html."""
    runs, outcomes = _load(outcomes)
    failed = tuple(f"{o.cell.name}, seed {o.cell.seed}, failed: {o.error}" for o in outcomes if o.error)
    waiting = sum(o.state in (CellState.INTERRUPTED, CellState.WAITING) for o in outcomes)
    notes = [*failed, *([f"{waiting} of {len(outcomes)} trainings are not finished."] if waiting else [])]
    comparison = compare_runs(runs, target)
    written = [grid.folder / JSON]
    write_json(written[0], _to_json(grid, outcomes, comparison))
    if runs:
        written.append(grid.folder / HTML)
        write_text(written[1], render_html(runs, target, notes))
    rows = table_rows(outcomes, comparison)
    numbers = [False] + [True] * (len(rows[0]) - 1)
    table = as_text(packed(rows, numbers, width))
    return Compared(f"{table}\n\n{NOTE}", failed, f"written: {', '.join(map(str, written))}")


def _load(outcomes: Sequence[Outcome]) -> tuple[list[Run], list[Outcome]]:
    """The runs of trained cells; a directory that cannot be read makes its cell a failed one."""
    runs, found = [], []
    for outcome in outcomes:
        try:
            runs += [load_run(outcome.cell.exp)] if outcome.trained else []
            found.append(outcome)
        except UserError as error:
            found.append(Outcome(outcome.cell, CellState.FAILED, trained=False, error=str(error)))
    return runs, found


def table_rows(outcomes: Sequence[Outcome], comparison: Comparison) -> list[list[str]]:
    """Titles, then a row for every configuration of the grid; failed seeds are counted beside the others."""
    titles, *found = means_table(comparison, always=True)
    cells_of = {id(s): row for s, row in zip(comparison.series, found, strict=True)}
    table = [titles]
    for cells in _configurations(outcomes):
        failed = sum(o.state is CellState.FAILED for o in cells)
        folders = {o.cell.exp for o in cells}
        mine = [s for s in comparison.series if any(run.folder in folders for run in s.runs)]
        for series in mine:
            _, seeds, *rest = cells_of[id(series)]
            table.append([series.name, seeds + (f" ({failed} failed)" if failed else ""), *rest])
        if not mine:
            worst = min(
                (o.state for o in cells), key=[CellState.FAILED, CellState.INTERRUPTED, CellState.WAITING].index
            )
            table.append([cells[0].cell.name, worst.value, *[MISSING] * (len(titles) - 2)])
    names = shortened([row[0] for row in table])
    return [[name, *row[1:]] for name, row in zip(names, table, strict=True)]


def _configurations(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Cells that differ in the seed alone, together."""
    found: dict[str, list[Outcome]] = {}
    for o in outcomes:
        found.setdefault(o.cell.exp.name.removesuffix(f"-seed{o.cell.seed}"), []).append(o)
    return list(found.values())


def _to_json(grid: Grid, outcomes: Sequence[Outcome], comparison: Comparison) -> dict[str, Any]:
    runs = {run.folder: run for run, _ in comparison.figures}
    first = next(iter(runs.values()), None)
    return {
        "schema": SCHEMA,
        "recipe": grid.base.name,
        "corpus": first.results.corpus if first else None,
        "runtime": grid.base.training.runtime,
        "minibatch": plain(grid.base.training.size),
        "machine": first.results.machine if first else None,
        "commit": first.results.commit if first else None,
        "target_loss": comparison.target,
        "target_given": comparison.given,
        "behind_target": [run.name for run in comparison.behind],
        "cells": [_cell_json(o, runs.get(o.cell.exp), comparison) for o in outcomes],
        "aggregates": [_aggregate_json(s, comparison) for s in comparison.series],
    }


def _cell_json(outcome: Outcome, run: Run | None, comparison: Comparison) -> dict[str, Any]:
    cell = outcome.cell
    value: dict[str, Any] = {
        "directory": cell.exp.name,
        "strategy": cell.strategy.name,
        "options": plain(cell.strategy),
        "label": cell.strategy.label,
        "learners": cell.learners,
        "stragglers": list(cell.stragglers),
        "seed": cell.seed,
        "state": outcome.state.value,
        "error": outcome.error or None,
    }
    if run is None:
        return value
    results = run.results
    return {
        **value,
        **{name: figure(run, comparison.of(run)) for name, figure in FIGURES.items()},
        "wer": results.to_json()["wer"],
        "epochs": results.epochs,
        "frames": results.frames_seen,
        "stopped": results.stopped,
    }


def _aggregate_json(series: Series, comparison: Comparison) -> dict[str, Any]:
    run = series.runs[0]
    spreads = {name: spread(figure(one, comparison.of(one)) for one in series.runs) for name, figure in FIGURES.items()}
    for split in ("dev", "test"):
        spreads[f"{split}_wer"] = Spread(tuple(errors.wer for errors in scored(series, split)))
    return {
        "name": series.name,
        "label": run.results.label,
        "learners": run.results.learners,
        "stragglers": list(run.stragglers),
        "seeds": [one.results.seed for one in series.runs],
        "figures": {
            name: {
                "mean": found.mean,
                "sd": found.sd,
                "n": found.n,
                "least": min(found.values),
                "most": max(found.values),
                "not_finite": found.broken,
            }
            for name, found in spreads.items()
            if found.values
        },
    }


FIGURES: dict[str, Callable[[Run, Figures], float | None]] = {
    "held_out_loss": lambda run, _: run.cross_entropy,
    "held_out_accuracy": lambda run, _: run.accuracy,
    "seconds": lambda run, _: run.seconds,
    "frames_per_second": lambda run, _: run.frames_per_second,
    "speedup": lambda _, figures: figures.speedup,
    "seconds_to_target": lambda _, figures: figures.seconds_to_target,
    "times_sooner": lambda _, figures: figures.sooner,
    "share_of_undisturbed_speed": lambda _, figures: figures.undisturbed,
    "staleness_mean": lambda run, _: run.stale_mean,
    "staleness_largest": lambda run, _: run.stale_largest,
    "consensus_distance": lambda run, _: run.results.consensus_distance,
}
"""Fields of compare.json for a run; seconds are virtual where `runtime` is "sim"."""
