"""Training and decoding the cells of a grid, one after the other; what is there already is only read."""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.core.records import Results
from roundelay.job import Interrupt
from roundelay.reports import load_run
from roundelay.reports.numbers import seconds
from roundelay.run_directory import claim_directory
from roundelay.runtime.base import wall_clock
from roundelay.training import train
from roundelay_speech.acoustic import make_job
from roundelay_speech.grids.cells import Cell, Directories, of_recipe
from roundelay_speech.grids.grid import Grid
from roundelay_speech.grids.results import CellState, Outcome, diverged, tuned
from roundelay_speech.hmm.alignment import require_summary as require_alignment
from roundelay_speech.prepared import read_summary as read_corpus
from roundelay_speech.recipes.kept import with_kept_order
from roundelay_speech.recipes.recipe import complete
from roundelay_speech.recognition.recognise import recognise

__all__ = ["CellState", "CellWork", "GridWork", "Outcome", "check_data", "run_grid"]


def check_data(grid: Grid) -> None:
    """Find out before the first training whether the corpora and alignments are there, rather than once for each cell.

    What has ended needs neither.

    Raises:
        UserError: one of them is missing, or no corpus or alignment; names its folder.
    """
    cells = (*grid.cells, *(cell for tuning in grid.tunings for cell in tuning.trials))
    recipes = [of_recipe(cell.configuration).base for cell in cells if not (cell.exp / Results.FILE).exists()]
    for corpus in dict.fromkeys(recipe.corpus for recipe in recipes):
        read_corpus(corpus)
    for alignment in filter(None, dict.fromkeys(recipe.alignment for recipe in recipes if not recipe.unaligned)):
        require_alignment(alignment)


def run_grid(
    grid: Grid, decode: bool, progress: Progress, announce: Callable[[str], None], interrupt: Interrupt
) -> list[Outcome]:
    """Train, or go on with, every cell; decode if asked to. Once `interrupt` asks, the rest is left for the next call.

    Values to choose from are tried first, and never decoded. `announce` gets a line for every cell and every choice. A
    cell that fails does not stop the others.
    """
    work = GridWork(grid.size, progress, announce, interrupt)
    for tuning in grid.tunings:
        for cell in tuning.trials:
            work.add(cell, decode=False)
        if (choice := tuned(tuning, work.outcomes)).complete:
            announce(choice.said())
    for one in list(_judged(grid, work.outcomes)):
        if isinstance(one, Outcome):
            work.outcomes.append(one)
        else:
            work.add(one, decode=decode)
    return work.outcomes


def _judged(grid: Grid, outcomes: Iterable[Outcome]) -> Iterator[Cell | Outcome]:
    """Yield the cells that count, seed by seed; the outcome of one of which no value is chosen."""
    directories = Directories(grid.folder)
    choices = [tuned(tuning, [*outcomes]) for tuning in grid.tunings]
    for seed in grid.seeds:
        yield from (cell for cell in grid.cells if cell.seed == seed)
        for choice in choices:
            if choice.best is not None:
                yield directories.cell(choice.best, seed)
                continue
            cell = directories.cell(choice.tuning.configuration, seed)
            if choice.complete:
                yield Outcome(cell, CellState.FAILED, trained=False, error=choice.said())
            else:
                yield Outcome(cell, CellState.WAITING, trained=False)


class CellWork(ABC):
    """Work of one cell. `trained` and `new`, what was not there already, say how far it came, also after an error."""

    trained = new = False

    @abstractmethod
    def go(self) -> bool:
        """Train it, or read what is there; True when nothing is left to do, False if interrupted."""


Work = Callable[[Cell, bool, Progress, Interrupt], CellWork]
"""Work of a cell: (cell, whether it is decoded, progress, the wish to stop)."""


class GridWork:
    """Works through cells, `total` of them, and says how far it has come."""

    def __init__(
        self,
        total: int,
        progress: Progress,
        announce: Callable[[str], None],
        interrupt: Interrupt,
        work: Work | None = None,
    ) -> None:
        self.total, self.progress, self.announce, self.interrupt = total, progress, announce, interrupt
        self._work = work or RecipeWork
        self.outcomes: list[Outcome] = []
        self._worked: list[float] = []  # seconds of each cell that was not there already

    def add(self, cell: Cell, *, decode: bool) -> None:
        """Train a cell, or read it where it is there; what came of it is the last of `outcomes`."""
        if self.interrupt.asked:
            self.outcomes.append(Outcome(cell, CellState.WAITING, trained=False))
            return
        what, started = f"{len(self.outcomes) + 1}/{self.total} {cell.name}", wall_clock()
        work = self._work(cell, decode, _Prefixed(self.progress, what), self.interrupt)
        try:
            finished = work.go()
        except Exception as error:  # whatever it is, it is this cell's, and a night of others waits behind it
            if self._stopping():  # a signal to all processes ends workers of decoding too: no fault of the cell
                self.outcomes.append(Outcome(cell, CellState.INTERRUPTED, work.trained))
                return
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            self.outcomes.append(Outcome(cell, CellState.FAILED, work.trained, said))
            self.announce(f"{what}: failed. {said}{self._left()}")
            return
        self.outcomes.append(Outcome(cell, CellState.FINISHED if finished else CellState.INTERRUPTED, work.trained))
        if finished:
            self._worked += [wall_clock() - started] if work.new else []
            self.announce(f"{what}: {_said(cell)}{self._left() if work.new else ', there already'}")

    def _stopping(self) -> bool:
        return self.interrupt.asked

    def _left(self) -> str:
        """Return `; 9 left, 1 failed, about 4 min to go`: a cell not begun takes as long as the mean of those trained
        now."""
        left, failed = self.total - len(self.outcomes), sum(o.state is CellState.FAILED for o in self.outcomes)
        parts = [f"{left} left"] if left else []
        parts += [f"{failed} failed"] if failed else []
        if left and self._worked:
            parts.append(f"about {seconds(left * sum(self._worked) / len(self._worked))} to go")
        return f"; {', '.join(parts)}" if parts else ""


class RecipeWork(CellWork):
    """Work of a cell that trains a recipe."""

    def __init__(self, cell: Cell, decode: bool, progress: Progress, interrupt: Interrupt) -> None:
        self.cell, self.decode = cell, decode
        self.progress, self.interrupt = progress, interrupt

    def go(self) -> bool:
        recipe = self.cell.recipe()
        if (self.cell.exp / Results.FILE).exists():  # no corpus is needed to read it
            claim_directory(self.cell.exp, plain(with_kept_order(recipe, self.cell.exp)), complete)
        else:
            self.new = True
            gc.collect()  # a training's objects refer to each other, features in reach: 100 MB each until Python looks
            if train(make_job(recipe, self.cell.exp), self.cell.exp, self.progress, self.interrupt) is None:
                return False
        self.trained = True
        if not self.decode or set(recipe.decode.splits) <= set(_results(self.cell).wer):
            return True
        if self.interrupt.asked:
            return False
        if not diverged(load_run(self.cell.exp)):  # else there is nothing to decode with
            self.new = True
            recognise(self.cell.exp, recipe, self.progress)
        return True


def _results(cell: Cell) -> Results:
    return Results.read(cell.exp)


def _said(cell: Cell) -> str:
    results = _results(cell)
    parts = ["diverged"] if _diverged(cell) else []
    parts += [f"{split} loss {loss:.4f}" for split, loss in results.frame_cross_entropy.items()]
    parts += [f"{split} WER {errors.wer:.2f} %" for split, errors in results.wer.items()]
    virtual = results.virtual_seconds
    parts.append(seconds(results.wall_seconds) if virtual is None else f"{seconds(virtual)} virtual")
    return ", ".join(parts)


def _diverged(cell: Cell) -> bool:
    try:
        return diverged(load_run(cell.exp))
    except UserError:  # which whoever needs the file's numbers will say
        return False


class _Prefixed:
    """Says of all work for which cell it is."""

    def __init__(self, progress: Progress, cell: str) -> None:
        self._progress, self._cell = progress, cell

    def start(self, what: str, total: int | None = None) -> None:
        self._progress.start(f"{self._cell}: {what}", total)

    def advance(self, n: int = 1, note: str = "") -> None:
        self._progress.advance(n, note)

    def finish(self) -> None:
        self._progress.finish()
