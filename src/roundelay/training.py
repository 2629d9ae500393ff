"""Training: runs a job in a directory, and starts its learners again after deaths and damaged checkpoints.

A run directory holds
    recipe.yaml        the resolved recipe; a directory never changes its recipe
    events.jsonl       a record per line (core/records.py)
    live.json          its present state, for `roundelay status` (core/live.py)
    checkpoints/       the state after the last epochs, and after the best (checkpoint.py, saving.py)
    model.safetensors  the model to use: the mean of all rows, by parameter name
    models/            the same at the end of every epoch, where the job keeps them
    tensorboard/       the same curves for TensorBoard
    results.json       the summary, when the run has ended
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from roundelay.checkpoint import Room, latest
from roundelay.core.errors import UserError
from roundelay.core.files import sweep, unwritable
from roundelay.core.progress import Progress, mention
from roundelay.core.records import EVENTS, Results
from roundelay.job import Interrupt, Job
from roundelay.learner.base import Learner
from roundelay.loop import Run, WentBack
from roundelay.run_directory import alone, claim_directory, put_away
from roundelay.runtime.base import LearnerDied
from roundelay.runtime.imported import not_imported_again
from roundelay.saving import Saves


def train(
    job: Job,
    exp: Path,
    progress: Progress,
    interrupt: Interrupt,
    *,
    resume_only: bool = False,
    begin_anew: bool = False,
) -> Results | None:
    """Run `job` in directory `exp`, or go on with it; a finished run is only read. Returns None if interrupted: the
    same call then goes on. With `resume_only` no new run is begun, and an existing one may go on under another
    strategy. With `begin_anew` a run that has no whole checkpoint left begins again; its log is kept under another
    name.

    Raises:
        UserError: the directory belongs to another configuration; a full disk; too little data; a learner died under a
            strategy that cannot go on without it; all checkpoints are damaged. Work in checkpoints stays.
    """
    not_imported_again()
    if resume_only and begin_anew:
        raise UserError("to resume only and to begin anew exclude each other: leave --resume or --begin-anew out.")
    if resume_only and latest(exp / "checkpoints") is None and not (exp / Results.FILE).exists():
        raise UserError(f"{exp}: nothing to resume, there is no checkpoint. Leave --resume out to begin a run here.")
    new = not exp.exists()
    with alone(exp), _left_as_it_was(exp, new):
        claim_directory(exp, job.recipe, job.complete, resume_only)
        for folder in (exp, exp / "checkpoints"):
            sweep(folder)
        if (exp / Results.FILE).exists():  # trained, and perhaps decoded: nothing to add
            return Results.read(exp)
        if begin_anew:
            _put_away(exp, job, progress)
        return _train(job, exp, progress, interrupt)


@contextmanager
def _left_as_it_was(exp: Path, new: bool) -> Iterator[None]:
    """Remove a `new` directory again if a UserError ends the run, within the `with`, before it has begun."""
    try:
        yield
    except UserError:
        if new and not (exp / EVENTS).exists() and latest(exp / "checkpoints") is None:
            shutil.rmtree(exp, ignore_errors=True)
        raise


def _put_away(exp: Path, job: Job, progress: Progress) -> None:
    """Set aside the log and checkpoints of a run that has no whole checkpoint.

    Raises:
        UserError: a checkpoint is whole.
    """
    Saves(exp, job.keep_checkpoints, Room(0.0, lambda: False, lambda _: None)).set_aside()
    if (away := put_away(exp)) is not None:
        mention(progress, f"{exp}: begun anew; the log of before is {away.name}")


def _train(job: Job, exp: Path, progress: Progress, interrupt: Interrupt) -> Results | None:
    learner = job.cluster.task.build()
    # Or names its faults, before anything is started.
    job.minibatch.frames(job.cluster.learners, learner.examples, learner.sequences, learner.unit)
    restarts = 0
    while True:
        try:
            return _attempt(job, exp, learner, progress, interrupt, restarts)
        except LearnerDied as death:  # and there is a way to go on
            said = f"{death}; going on"  # without its traceback, which holds the rows of a whole runtime
            if job.after_death == "shrink" and job.with_learners is not None:
                job = replace(job.with_learners(job.cluster.learners - 1), loggers=job.loggers)
                claim_directory(exp, job.recipe, job.complete)
            left = job.cluster.learners
            said += f" from the last checkpoint with {left} learner{'s' * (left > 1)}"
            mention(progress, said)
            restarts += 1
        except WentBack:  # and it was said
            continue


def _attempt(
    job: Job, exp: Path, learner: Learner, progress: Progress, interrupt: Interrupt, restarts: int
) -> Results | None:
    """Start the learners, and train to the end of the run, or to an interrupt, or to a death."""
    try:
        starting = job.make_runtime(job.cluster)
    except (LearnerDied, TimeoutError) as error:
        raise UserError(f"the learners do not start: {error}") from error
    with starting as runtime:
        try:
            return Run(job, exp, learner, runtime, progress, interrupt, restarts).go()
        except OSError as error:  # also from the thread that writes for TensorBoard
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise unwritable(Path(error.filename or exp), error) from error
