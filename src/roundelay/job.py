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
    """The model that a run starts from: parameters (P,), and in words where they come from."""

    row: Tensor
    source: str


Begin = Callable[[Learner, Progress, "Interrupt"], Beginning | None]
"""Finds the model to start from; None where it was asked to stop meanwhile.

Raises:
    UserError: there is none, or it does not fit the learner's.
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
    """Asked once, when a run begins and not where it goes on; None: it starts from the learner's initial model."""
    after_death: AfterDeath = "stop"
    """Action when a learner of a synchronous strategy dies: the others go on; else, from the last checkpoint with one
    learner fewer, or with as many."""
    with_learners: "Callable[[int], Job] | None" = None
    """The same job for another number of learners; needed to shrink.

    Raises:
        UserError: the strategy cannot run with so many.
    """
    keep_checkpoints: int = 2
    """The last so many stay, beside the best and the one that the running epoch began with."""
    average: int = 1
    """The model that the run leaves is the mean over the ends of its last so many epochs."""
    keeps_models: bool = False
    """The model at the end of every epoch stays, as it would be left: `models/epoch-0001/` is that after the first. No
    seconds of the run count for that."""
    checkpoint_seconds: float = math.inf
    """A checkpoint inside an epoch after so many seconds of training."""
    disk_patience: float = 0.0
    """Seconds for which a full disk is waited for."""
    curve_points: int = 0
    """Points of curves inside an epoch, at most."""
    loggers: tuple[Logger, ...] = ()
    """Told of every record, beside TensorBoard."""
    remarks: Callable[[], Iterable[str]] = tuple
    """Finds sentences on the data for the user who starts it."""

    def identity(self) -> dict[str, Any]:
        """Return fields of records that say which job it is."""
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
    """Set by the catcher of a signal; the run stops at the next round and writes a checkpoint."""

    def __init__(self) -> None:
        self.asked = False
        self.why = ""  # the name of the signal
        self.busy = False  # before there is anything to keep, the catcher may end the process at once
