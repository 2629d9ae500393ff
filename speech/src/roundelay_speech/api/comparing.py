"""Trainings of a recipe side by side, from Python: compare, evaluate_folds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.core.configure import Overrides, texts
from roundelay.core.errors import UserError
from roundelay.core.extras import need
from roundelay.core.progress import Progress
from roundelay.grids.grid import Contenders
from roundelay.grids.results import CellOutcome
from roundelay.grids.running import run_grid
from roundelay.grids.summary import TABLE_WIDTH, Compared, summarise
from roundelay.job import Interrupt
from roundelay.stopping import stopping
from roundelay.terminal import Bar, console
from roundelay_speech.grids.folds import Folds, Pooled, plan_folds, run_folds
from roundelay_speech.grids.grid import RecipeGrid, plan
from roundelay_speech.grids.running import check_data


@dataclass(frozen=True)
class Judging:
    """The judging of a grid: decoding or not, and the held-out loss (nats per frame) to which seconds are counted."""

    decode: bool = True
    target_loss: float | None = None


JUDGED = Judging()


def compare(
    recipe: str | Path,
    contenders: Contenders | Sequence[str],
    overrides: Overrides = (),
    exp: Path | str | None = None,
    *,
    judging: Judging = JUDGED,
    progress: Progress | None = None,
) -> Compared:
    """Train a grid of strategies and learners under several seeds, or go on with it, and compare the results.

    Args:
        contenders: strategies, as the command line writes them (one learner and four, three seeds), or `Contenders`.
        overrides: options that differ from the recipe's, for every training. Texts may have several values:
            `["training.minibatch=256,1024"]` trains each.
        exp: the folder for all runs; None: exp/RECIPE/compare.

    Raises:
        UserError: no such recipe, strategy or option; numbers that are no grid.
    """
    wanted = contenders if isinstance(contenders, Contenders) else Contenders(contenders, (1, 4), 3)
    grid = plan(str(recipe), texts(overrides), wanted, None if exp is None else Path(exp))
    return run_plan(grid, judging, progress or Bar(quiet=True), console.print)[0]


def run_plan(
    grid: RecipeGrid, judging: Judging, progress: Progress, announce: Callable[[str], None], width: int = TABLE_WIDTH
) -> tuple[Compared, Interrupt]:
    """Train what is missing of a grid, and compare all results."""
    check_data(grid)
    before = f", {grid.done} of them trained before" if grid.done else ""
    announce(f"{grid.size} trainings in {grid.folder}{before}{grid.about_time}; minibatch: {grid.about_minibatch}")
    interrupt = Interrupt()
    with stopping(interrupt):
        outcomes = run_grid(grid, judging.decode, progress, announce, interrupt)
    return summarise(grid, outcomes, judging.target_loss, width), interrupt


def evaluate_folds(
    recipe: str | Path,
    folds: int,
    overrides: Overrides = (),
    exp: Path | str | None = None,
    *,
    progress: Progress | None = None,
) -> Pooled:
    """Train a recipe with speakers left out in turn, or go on with it, and pool the word errors of all speakers: each
    is recognised by a model that never heard them.

    Args:
        folds: number of trainings; each leaves out about equally many women, and men.
        overrides: options that differ from the recipe's, for every training.
        exp: the folder for all runs; None: exp/RECIPE/folds-N.

    Raises:
        UserError: no such recipe or corpus; fewer speakers than folds; a fold failed or was interrupted.
    """
    planned = plan_folds(str(recipe), texts(overrides), folds, None if exp is None else Path(exp))
    outcomes, pooled, _ = run_planned_folds(planned, progress or Bar(quiet=True), console.print)
    if pooled is None:
        failed = [f"{outcome.cell.exp}: {outcome.error or outcome.state.value}" for outcome in outcomes]
        raise UserError("Some folds are not finished; the same call goes on:\n" + "\n".join(failed))
    return pooled


def run_planned_folds(
    planned: Folds, progress: Progress, announce: Callable[[str], None]
) -> tuple[list[CellOutcome], Pooled | None, Interrupt]:
    """Train what is missing of the folds, and pool their errors if all are finished."""
    need("speech", "evaluate --folds")
    announce(
        f"{len(planned.cells)} trainings in {planned.folder}, which leave out "
        f"{' or '.join(dict.fromkeys(str(len(part)) for part in planned.parts))} speakers each"
    )
    interrupt = Interrupt()
    with stopping(interrupt):
        outcomes, pooled = run_folds(planned, progress, announce, interrupt)
    return outcomes, pooled, interrupt
