"""Seconds to a loss of several learners and of one, from Python: scaling."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from roundelay.core.configure import Overrides, texts
from roundelay.core.progress import Progress
from roundelay.core.script import is_script
from roundelay.grids.axes import USUAL_STRATEGIES
from roundelay.grids.scaled import Scaled, summarise
from roundelay.grids.scaling import WantedWays, scale
from roundelay.grids.summary import TABLE_WIDTH
from roundelay.job import Interrupt
from roundelay.stopping import stopping
from roundelay.terminal import Bar, console


def scaling(
    source: str | Path,
    strategies: Sequence[str] = USUAL_STRATEGIES,
    overrides: Overrides = (),
    exp: Path | str | None = None,
    *,
    progress: Progress | None = None,
    **wanted: Any,
) -> Scaled:
    """Measure how much sooner several learners reach a held-out loss than one, each way at its best learning rate.
    Trainings already in the folder are kept and continued.

    Args:
        source: a recipe, or a script (*.py) with `roundelay.attach` in it.
        strategies: of several learners, as the command line writes them.
        overrides: options that differ from the recipe's; of a script its arguments, a sequence of words, with
            `{strategy}`, `{rate}` and `{seed}` where these go.
        exp: the folder for all runs; None: exp/RECIPE/scaling.
        wanted: further fields of `grids.scaling.WantedWays`: `learners=(1, 2, 4), rates=(0.02, 0.04), slower=3.0,
            simulated=(8, 16), seeds=3, loss=1.4, wer=True, hosts=2`.

    Raises:
        UserError: no such recipe, script, strategy or option; one that cannot be measured.
    """
    given = [*overrides] if is_script(str(source)) else texts(overrides)
    folder = None if exp is None else Path(exp)
    return measure(str(source), given, WantedWays(strategies, **wanted), folder, progress, console.print)[0]


def measure(
    source: str,
    given: Sequence[str],
    wanted: WantedWays,
    folder: Path | None,
    progress: Progress | None,
    announce: Callable[[str], None],
    width: int = TABLE_WIDTH,
) -> tuple[Scaled, Interrupt]:
    """Train what is missing of all ways in `folder`, and compare them."""
    interrupt = Interrupt()
    with stopping(interrupt):
        clocks = scale(source, given, wanted, folder, progress or Bar(quiet=True), announce, interrupt)
    if not clocks:
        return Scaled("This host has done its part; the results are on the first one.", (), False, ()), interrupt
    return summarise(clocks, clocks[0].trials.folder, width), interrupt
