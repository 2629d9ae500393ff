"""Training from Python: train."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from roundelay.api.runs import LoadedRun, load_run
from roundelay.core.configure import Overrides
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, mention
from roundelay.core.records import Record, Results
from roundelay.core.strategy_text import did_you_mean
from roundelay.job import Interrupt, Job
from roundelay.loggers import LOGGERS
from roundelay.loggers.base import FunctionLogger, Logger
from roundelay.stopping import stopping
from roundelay.terminal import Bar
from roundelay.training import train as train_job
from roundelay_speech.acoustic import make_job
from roundelay_speech.api.recipes import load_recipe
from roundelay_speech.recipes.recipe import Recipe


@dataclass(frozen=True)
class Beginning:
    """Ways to begin a training. `resume`: only go on with an existing run; `anew`: begin a run again if it has no whole
    checkpoint left."""

    resume: bool = False
    anew: bool = False


GO_ON = Beginning()


def train(
    recipe: str | Path | Recipe,
    exp: Path | str,
    overrides: Overrides = (),
    *,
    begin: Beginning = GO_ON,
    loggers: Iterable[str | Logger | Callable[[Record], object]] = (),
    progress: Progress | None = None,
) -> LoadedRun:
    """Train a network in the run directory `exp`, or go on with the training there; a finished one is only read.

    An interrupt (Ctrl-C, or a notebook's stop button) ends it at the next round with a checkpoint, and the same call
    goes on from there; a second one ends it at once.

    Args:
        recipe: a name, a file, or a `Recipe`.
        overrides: options that differ from the recipe's, `{"training.strategy": "adpsgd", "training.learners": 2}`.
        loggers: receivers of every record, besides TensorBoard: names (`roundelay list loggers`), objects of
            `roundelay.loggers.Logger`, or functions, which are called with each record; if one returns True, the run
            stops at the next round, with a checkpoint.
        progress: draws how far it is; None: at the terminal, or as lines. `roundelay.Silent()`: nothing.

    Returns:
        The run as it is now; its `results` are None if it was interrupted.

    Raises:
        UserError: as `load_recipe`; the directory belongs to another configuration; a full disk; a learner died under a
            strategy that cannot go on without it. Work in checkpoints stays.
    """
    folder = Path(exp)
    told = tuple(map(make_logger, loggers))
    job = replace(make_job(load_recipe(recipe, overrides), folder), loggers=told)
    conduct(job, folder, begin, progress or Bar())
    return load_run(folder)


def make_logger(wanted: str | Logger | Callable[[Record], object]) -> Logger:
    """Return the logger that a name or a function stands for.

    Raises:
        UserError: no such logger, or its package is not installed.
    """
    if isinstance(wanted, str):
        if wanted not in [*LOGGERS]:
            raise UserError(f"there is no logger {wanted!r}.{did_you_mean(wanted, LOGGERS)}")
        return LOGGERS[wanted]()
    return FunctionLogger(wanted) if callable(wanted) else wanted


def conduct(
    job: Job, exp: Path, begin: Beginning, progress: Progress, at_end: Callable[[], object] = lambda: None
) -> tuple[Results | None, str]:
    """Announce a training and run it; return its results, and the name of the signal that ended it, or "". `at_end` is
    called while signals are still answered."""
    cluster, interrupt = job.cluster, Interrupt()
    mention(
        progress,
        f"{cluster.strategy.label}, {cluster.learners} learner{'s' * (cluster.learners > 1)} on {job.runtime_name}, "
        f"{job.minibatch.text(cluster.learners)}, seed {cluster.seed} -> {exp}",
    )
    for remark in job.remarks():
        mention(progress, remark)
    with stopping(interrupt):
        try:
            results = train_job(job, exp, progress, interrupt, resume_only=begin.resume, begin_anew=begin.anew)
        finally:
            at_end()
    return results, interrupt.why
