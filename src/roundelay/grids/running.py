"""Training and decoding the cells of a grid, one after the other; results that are there already are only read."""

from collections.abc import Callable, Iterable, Iterator

from roundelay.core.errors import UserError
from roundelay.core.progress import Prefixed, Progress
from roundelay.core.records import Results
from roundelay.grids.grid import Cell, Grid, Work
from roundelay.grids.results import CellOutcome, CellState, record_of, tuned
from roundelay.job import Interrupt
from roundelay.reports.numbers import seconds
from roundelay.runtime.base import wall_clock


def run_grid(
    grid: Grid, decode: bool, progress: Progress, announce: Callable[[str], None], interrupt: Interrupt
) -> list[CellOutcome]:
    """Train every cell of a grid, or go on with it; decode it if `decode`. Once `interrupt` asks to stop, the rest is
    left for the next call. Values to be tuned are tried first, and never decoded. `announce` gets a line for every cell
    and every choice. A cell that fails does not stop the others."""
    work = GridWork(grid.size, progress, announce, interrupt, grid.work)
    for tuning in grid.tunings:
        for cell in tuning.trials:
            work.add(cell, decode=False)
        if (choice := tuned(tuning, work.outcomes)).complete:
            announce(choice.said())
    for one in list(_judged(grid, work.outcomes)):
        if isinstance(one, CellOutcome):
            work.outcomes.append(one)
        else:
            work.add(one, decode=decode)
    return work.outcomes


def _judged(grid: Grid, outcomes: Iterable[CellOutcome]) -> Iterator[Cell | CellOutcome]:
    """Yield the cells to compare, seed by seed; for a cell with no value chosen, its outcome."""
    choices = [tuned(tuning, [*outcomes]) for tuning in grid.tunings]
    for seed in grid.seeds:
        yield from (cell for cell in grid.cells if cell.seed == seed)
        for choice in choices:
            if choice.best is not None:
                yield grid.cell(choice.best, seed)
                continue
            cell = grid.cell(choice.tuning.configuration, seed)
            if choice.complete:
                yield CellOutcome(cell, CellState.FAILED, trained=False, error=choice.said())
            else:
                yield CellOutcome(cell, CellState.WAITING, trained=False)


class GridWork:
    """Trains cells one by one, and announces how far it has come of `total`."""

    def __init__(
        self,
        total: int,
        progress: Progress,
        announce: Callable[[str], None],
        interrupt: Interrupt,
        work: Work,
    ) -> None:
        self.total, self.progress, self.announce, self.interrupt = total, progress, announce, interrupt
        self._work = work
        self.outcomes: list[CellOutcome] = []
        self._worked: list[float] = []  # seconds of each cell that was not there already

    def add(self, cell: Cell, *, decode: bool) -> None:
        """Train a cell, or read its existing result; append its outcome to `outcomes`."""
        if self.interrupt.asked:
            self.outcomes.append(CellOutcome(cell, CellState.WAITING, trained=False))
            return
        what, started = f"{len(self.outcomes) + 1}/{self.total} {cell.name}", wall_clock()
        work = self._work(cell, decode, Prefixed(self.progress, what), self.interrupt)
        try:
            finished = work.go()
        except Exception as error:  # any error is this cell's alone, and a night of others waits behind it
            if self._stopping():  # a signal to all processes ends workers of decoding too: no fault of the cell
                self.outcomes.append(CellOutcome(cell, CellState.INTERRUPTED, work.trained))
                return
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            self.outcomes.append(CellOutcome(cell, CellState.FAILED, work.trained, said))
            self.announce(f"{what}: failed. {said}{self._left()}")
            return
        self.outcomes.append(CellOutcome(cell, CellState.FINISHED if finished else CellState.INTERRUPTED, work.trained))
        if finished:
            self._worked += [wall_clock() - started] if work.new else []
            said = _said(self.outcomes[-1])
            self.announce(f"{what}: {said}{self._left() if work.new else ', there already'}")

    def _stopping(self) -> bool:
        return self.interrupt.asked

    def _left(self) -> str:
        """Return words on what is left, `; 9 left, 1 failed, about 4 min to go`, by the mean time of cells trained in
        this call."""
        left, failed = self.total - len(self.outcomes), sum(o.state is CellState.FAILED for o in self.outcomes)
        parts = [f"{left} left"] if left else []
        parts += [f"{failed} failed"] if failed else []
        if left and self._worked:
            parts.append(f"about {seconds(left * sum(self._worked) / len(self._worked))} to go")
        return f"; {', '.join(parts)}" if parts else ""


def _said(outcome: CellOutcome) -> str:
    results = Results.read(outcome.cell.exp)
    parts = ["diverged"] if record_of(outcome).diverged else []
    parts += [f"{split} loss {loss:.4f}" for split, loss in results.frame_cross_entropy.items()]
    parts += [f"{split} WER {errors.wer:.2f} %" for split, errors in results.wer.items()]
    virtual = results.virtual_seconds
    parts.append(seconds(results.wall_seconds) if virtual is None else f"{seconds(virtual)} virtual")
    return ", ".join(parts)
