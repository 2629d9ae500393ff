"""A job: the runtime, task, strategy and other parts of a run; and the wish to stop it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from roundelay.core.errors import UserError
from roundelay.core.minibatch import MinibatchSize
from roundelay.core.progress import Progress
from roundelay.learner.base import Learner
from roundelay.loggers.base import Logger
from roundelay.run_directory import Complete
from roundelay.runtime.base import Cluster, Runtime
from roundelay.schedule import Schedule

AfterDeath = Literal["stop", "go-on", "shrink", "restart"]

SaveModel = Callable[[Tensor, Path], None]


@dataclass(frozen=True)
class Beginning:
    """The model that a run starts from: parameters (P,), and words on where they come from."""

    row: Tensor
    source: str


Begin = Callable[[Learner, Progress, "Interrupt"], Beginning | None]
"""Function that finds the model to start from; None if it was asked to stop meanwhile.

Raises:
    UserError: there is no such model, or it does not fit the learner.
"""


@dataclass(frozen=True)
class Job:
    """Everything a run is made of. `recipe` is its resolved configuration, kept in the run directory."""

    cluster: Cluster
    make_runtime: Callable[[Cluster], Runtime]
    runtime_name: str
    minibatch: MinibatchSize
    schedule: Schedule
    corpus: str
    held_out: str  # the split that steers the schedule
    final_splits: tuple[str, ...]  # evaluated once, at the end
    recipe: dict[str, Any]
    save_model: SaveModel
    complete: Complete = dict
    begin: Begin | None = None
    """Called once when a run begins, and not when it goes on; None: start from the learner's initial model."""
    after_death: AfterDeath = "stop"
    """Action when a learner of a synchronous strategy dies: the others go on; or all begin again from the last
    checkpoint, with one learner fewer or with as many."""
    with_learners: "Callable[[int], Job] | None" = None
    """The same job for another number of learners; needed to shrink.

    Raises:
        UserError: the strategy cannot run with that number.
    """
    keep_checkpoints: int = 2
    """Number of last checkpoints that stay, besides the best and the one that the running epoch began with."""
    average: int = 1
    """Number of last epochs over whose ends the model that the run leaves is averaged."""
    keeps_models: bool = False
    """Keep the model at the end of every epoch: `models/epoch-0001/` is that after the first. No seconds of the run
    count for that."""
    checkpoint_seconds: float = math.inf
    """Seconds of training between checkpoints inside an epoch."""
    disk_patience: float = 0.0
    """Seconds for which a full disk is waited for."""
    curve_points: int = 0
    """Points of curves inside an epoch, at most."""
    loggers: tuple[Logger, ...] = ()
    """Loggers of the run's records, besides TensorBoard."""
    remarks: Callable[[], Iterable[str]] = tuple
    """Returns sentences on the data, for the user who starts the run."""

    def identity(self) -> dict[str, Any]:
        """Return the fields by which records identify this job."""
        cluster = self.cluster
        return {
            "strategy": cluster.strategy.name,
            "label": cluster.strategy.label,
            "runtime": self.runtime_name,
            "learners": cluster.learners,
            "seed": cluster.seed,
            "rate": cluster.rate,
            **self.minibatch.recorded(cluster.learners),
        }

    def survives_death(self) -> bool:
        """Return True if after a death the run may go on from its last checkpoint, with as many learners or one
        fewer."""
        if self.after_death != "shrink" or self.with_learners is None:
            return self.after_death == "restart"
        try:
            self.with_learners(self.cluster.learners - 1)
        except UserError:  # one is the least, and some topologies want all their learners
            return False
        return True


class Interrupt:
    """The wish to stop a run, set when a signal comes: the run stops at the next round and writes a checkpoint."""

    def __init__(self) -> None:
        self.asked = False
        self.why = ""  # the name of the signal
        self.busy = False  # before there is anything to keep, the catcher may end the process at once
