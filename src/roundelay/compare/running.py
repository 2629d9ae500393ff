"""Training and decoding the cells of a grid, one after the other; what is there already is only read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from roundelay.acoustic import make_job
from roundelay.compare.grid import Cell, Grid
from roundelay.core.configure import plain
from roundelay.core.errors import UserError
from roundelay.core.files import read_json
from roundelay.core.progress import Progress
from roundelay.core.records import Results
from roundelay.job import Interrupt
from roundelay.recipes.recipe import Recipe, complete
from roundelay.recognise import recognise
from roundelay.report.numbers import seconds
from roundelay.run_directory import claim_directory
from roundelay.runtime.base import wall_clock
from roundelay.training import train


class CellState(Enum):
    """State of a cell when its run ended."""

    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    WAITING = "not begun"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a cell: state, and the error if it failed."""

    cell: Cell
    state: CellState
    trained: bool  # its results are there, also if decoding failed or has not begun
    error: str = ""  # what a user can mend


def run_grid(
    grid: Grid, decode: bool, progress: Progress, announce: Callable[[str], None], interrupt: Interrupt
) -> list[Outcome]:
    """Train, or go on with, every cell; decode if asked to. Once `interrupt` asks, the rest is left for the next call.

    `announce` gets a line for every cell. A cell that fails with a UserError does not stop the others.
    """
    outcomes: list[Outcome] = []
    worked: list[float] = []
    total = len(grid.cells)
    for number, cell in enumerate(grid.cells, 1):
        if interrupt.asked:
            outcomes.append(Outcome(cell, CellState.WAITING, trained=False))
            continue
        what, started = f"{number}/{total} {cell.name}, seed {cell.seed}", wall_clock()
        work = _Work(cell, grid.base, decode, _Prefixed(progress, what), interrupt)
        try:
            finished = work.go()
        except UserError as error:
            outcomes.append(Outcome(cell, CellState.FAILED, work.trained, str(error)))
            announce(f"{what}: failed. {error}")
            continue
        outcomes.append(Outcome(cell, CellState.FINISHED if finished else CellState.INTERRUPTED, work.trained))
        if finished:
            worked += [wall_clock() - started] if work.new else []
            announce(f"{what}: {_said(cell)}{_to_go(worked, total - number) if work.new else ', there already'}")
    return outcomes


class _Work:
    """One cell; `trained` and `new` say how far it came, also after an error."""

    def __init__(self, cell: Cell, base: Recipe, decode: bool, progress: Progress, interrupt: Interrupt) -> None:
        self.cell, self.base, self.decode = cell, base, decode
        self.progress, self.interrupt = progress, interrupt
        self.trained = self.new = False

    def go(self) -> bool:
        """True when nothing is left to do; False if interrupted."""
        recipe = self.cell.recipe(self.base)
        if (self.cell.exp / Results.FILE).exists():  # no corpus is needed to read it
            claim_directory(self.cell.exp, plain(recipe), complete)
        else:
            self.new = True
            if train(make_job(recipe, self.cell.exp), self.cell.exp, self.progress, self.interrupt) is None:
                return False
        self.trained = True
        if not self.decode or set(recipe.decode.splits) <= set(_results(self.cell).wer):
            return True
        if self.interrupt.asked:
            return False
        self.new = True
        recognise(self.cell.exp, recipe, self.progress)
        return True


def _results(cell: Cell) -> Results:
    return Results.from_json(read_json(cell.exp / Results.FILE))


def _said(cell: Cell) -> str:
    results = _results(cell)
    parts = [f"{split} loss {loss:.4f}" for split, loss in results.frame_cross_entropy.items()]
    parts += [f"{split} WER {errors.wer:.2f} %" for split, errors in results.wer.items()]
    virtual = results.virtual_seconds
    parts.append(seconds(results.wall_seconds) if virtual is None else f"{seconds(virtual)} virtual")
    return ", ".join(parts)


def _to_go(worked: Sequence[float], cells: int) -> str:
    return f"; about {seconds(cells * sum(worked) / len(worked))} to go" if worked and cells else ""


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
