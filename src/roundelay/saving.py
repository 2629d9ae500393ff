"""Keeps the state of a run on disk: which checkpoints stay, the effect of a damaged one, and the model a run leaves."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roundelay import schedule as schedules
from roundelay.algorithms.averaging import minibatches_averaged
from roundelay.checkpoint import (
    Checkpoint,
    Room,
    bytes_of,
    checkpoints,
    files_of,
    latest,
    load_checkpoint,
    newest_whole,
    prune,
    save_checkpoint,
    set_aside,
)
from roundelay.core.checksums import Damaged
from roundelay.core.errors import UserError
from roundelay.run_directory import has_trained
from roundelay.runtime.base import Cluster, ClusterState, LearnerDied, Outcome, staleness_summary
from roundelay.runtime.learners_rate import work_of
from roundelay.runtime.resize import TrainedBy

FOLDER = "checkpoints"
MODELS = "models"
"""Folder of the models at the ends of epochs, if they are kept."""
BEGINNING = "epoch-0000"
"""Name of the checkpoint from before any training."""
NEVER_TRAINED = {BEGINNING, f"{BEGINNING}-at-000000000"}
"""Names of checkpoints without any training; the second is of a run that was stopped before its first round."""


@dataclass
class Position:
    """Position of a run besides its cluster's state; all of it is in every checkpoint."""

    schedule: schedules.SchedulePosition
    first: int = 0  # minibatch of the epoch to go on with
    minibatch: int = 0  # frames a round of that epoch; 0: those of the run
    frames: int = 0
    wall_s: float = 0.0
    virtual_s: float | None = None  # not the cluster's clock, which goes back with an epoch taken back
    stale_largest: int = 0
    stale_sum: float = 0.0
    stale_count: int = 0
    moved: float = 0.0  # steps of one learner that the model has moved by
    longest: float = 0.0  # steps of the learner with the most, in each segment
    averaged: float = 0.0  # those times the minibatches that were averaged (`minibatches_averaged`)
    gathered: dict[str, int] = dataclasses.field(default_factory=dict)  # gatherings, and contributions to them, by name
    events_bytes: int = 0
    started_from: str = ""  # in words, where it is not a model of its own
    best: str = ""  # the checkpoint with the lowest held-out loss so far
    best_loss: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the position as plain values, for a checkpoint."""
        return {**vars(self), "schedule": dataclasses.asdict(self.schedule)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Position":
        """Return the position in a mapping from `to_json`."""
        return cls(**{**value, "schedule": schedules.SchedulePosition(**value["schedule"])})

    def count(self, outcome: Outcome, cluster: Cluster) -> None:
        """Add a segment of training by `cluster` that has ended."""
        counts, learners = outcome.counts, cluster.learners
        moved, longest = work_of(
            counts.rate_factors, counts.steps, cluster.strategy, learners, cluster.minibatches_a_round
        )
        self.moved, self.longest = self.moved + moved, self.longest + longest
        self.averaged += longest * minibatches_averaged(counts.steps.tolist())
        if outcome.virtual_seconds is not None:
            self.virtual_s = round((self.virtual_s or 0.0) + outcome.virtual_seconds, 9)
        self.frames += counts.statistics.frames
        _, largest, _ = staleness_summary(counts)
        self.stale_largest = max(self.stale_largest, largest)
        self.stale_sum += float(counts.stale_sum.sum())
        self.stale_count += int(counts.staleness.sum())
        if outcome.gathered is not None:
            told = outcome.gathered.totals
            self.gathered = {name: self.gathered.get(name, 0) + number for name, number in told.items()}

    def cut(self, minibatch: int) -> int:
        """Return the frames a round of the running epoch, in a run with `minibatch`: an epoch is cut once, even if the
        number of learners changes within it."""
        if not self.first or not self.minibatch:
            self.minibatch = minibatch
        return self.minibatch

    def judge(self, name: str, loss: float) -> None:
        """Note the held-out loss of the model in checkpoint `name`, and the name if it is the best so far."""
        if math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            self.best, self.best_loss = name, loss


@dataclass(frozen=True)
class Found:
    """The result of a search: the newest whole checkpoint, and newer damaged ones, each with its fault."""

    path: Path
    checkpoint: Checkpoint
    position: Position
    damaged: tuple[tuple[Path, str], ...] = ()


class Saves:
    """The checkpoints of the run in directory `exp`: the last `keep`, the ends of the last `average` epochs, the best,
    and the one its epoch began with."""

    def __init__(self, exp: Path, keep: int, room: Room, average: int = 1) -> None:
        self.folder, self._keep, self._room, self._average = exp / FOLDER, keep, room, average
        self.untrained: list[tuple[Path, str]] = []
        """Damaged checkpoints of before any training that were set aside, each with its fault."""

    def write(self, name: str, state: ClusterState, position: Position, trained: TrainedBy) -> None:
        """Write a checkpoint, with the strategy in `trained`, and remove those that are no longer needed.

        Raises:
            UserError: the checkpoint cannot be written.
        """
        checkpoint = Checkpoint(state, position.to_json(), trained)
        needed = bytes_of(state.vectors.values())
        self.folder.mkdir(exist_ok=True)
        self._room.wait_for(lambda: save_checkpoint(self.folder, name, checkpoint), self.folder, needed)
        newest = [path.stem for path in checkpoints(self.folder)][-self._keep :]
        ends = [path.stem for path in epoch_ends(self.folder)][-self._average :]
        # The end of the last epoch stays as long as the running one may be taken back.
        prune(self.folder, {*newest, *ends, name, f"epoch-{position.schedule.epoch:04d}", position.best})

    def bereaved(self, error: LearnerDied, why: str, unit: str, other: str) -> UserError:
        """Return the error for a death that ends a run: what is lost, and what to do.

        Args:
            why: reason why the death ends the run.
            unit: name of the run's examples.
            other: a sentence on how a run could go on after the next death; "": none.
        """
        checkpoint = latest(self.folder)
        stands = f" ({checkpoint.name})" if checkpoint else ""
        return UserError(
            f"{error}; {why}. The last checkpoint{stands} is complete, and {error.frames:,} {unit} trained since will "
            f"be trained again. The same command resumes from {self.folder}.{' ' * bool(other)}{other}"
        )

    def newest(self) -> Found | None:
        """Return the newest whole checkpoint; None if there is none at all. If the run has not trained yet, a damaged
        one is set aside, and None is returned.

        Raises:
            UserError: all checkpoints are damaged; names each and its fault.
        """
        found, damaged = newest_whole(reversed(checkpoints(self.folder)), _read)
        if found is not None:
            return dataclasses.replace(found, damaged=tuple(damaged.items()))
        if {path.stem for path in damaged} <= NEVER_TRAINED and not has_trained(self.folder.parent):
            self.untrained = list(damaged.items())
            for path in damaged:
                set_aside(path)
        elif damaged:
            raise UserError(
                f"{self.folder}: no checkpoint is whole. {' '.join(damaged.values())} Restore one from a backup. To "
                "train this run again from its beginning, give --begin-anew: its log is kept under another name."
            )
        return None

    def before(self, name: str) -> Path | None:
        """Return the newest whole checkpoint before `name`, which is damaged; `name` and all newer ones are set aside.
        Return None if there is none: then only `name` is set aside."""
        there = checkpoints(self.folder)
        found, _ = newest_whole((path for path in reversed(there) if path.stem < name), _read)
        for path in there:
            if path.stem == name or (found is not None and path.stem > found.path.stem):
                set_aside(path)
        return None if found is None else found.path

    def set_aside(self) -> None:
        """Rename all checkpoints, so that the run can begin anew.

        Raises:
            UserError: a checkpoint is whole, so that the run can go on.
        """
        there = checkpoints(self.folder)
        if (found := newest_whole(reversed(there), _read)[0]) is not None:
            raise UserError(f"{found.path} is whole: leave --begin-anew out to go on from it, or choose another --exp.")
        for path in there:
            set_aside(path)


def _read(path: Path) -> Found:
    checkpoint = load_checkpoint(path)
    try:
        return Found(path, checkpoint, Position.from_json(checkpoint.position))
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path}: not a checkpoint of a run ({error!r}).") from error


def epoch_ends(folder: Path) -> list[Path]:
    """Return the JSON of every checkpoint at the end of an epoch, the newest last; not that of the untrained model."""
    return [path for path in checkpoints(folder) if "-at-" not in path.stem and path.stem != BEGINNING]


def averaged_model(
    epochs: int, folder: Path, load: Callable[[Checkpoint], None], consensus: Callable[[], Tensor]
) -> Tensor:
    """Return the parameters (P,) of the model that a run leaves: that of its end, or the mean over the ends of its last
    epochs,

        x = 1/n (x_T + x_{T-1} + ... + x_{T-n+1})        x_t: the consensus after epoch t

    Stochastic weight averaging (Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better
    Generalization") over the last epochs, as recipes of Kaldi and ESPnet have it for the models they decode with. The
    models are in the checkpoints, so neither trajectory nor schedule know of it, and a run that is resumed leaves the
    same. There are no running statistics to be estimated anew, for no model here has any. An epoch that was taken back
    left the model of the epoch before, which counts once.

    Args:
        epochs: number of last epochs, or all of a shorter run; 1: the last model alone, unchanged.
        folder: folder of the checkpoints, the newest of which is the end of the run.
        load: makes a runtime go on from a checkpoint; the last call loads the end of the run.
        consensus: returns the model (P,) of the runtime's learners.

    Raises:
        UserError: a checkpoint is missing or damaged; names the file.
    """
    if epochs == 1:
        return consensus()
    models: list[Tensor] = []
    before: Tensor | None = None
    for path in epoch_ends(folder)[-epochs:]:
        checkpoint = load_checkpoint(path)
        rows = checkpoint.state.vectors["row"]
        load(checkpoint)
        if before is None or not torch.equal(rows, before):
            models.append(consensus().clone())
        before = rows
    return torch.stack(models).mean(dim=0)


@dataclass(frozen=True)
class Listed:
    """A checkpoint as `roundelay checkpoints` lists it. Fields from its JSON are None if that cannot be read."""

    name: str
    size: int  # bytes
    fault: str  # "" where it is whole
    next: bool  # the one a run goes on from
    best: bool
    learners: int | None = None
    epochs: int | None = None  # trained
    frames: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        return dataclasses.asdict(self)

    def shown(self) -> str:
        """Return a sentence on the checkpoint's state."""
        if self.fault:
            return self.fault
        return ", ".join(text for text, so in (("best", self.best), ("goes on from here", self.next)) if so)

    def numbers(self) -> tuple[str, str, str]:
        """Return the numbers of learners, epochs and frames as text."""
        learners, epochs, frames = (
            "" if number is None else f"{number:,}" for number in (self.learners, self.epochs, self.frames)
        )
        return learners, epochs, frames


def listed(exp: Path) -> list[Listed]:
    """Return all checkpoints of the run in `exp`, the newest last; each is read and checked against its checksums."""
    found: list[Listed] = []
    best, next_ = "", True
    for path in reversed(checkpoints(exp / FOLDER)):
        try:
            read = _read(path)
        except UserError as error:
            found.append(Listed(path.stem, _bytes(path), str(error), next=False, best=False))
            continue
        position, learners = read.position, len(read.checkpoint.state.vectors["row"])
        best = best or position.best
        whole = _bytes(path), "", next_, path.stem == best
        found.append(Listed(path.stem, *whole, learners, position.schedule.epoch, position.frames))
        next_ = False
    return found[::-1]


def _bytes(path: Path) -> int:
    """Return the bytes that a checkpoint's files take on disk."""
    return sum(file.stat().st_size for file in files_of(path) if file.exists())
