"""Experiments on speech: trainings of a recipe, planned and run as `roundelay compare` does."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.grids.grid import Cell, Contenders, Grid
from roundelay.grids.results import CellOutcome, CellRecord, CellState, Tuned, cell_records, judged, tunings
from roundelay.grids.running import run_grid
from roundelay.job import Interrupt
from roundelay.reports import load_run
from roundelay.reports.comparison import seconds_to
from roundelay_lab.claims.experiment import PROCESSES, Found, Part, Regime, Row, Trainings, short
from roundelay_speech.corpus.named import prepare_named
from roundelay_speech.corpus.options import PrepareOptions
from roundelay_speech.corpus.readers import READERS
from roundelay_speech.corpus.readers.base import Request
from roundelay_speech.grids.grid import plan
from roundelay_speech.hmm.flat_start import train_alignments
from roundelay_speech.prepared import CORPUS, load_corpus
from roundelay_speech.recipes.recipe import load_recipe


@dataclass(frozen=True)
class Ways:
    """Ways in which a run talks to its caller: progress of long work, a line for each row, and the wish to stop."""

    progress: Progress
    announce: Callable[[str], None]
    interrupt: Interrupt


@dataclass(frozen=True)
class ClaimFolders:
    """The folders of all claims' runs and of prepared corpora, and of recordings that are not prepared yet."""

    out: Path
    source: Path | None = None
    lexicon: Path | None = None


def train_all(experiment: Trainings, folders: ClaimFolders, ways: Ways) -> Found | None:
    """Prepare the corpus if need be, and train, or go on with, all parts. None if interrupted: the same call goes on.

    Raises:
        UserError: the corpus is neither prepared nor given; or trainings failed (names them).
    """
    data = prepare(experiment, folders, ways.progress)
    tables = Tables(experiment)
    for number, (part, strategy) in enumerate(experiment.grids, 1):
        grid = grid_of(experiment, part, strategy, data, folders)
        outcomes = _trained(grid, f"grid {number} of {len(experiment.grids)}, {strategy}: {grid.size} trainings", ways)
        if outcomes is None:
            return None
        tables.add(part, strategy, grid, outcomes)
    return Found([*tables.rows.values()], [*tables.tuning.values()], sum(tables.seconds.values()))


def train_regime(experiment: Trainings, regime: Regime, folders: ClaimFolders, ways: Ways) -> list[Cell] | None:
    """Train one learner with each minibatch of a regime, or go on with it, and keep the ends of all epochs. None if
    interrupted: the same call goes on.

    Raises:
        UserError: as `train_all`.
    """
    overrides = (*regime.overrides, "training.keep_checkpoints=1000")
    part = Part(experiment.parts[0].strategies, (1,), overrides, regime.tune)
    regimes = replace(experiment, runs=f"{experiment.runs}-regime", seeds=regime.seeds)
    grid = grid_of(regimes, part, part.strategies[0], prepare(experiment, folders, ways.progress), folders)
    outcomes = _trained(grid, f"{grid.size} trainings of one learner", ways)
    if outcomes is None:
        return None
    _complain(cell_records(grid, outcomes), tunings(grid, outcomes))
    return [one.cell for one in judged(grid, outcomes)]


def _trained(grid: Grid, what: str, ways: Ways) -> list[CellOutcome] | None:
    """Train the rest of a grid; None if interrupted."""
    ways.announce(f"{what} in {grid.folder}")
    outcomes = run_grid(grid, False, ways.progress, ways.announce, ways.interrupt)
    left = (CellState.INTERRUPTED, CellState.WAITING)
    return None if any(one.state in left for one in outcomes) else outcomes


class Tables:
    """The tables of an experiment by name of the run directory, so that one learner, in every grid, appears once."""

    def __init__(self, experiment: Trainings) -> None:
        self._experiment = experiment
        self.rows: dict[str, Row] = {}
        self.tuning: dict[str, Row] = {}
        self.seconds: dict[Path, float] = {}

    def add(self, part: Part, strategy: str, grid: Grid, outcomes: list[CellOutcome]) -> None:
        """Add the rows of a grid's outcomes.

        Raises:
            UserError: trainings failed.
        """
        choices = tunings(grid, outcomes)
        tried = [record for choice in choices for record in choice.tried]
        records = cell_records(grid, outcomes)
        _complain([*tried, *records], choices)
        for one in tried:
            self.tuning.setdefault(one.directory.name, self._row(one, strategy, ()))
        for one in records:
            self.rows.setdefault(one.directory.name, self._row(one, strategy, part.tuned))
        self.seconds |= {one.directory: one.wall_seconds or 0.0 for one in (*tried, *records)}

    def _row(self, record: CellRecord, strategy: str, tuned: tuple[str, ...]) -> Row:
        """Return a row: keys, seed, and the columns `dev` (cross-entropy; None if it diverged), `accuracy` (dev),
        `train` (cross-entropy of the last epoch), `seconds` (virtual; in the simulator), `consensus` distance, mean
        `staleness`, and tuned options."""
        keys = self._experiment.keys
        row: Row = {"strategy": "sgd" if record.strategy == "sgd" else strategy, "learners": record.learners}
        row |= {"straggler": " ".join(record.stragglers) or "none"} if "straggler" in keys else {}
        axes = {short(key): value for key, value in record.axes.items()}
        row |= {key: value for key, value in axes.items() if (key in keys) or not tuned}
        row |= {"seed": record.seed, **{short(key): axes.get(short(key)) for key in tuned}}
        return {**row, **_columns(record, self._experiment.target)}


def _columns(record: CellRecord, target: float | None) -> Row:
    run = None if record.dev_cross_entropy is None else load_run(record.directory)
    bad = record.diverged or run is None
    found: dict[str, Any] = {
        "dev": None if bad else record.dev_cross_entropy,
        "accuracy": record.dev_accuracy,
        "train": None if bad or run is None else run.segments[-1].loss,
        "seconds": record.virtual_seconds if target is None or run is None else seconds_to(run, target),
        "consensus": record.consensus_distance,
        "staleness": record.staleness_mean,
    }
    if run is not None and not run.simulated:
        del found["seconds"]  # of processes they are real, and depend on the machine's other work
    return {k: float(f"{v:.6g}") if v is not None and isfinite(v) else None for k, v in found.items()}


def prepare(experiment: Trainings, folders: ClaimFolders, progress: Progress) -> dict[str, Path]:
    """Return the folders of the recipe's corpus and alignment, which claims on the same corpus share; make those that
    are missing.

    Raises:
        UserError: they are missing, and the place of the recordings is not given.
    """
    recipe = load_recipe(experiment.recipe)
    folder = folders.out / "corpora" / recipe.corpus.name
    data, alignment = folder / "data", folder / "alignment"
    reader = next(one for one in READERS.values() if Path(one.data or f"data/{one.name}") == recipe.corpus)
    if not (data / CORPUS).exists():
        if folders.source is None or (reader.needs_lexicon and folders.lexicon is None):
            more = ", and --lexicon FILE, a dictionary in CMU format" if reader.needs_lexicon else ""
            raise UserError(
                f"this needs the corpus {reader.name}: give --source DIR, the folder that holds its recordings{more}; "
                f"docs/corpora_named.md says where it comes from. It is prepared once, in {data}."
            )
        options = PrepareOptions(on_missing_words="guess")
        request = Request(data=data, source=folders.source, lexicon=folders.lexicon, options=options)
        prepare_named(reader.name, request, progress)
    if not alignment.exists():
        corpus = load_corpus(data)
        train_alignments(corpus, corpus.features(), recipe.align, alignment, progress)
    return {"corpus": data, "alignment": alignment}


def grid_of(experiment: Trainings, part: Part, strategy: str, data: dict[str, Path], folders: ClaimFolders) -> Grid:
    """Return the part's grid for one strategy. Seed 0 tunes where anything is tuned, and judges where nothing is."""
    overrides = [
        *(f"{key}={path}" for key, path in data.items()),
        "training.runtime=sim",
        *experiment.overrides,
        *part.overrides,
    ]
    runs = f"{experiment.runs}-processes" if PROCESSES in part.overrides else experiment.runs
    wanted = Contenders([strategy], part.learners, experiment.seeds, part.stragglers, part.tune)
    return plan(experiment.recipe, overrides, wanted, folders.out / "runs" / runs)


def _complain(records: Iterable[CellRecord], choices: Iterable[Tuned]) -> None:
    """Raise a UserError if trainings failed; a tuning of which no value learned counts as diverged, not as failed."""
    none_learned = {choice.said() for choice in choices if choice.chosen is None}
    if failed := [
        f"{one.label}, seed {one.seed}: {one.error}" for one in records if one.error not in ("", *none_learned)
    ]:
        raise UserError("trainings failed:\n  " + "\n  ".join(failed))
