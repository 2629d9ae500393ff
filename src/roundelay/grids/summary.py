"""Results of a grid: tables for the terminal, compare.json for machines, compare.html for all readers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import write_json, write_text
from roundelay.grids.grid import Configuration, Grid, shown
from roundelay.grids.results import (
    CellOutcome,
    CellRecord,
    CellState,
    Tuned,
    configuration_json,
    diverged,
    judged,
    outcome_json,
    spread_json,
    tunings,
)
from roundelay.reports import load_run, render_html
from roundelay.reports.charts import table
from roundelay.reports.comparison import Comparison, Figures, Spread, compare_runs, spread
from roundelay.reports.numbers import MISSING, percent
from roundelay.reports.numbers import plain as digits
from roundelay.reports.runs import Run, worded
from roundelay.reports.series import Series, scored, shortened
from roundelay.reports.table import as_text, means, means_table, packed

MEANS_NOTE = (
    "Means over seeds ± standard deviation of one run. Speedup (of training) and times sooner are against sgd, "
    "1 learner,\nof the same seed."
)
JSON, HTML = "compare.json", "compare.html"
COMPARE_SCHEMA = 1
TABLE_WIDTH = 200
"""Characters of a table's line where no terminal says how many it has."""


@dataclass(frozen=True)
class Compared:
    """The results of a grid: text for a terminal, and the files written."""

    table: str  # and that of the tuning before
    failed: tuple[str, ...]  # a sentence each
    files: str  # where the rest is


def summarise(grid: Grid, outcomes: Sequence[CellOutcome], target: float | None, width: int) -> Compared:
    """Compare the finished cells; write compare.json and compare.html."""
    choices = tunings(grid, outcomes)
    runs, outcomes = _load(judged(grid, outcomes))
    failed = [f"{o.cell.name}, failed: {o.error}" for o in outcomes if o.error]
    failed += [_failed_trial(record, choice) for choice in choices for record in choice.tried if record.error]
    waiting = sum(o.state in (CellState.INTERRUPTED, CellState.WAITING) for o in outcomes)
    edges = [sentence for choice in choices for sentence in choice.warnings()]
    notes = [*failed, *edges, *([f"{waiting} of {len(outcomes)} trainings are not finished."] if waiting else [])]
    comparison = compare_runs(runs, target)
    written = [grid.folder / JSON]
    write_json(written[0], _to_json(grid, outcomes, comparison, choices))
    rows, tried = table_rows(grid, outcomes, comparison), tuning_rows(choices)
    if runs:
        written.append(grid.folder / HTML)
        tables = [_means_page(grid, rows, comparison), *([_tuning_page(tried, comparison)] if choices else [])]
        write_text(written[1], render_html(runs, target, notes, tables))
    parts = [_text(rows, width)]
    if choices:
        parts = [
            f"Tried on dev, under seed {choices[0].tried[0].seed}:",
            _text(tried, width),
            *parts,
            *(["\n".join(edges)] if edges else []),
        ]
    return Compared(
        "\n\n".join([*parts, f"{MEANS_NOTE}\nMinibatch: {grid.about_minibatch}."]),
        tuple(failed),
        f"written: {', '.join(map(str, written))}",
    )


def _load(outcomes: Sequence[CellOutcome]) -> tuple[list[Run], list[CellOutcome]]:
    """Return the runs of trained cells; a directory that cannot be read makes its cell a failed one."""
    runs, found = [], []
    for outcome in outcomes:
        try:
            runs += [load_run(outcome.cell.exp)] if outcome.trained else []
            found.append(outcome)
        except UserError as error:
            found.append(CellOutcome(outcome.cell, CellState.FAILED, trained=False, error=str(error)))
    return runs, found


def _failed_trial(record: CellRecord, choice: Tuned) -> str:
    return f"{choice.name}, tried with {choice.values(record)}, failed: {record.error}"


# Tables ---------------------------------------------------------------------------------------------------------------


def table_rows(grid: Grid, outcomes: Sequence[CellOutcome], comparison: Comparison) -> list[list[str]]:
    """Return the titles of a table, then a row for every configuration of the grid: its name, its values of the axes,
    means over seeds.

    Seeds that failed or diverged are counted beside the others.
    """
    titles, *found = means_table(comparison, always=True)
    cells_of = {id(s): row for s, row in zip(comparison.series, found, strict=True)}
    table = [[titles[0], *map(_title, grid.axes), *titles[1:]]]
    for cells in _configurations(outcomes):
        folders = {o.cell.exp for o in cells}
        what = cells[0].cell.configuration
        head = [what.name, *(shown(dict(what.axes)[key]) for key in grid.axes)]
        mine = [s for s in comparison.series if any(run.folder in folders for run in s.runs)]
        for series in mine:
            _, seeds, *rest = cells_of[id(series)]
            table.append([*head, seeds + _broken(cells, series), *rest])
        if not mine:
            worst = min(
                (o.state for o in cells), key=[CellState.FAILED, CellState.INTERRUPTED, CellState.WAITING].index
            )
            table.append([*head, worst.value, *[MISSING] * (len(titles) - 2)])
    names = shortened([row[0] for row in table])
    return [[name, *row[1:]] for name, row in zip(names, table, strict=True)]


def _broken(cells: Sequence[CellOutcome], series: Series) -> str:
    counts = {
        "failed": sum(o.state is CellState.FAILED for o in cells),
        "diverged": sum(map(diverged, series.runs)),
    }
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f" ({said})" if said else ""


def tuning_rows(choices: Sequence[Tuned]) -> list[list[str]]:
    """Return the titles of a table, then a row for every value tried."""
    keys = list(dict.fromkeys(key for choice in choices for key in choice.tuning.keys))
    others = list(dict.fromkeys(key for c in choices for key, _ in c.tuning.configuration.axes if key not in keys))
    table = [["strategy", *map(_title, (*others, *keys)), "dev loss", "dev accuracy", "chosen"]]
    for choice in choices:
        for record in choice.tried:
            values = [shown(record.axes[key]) for key in (*others, *keys)]
            state = "diverged" if record.diverged else record.state.value
            mark = "" if record.learned else state
            if choice.chosen is not None and record.directory == choice.chosen.directory:
                mark = "chosen, at the edge" if choice.edges else "chosen"
            numbers = [digits(record.dev_cross_entropy), percent(record.dev_accuracy)]
            table.append([choice.tuning.configuration.name, *values, *numbers, mark])
    return table


def _title(key: str) -> str:
    return key.rpartition(".")[2]


def _text(rows: Sequence[Sequence[str]], width: int) -> str:
    return as_text(packed(rows, [False] + [True] * (len(rows[0]) - 1), width))


def _means_page(grid: Grid, rows: list[list[str]], comparison: Comparison) -> Markup:
    meanings = [
        "who talks to whom, and how many learners",
        *grid.axes,
        *(column.meaning for column in means(comparison, seeds=True)),
    ]
    caption = f"Means over seeds ± standard deviation of one run. Minibatch: {grid.about_minibatch}."
    return table(caption, rows[0], rows[1:], meanings)


def _tuning_page(rows: list[list[str]], comparison: Comparison) -> Markup:
    words = worded(run for run, _ in comparison.figures)
    loss = f"{words.loss_meaning} on dev, {words.unit}, by which the value was chosen"
    axes = rows[0][1:-3]
    meanings = ["the configuration", *(f"value of {key}" for key in axes), loss, f"{words.right} on dev", "the best"]
    return table("Values tried on dev, under a seed that judges nothing", rows[0], rows[1:], meanings)


def _configurations(outcomes: Sequence[CellOutcome]) -> list[list[CellOutcome]]:
    """Group cells that differ in the seed alone."""
    found: dict[str, list[CellOutcome]] = {}
    for o in outcomes:
        found.setdefault(o.cell.configuration.stem, []).append(o)
    return list(found.values())


# compare.json ---------------------------------------------------------------------------------------------------------


def _to_json(
    grid: Grid, outcomes: Sequence[CellOutcome], comparison: Comparison, choices: Sequence[Tuned]
) -> dict[str, Any]:
    runs = {run.folder: run for run, _ in comparison.figures}
    first = next(iter(runs.values()), None)
    by_folder = {o.cell.exp: o.cell.configuration for o in outcomes}
    return {
        "schema": COMPARE_SCHEMA,
        **grid.source,
        "corpus": first.results.corpus if first else None,
        "machine": first.results.machine if first else None,
        "commit": first.results.commit if first else None,
        "target_loss": comparison.target,
        "target_given": comparison.given,
        "behind_target": [run.name for run in comparison.behind],
        "axes": list(grid.axes),
        "tuning": [_choice_json(choice) for choice in choices],
        "cells": [_cell_json(o, runs.get(o.cell.exp), comparison) for o in outcomes],
        "aggregates": [_aggregate_json(s, comparison, by_folder) for s in comparison.series],
    }


def _cell_json(outcome: CellOutcome, run: Run | None, comparison: Comparison) -> dict[str, Any]:
    cell, what = outcome.cell, outcome.cell.configuration
    value: dict[str, Any] = {
        **outcome_json(outcome),
        **configuration_json(what),
        "options": plain(what.strategy),
        "axes": dict(what.axes),
        "seed": cell.seed,
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
        "diverged": diverged(run),
    }


def _choice_json(choice: Tuned) -> dict[str, Any]:
    what = choice.tuning.configuration
    tried = [
        {
            **outcome_json(record),
            "values": {key: record.axes[key] for key in choice.tuning.keys},
            "diverged": record.diverged,
            "dev_cross_entropy": record.dev_cross_entropy,
            "dev_accuracy": record.dev_accuracy,
        }
        for record in choice.tried
    ]
    return {
        **configuration_json(what),
        "axes": {key: value for key, value in what.axes if key not in choice.tuning.keys},
        "seed": choice.tried[0].seed,
        "tried": tried,
        "chosen": {key: choice.chosen.axes[key] for key in choice.tuning.keys} if choice.chosen else None,
        "at_the_edge": list(choice.edges),
    }


def _aggregate_json(series: Series, comparison: Comparison, of: Mapping[Path, Configuration]) -> dict[str, Any]:
    run = series.runs[0]
    spreads = {name: spread(figure(one, comparison.of(one)) for one in series.runs) for name, figure in FIGURES.items()}
    for split in ("dev", "test"):
        spreads[f"{split}_wer"] = Spread(tuple(errors.wer for errors in scored(series, split)))
    return {
        "name": series.name,
        "label": run.results.label,
        "learners": run.results.learners,
        "stragglers": list(run.stragglers),
        "axes": dict(of[run.folder].axes),
        "seeds": [one.results.seed for one in series.runs],
        "figures": {name: spread_json(found) for name, found in spreads.items() if found.values},
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
"""Numbers of a run in compare.json, by name; seconds are virtual if `runtime` is "sim"."""
