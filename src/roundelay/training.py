"""One loop for every strategy, runtime and task: a segment, an evaluation, records, a checkpoint, again.

A run directory holds
    recipe.yaml        the resolved recipe; a directory never changes its recipe
    events.jsonl       a record per line (core/records.py)
    live.json          what it is doing now, for `roundelay status` (core/live.py)
    checkpoints/       the state after the last epochs (checkpoint.py)
    model.safetensors  the model to use: the mean of all rows, by parameter name
    tensorboard/       the same curves for TensorBoard
    results.json       the summary, when the run has ended
"""

import dataclasses
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from roundelay import schedule as schedules
from roundelay.checkpoint import Checkpoint, latest, load_checkpoint, prune, save_checkpoint
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.files import read_json, sweep, unwritable, write_json
from roundelay.core.progress import Progress
from roundelay.core.records import (
    CheckpointWritten,
    Evaluation,
    Exchanges,
    Finished,
    HostJoined,
    HostLost,
    Interrupted,
    LearnerJoined,
    LearnerLost,
    LearnersChanged,
    Links,
    Record,
    Results,
    RunStarted,
    Segment,
    Staleness,
)
from roundelay.core.state import Statistics
from roundelay.learner.base import Learner
from roundelay.live import LiveFile
from roundelay.run_directory import Complete, alone, append, claim_directory, commit, machine
from roundelay.runtime.base import (
    Cluster,
    Glance,
    LearnerDied,
    Outcome,
    Runtime,
    SegmentPlan,
    staleness_summary,
    wall_clock,
)
from roundelay.runtime.resize import resized
from roundelay.schedule import Schedule

RESTARTS = 20
"""How often one call of `train` starts learners again after a death, before it takes deaths for a habit."""

AfterDeath = Literal["stop", "shrink", "restart"]

SaveModel = Callable[[Tensor, Path], None]


@dataclass(frozen=True)
class Job:
    """Everything a run is made of. `recipe` is its resolved configuration, kept in the run directory."""

    cluster: Cluster
    make_runtime: Callable[[Cluster], Runtime]
    runtime_name: str
    minibatch: int  # examples a round, over all learners
    schedule: Schedule
    corpus: str
    held_out: str  # the split that steers the schedule
    final_splits: tuple[str, ...]  # evaluated once, at the end
    recipe: dict[str, Any]
    save_model: SaveModel
    complete: Complete = dict
    after_death: AfterDeath = "stop"
    """What to do when the strategy cannot go on: from the last checkpoint with one learner fewer, or with as many."""
    with_learners: "Callable[[int], Job] | None" = None
    """The same job for another number of learners; needed to shrink.

    Raises:
        UserError: the strategy cannot run with so many.
    """


class Interrupt:
    """Set by whoever catches Ctrl-C; the run stops at the next round and writes a checkpoint."""

    def __init__(self) -> None:
        self.asked = False


@dataclass
class _Position:
    """Where a run stands besides its cluster's state; all of it is in every checkpoint."""

    schedule: schedules.Progress
    first: int = 0  # minibatch of the epoch to go on with
    frames: int = 0
    wall_s: float = 0.0
    virtual_s: float | None = None  # not the cluster's clock, which goes back with an epoch taken back
    stale_largest: int = 0
    stale_sum: float = 0.0
    stale_count: int = 0
    events_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "schedule": dataclasses.asdict(self.schedule)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "_Position":
        return cls(**{**value, "schedule": schedules.Progress(**value["schedule"])})


def train(
    job: Job, exp: Path, progress: Progress, interrupt: Interrupt, *, resume_only: bool = False
) -> Results | None:
    """Run, or go on with, `job` in directory `exp`; a finished run is only read.

    Returns None if interrupted: the same call goes on from there. With `resume_only` nothing is begun.

    Raises:
        UserError: the directory belongs to another configuration; a full disk; too little data; a learner died under a
            strategy that cannot go on without it. Whatever was checkpointed stays.
    """
    if resume_only and latest(exp / "checkpoints") is None and not (exp / Results.FILE).exists():
        raise UserError(f"{exp}: nothing to resume, there is no checkpoint. Leave --resume out to begin a run here.")
    with alone(exp):
        claim_directory(exp, job.recipe, job.complete)
        for folder in (exp, exp / "checkpoints"):
            sweep(folder)
        if (exp / Results.FILE).exists():  # trained, and perhaps decoded: nothing to add
            return Results.from_json(read_json(exp / Results.FILE))
        return _train(job, exp, progress, interrupt)


@dataclass(frozen=True)
class _Death:
    """One after which the run went on from checkpoint `since`."""

    rank: int
    reason: str
    frames: int
    since: Path | None


def _train(job: Job, exp: Path, progress: Progress, interrupt: Interrupt) -> Results | None:
    learner = job.cluster.task.build()
    if learner.examples < job.minibatch:
        raise UserError(
            f"training.minibatch is {job.minibatch}, but there are only {learner.examples} training frames."
        )
    deaths: list[_Death] = []
    while True:
        try:
            return _attempt(job, exp, learner, progress, interrupt, deaths)
        except LearnerDied as death:  # and there is a way to go on
            # Without its traceback, which holds the rows of a whole runtime.
            deaths.append(_Death(death.rank, death.reason, death.frames, latest(exp / "checkpoints")))
            if job.after_death == "shrink" and job.with_learners is not None:
                job = job.with_learners(job.cluster.learners - 1)
                claim_directory(exp, job.recipe, job.complete)
            progress.start(f"{death}; going on from the last checkpoint with {job.cluster.learners} learners")
            progress.finish()


def _attempt(
    job: Job, exp: Path, learner: Learner, progress: Progress, interrupt: Interrupt, deaths: Sequence[_Death]
) -> Results | None:
    """Start the learners, and train to the end of the run, or to an interrupt, or to the next of the `deaths`."""
    try:
        starting = job.make_runtime(job.cluster)
    except (LearnerDied, TimeoutError) as error:
        raise UserError(
            f"the learners do not start: {error}. Too little memory is the usual reason: try fewer learners."
        ) from error
    with starting as runtime:
        try:
            return _Run(job, exp, learner, runtime, progress, interrupt, deaths).go()
        except OSError as error:  # also from the thread that writes for TensorBoard
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise unwritable(Path(error.filename or exp), error) from error


def _spent(outcome: Outcome) -> dict[str, Any]:
    """Where the learners' seconds went, where they are real."""
    if outcome.virtual_seconds is not None:
        return {}
    seconds = {name: getattr(outcome.counts, name) for name in ("gradient_s", "update_s", "exchange_s", "mean_s")}
    rounded = {f"learner_{name}": [round(value, 6) for value in array.tolist()] for name, array in seconds.items()}
    return {**rounded, "learner_means": outcome.counts.means.tolist()}


class _Run:
    """One call of `train`, or what follows a death in it: the loop and what it writes."""

    def __init__(
        self, job: Job, exp: Path, learner: Learner, runtime: Runtime, progress: Progress, interrupt: Interrupt,
        deaths: Sequence[_Death] = (),
    ) -> None:  # fmt: skip
        self.job, self.exp, self.learner, self.runtime = job, exp, learner, runtime
        self.progress, self.interrupt, self.deaths = progress, interrupt, deaths
        self.checkpoints = exp / "checkpoints"
        self.now = _Position(schedules.start(job.schedule, job.minibatch))
        self.before, self.since = job.cluster.learners, Path()  # learners of, and the checkpoint, that is gone on from
        self.commit, self.machine = commit(), machine()

    def go(self) -> Results | None:
        self.started = wall_clock()
        with LiveFile(self.exp, self.job.cluster.learners, self.learner.examples) as self.live:
            return self._go()

    def _go(self) -> Results | None:
        resumed = self._resume()
        self.writer = SummaryWriter(str(self.exp / "tensorboard"), purge_step=self.now.frames if resumed else None)
        try:
            self._announce(resumed)
            if not resumed:
                untrained = self._measure(self.job.held_out)
                self._evaluation(self.job.held_out, untrained, epoch=-1, accepted=True)
                self.now.schedule = schedules.start(self.job.schedule, self.job.minibatch, untrained.mean_loss)
                self._checkpoint("epoch-0000")
            while not self.now.schedule.stopped:
                if not self._epoch():
                    return None
            return self._finish()
        finally:
            self.writer.close()

    # One epoch --------------------------------------------------------------------------------------------------------

    def _epoch(self) -> bool:
        """Train the rest of the epoch, evaluate, let the schedule decide; False if interrupted."""
        now, epoch = self.now.schedule, self.now.schedule.epoch
        if self.interrupt.asked:  # between epochs, or in one so short that nobody looked
            return self._interrupted(epoch)
        plan = EpochPlan(
            epoch, self.learner.examples, self.job.minibatch, self.job.cluster.learners, self.job.cluster.seed
        )
        warmup = self.job.schedule.warmup(self.job.minibatch, epoch, plan.rounds)
        segment = SegmentPlan(plan, now.learning_rate, first=self.now.first, warmup=warmup)
        done = min(plan.examples, segment.first_round * plan.minibatch)
        self.progress.start(f"epoch {epoch + 1}", plan.examples)
        self.live.train(epoch, done)
        self.progress.advance(done)
        try:
            outcome = self.runtime.segment(segment, self._watch())
        except LearnerDied as error:
            if self._can_go_on():
                raise
            lost = LearnerLost(**self._time(), rank=error.rank, reason=error.reason, frames_lost=error.frames)
            self._say(lost)
            raise self._bereaved(error, epoch) from error
        except TimeoutError as error:
            raise UserError(
                f"{error}. If it hangs, the same command resumes from {self.checkpoints}; if it is only slow, raise "
                "training.patience_seconds."
            ) from error
        finally:
            self.progress.finish()
        self._record_segment(segment, outcome)
        if not outcome.finished:
            self.now.first = outcome.next
            return self._interrupted(epoch)
        self.live.evaluate()
        loss = self._measure(self.job.held_out)
        next_, accepted = schedules.advance(self.job.schedule, now, loss.mean_loss)
        self._evaluation(self.job.held_out, loss, epoch, accepted)
        if not accepted:
            self._load(load_checkpoint(self.checkpoints / f"epoch-{epoch:04d}.json"))
        self.now.schedule, self.now.first = next_, 0
        self._checkpoint(f"epoch-{epoch + 1:04d}")
        return True

    def _can_go_on(self) -> bool:
        """After a death: with other learners, from the last checkpoint."""
        job, learners = self.job, self.job.cluster.learners
        if job.after_death == "stop" or len(self.deaths) >= RESTARTS:
            return False
        if job.after_death == "restart" or job.with_learners is None:
            return job.after_death == "restart"
        try:
            job.with_learners(learners - 1)
        except UserError:  # one is the least, and some topologies want all their learners
            return False
        return True

    def _bereaved(self, error: LearnerDied, epoch: int) -> UserError:
        """What a death that ends the run means, and what to do."""
        checkpoint = latest(self.checkpoints)
        stands = f" ({checkpoint.name})" if checkpoint else ""
        return UserError(
            f"{error}; {self.job.cluster.strategy.label} cannot go on without it. Nothing before epoch {epoch + 1} is "
            f"lost: the last checkpoint{stands} is complete, and {error.frames:,} frames trained since will be trained "
            f"again. The same command resumes from {self.checkpoints}, also with fewer --learners."
        )

    def _interrupted(self, epoch: int) -> bool:
        self._say(Interrupted(**self._time(), epoch=epoch, frames=self.now.frames))
        self._checkpoint(f"epoch-{epoch:04d}-at-{self.now.first // self.job.cluster.learners:09d}")
        self.live.interrupt()
        return False

    def _watch(self) -> Callable[[Glance], bool]:
        shown = 0
        started = wall_clock()

        def look(glance: Glance) -> bool:
            nonlocal shown
            speed = glance.frames / max(1e-9, wall_clock() - started)
            note = f"loss {glance.loss:.3f}  {speed:,.0f} frames/s  staleness {glance.staleness:.1f}"
            if glance.learners_alive < self.job.cluster.learners:
                note += f"  {glance.learners_alive} of {self.job.cluster.learners} learners alive"
            self.progress.advance(glance.frames - shown, note)
            shown = glance.frames
            self.live.look(glance)
            return self.interrupt.asked

        return look

    def _record_segment(self, segment: SegmentPlan, outcome: Outcome) -> None:
        epoch, counts, statistics = segment.epoch.epoch, outcome.counts, outcome.counts.statistics
        rate = segment.rate(max(segment.first_round, outcome.next // segment.epoch.learners - 1))
        if outcome.virtual_seconds is not None:
            self.now.virtual_s = round((self.now.virtual_s or 0.0) + outcome.virtual_seconds, 9)
        self.now.frames += statistics.frames
        seconds = outcome.virtual_seconds if outcome.virtual_seconds is not None else outcome.wall_seconds
        time, speed = self._time(), statistics.frames / max(seconds, 1e-9)
        for lost in outcome.lost:
            self._say(LearnerLost(**time, rank=lost.rank, reason=lost.reason, replaced=lost.replaced))
        for joined in outcome.joined:
            self._say(LearnerJoined(**time, rank=joined.rank, copied=joined.copied))
        for gone in outcome.hosts_lost:
            self._say(HostLost(**time, host=gone.host, ranks=[*gone.ranks], reason=gone.reason, redrawn=gone.redrawn))
        for back in outcome.hosts_joined:
            self._say(HostJoined(**time, host=back.host, ranks=[*back.ranks], copied=back.copied))
        self._say(
            Segment(
                **time, epoch=epoch, learning_rate=rate, frames=self.now.frames,
                loss=statistics.mean_loss, accuracy=statistics.accuracy, frames_per_second=speed,
                learner_frames=counts.frames.tolist(), learner_steps=counts.steps.tolist(), **_spent(outcome),
            )
        )  # fmt: skip
        histogram, largest, mean = staleness_summary(counts)
        self._say(Staleness(**time, epoch=epoch, histogram=histogram, largest=largest, mean=mean))
        self._say(Exchanges(**time, epoch=epoch, matrix=counts.exchanges.tolist()))
        if outcome.traffic:
            links = [dataclasses.asdict(traffic) for traffic in outcome.traffic]
            self._say(Links(**time, epoch=epoch, links=links, refused=outcome.refused))
        self.now.stale_largest = max(self.now.stale_largest, largest)
        self.now.stale_sum += float(counts.stale_sum.sum())
        self.now.stale_count += int(counts.staleness.sum())
        for name, value in (
            ("train/cross_entropy", statistics.mean_loss), ("train/accuracy", statistics.accuracy),
            ("train/frames_per_second", speed), ("train/staleness", mean),
            ("train/learning_rate", rate),
        ):  # fmt: skip
            self.writer.add_scalar(name, value, self.now.frames)

    # Evaluation -------------------------------------------------------------------------------------------------------

    def _measure(self, split: str) -> Statistics:
        return self.learner.evaluate(self.runtime.consensus(), split)

    def _evaluation(self, split: str, found: Statistics, epoch: int, accepted: bool) -> None:
        distance = self.runtime.consensus_distance()
        self._say(
            Evaluation(
                **self._time(), epoch=epoch, split=split, frames=self.now.frames, cross_entropy=found.mean_loss,
                accuracy=found.accuracy, consensus_distance=distance, accepted=accepted,
            )
        )  # fmt: skip
        self.writer.add_scalar(f"{split}/cross_entropy", found.mean_loss, self.now.frames)
        self.writer.add_scalar(f"{split}/accuracy", found.accuracy, self.now.frames)
        self.writer.add_scalar("consensus_distance", distance, self.now.frames)
        self.progress.start(
            f"epoch {epoch + 1} {split} cross-entropy {found.mean_loss:.4f} accuracy {100 * found.accuracy:.1f} %"
            + ("" if accepted else " (taken back)")
        )
        self.progress.finish()

    def _finish(self) -> Results:
        consensus = self.runtime.consensus()
        self.job.save_model(consensus, self.exp / "model.safetensors")
        final = {split: self.learner.evaluate(consensus, split) for split in self.job.final_splits}
        distance, now, job = self.runtime.consensus_distance(), self.now, self.job
        results = Results(
            name=self.exp.resolve().name, strategy=job.cluster.strategy.name, label=job.cluster.strategy.label,
            learners=job.cluster.learners, runtime=job.runtime_name, corpus=job.corpus, seed=job.cluster.seed,
            commit=self.commit, machine=self.machine, parameters=self.learner.parameters,
            minibatch_frames=job.minibatch, epochs=now.schedule.epoch, frames_seen=now.frames,
            frame_cross_entropy={split: s.mean_loss for split, s in final.items()},
            frame_accuracy={split: s.accuracy for split, s in final.items()},
            wall_seconds=round(self._time()["wall_s"], 3), virtual_seconds=now.virtual_s,
            staleness={"mean": now.stale_sum / max(1, now.stale_count), "largest": now.stale_largest},
            consensus_distance=distance, stopped=now.schedule.stopped,
        )  # fmt: skip
        self._say(Finished(**self._time(), frames=now.frames, reason=now.schedule.stopped))
        write_json(self.exp / Results.FILE, results.to_json())  # last: with it the run counts as finished
        self.live.finish()
        return results

    # What is written --------------------------------------------------------------------------------------------------

    def _resume(self) -> bool:
        path = latest(self.checkpoints)
        if path is None:
            (self.exp / "events.jsonl").unlink(missing_ok=True)
            return False
        checkpoint, learners = load_checkpoint(path), self.job.cluster.learners
        before, parameters = checkpoint.state.vectors["row"].shape
        if parameters != self.runtime.parameters:
            raise UserError(
                f"{path}: {before} rows of {parameters} parameters, but now there are {learners} of "
                f"{self.runtime.parameters}: the alignment or the corpus was made again since. Choose another --exp."
            )
        self._load(checkpoint)
        self.now = _Position.from_json(checkpoint.position)
        self.now.first = self.now.first // before * learners  # the same round: rounds do not depend on learners
        self.before, self.since = before, path
        events = self.exp / "events.jsonl"
        if events.exists():  # what came after the checkpoint will happen again
            with open(events, "r+b") as file:  # it may also be shorter than it was: only checkpoints are synced to disk
                file.truncate(file.read(self.now.events_bytes).rfind(b"\n") + 1)
        return True

    def _load(self, checkpoint: Checkpoint) -> None:
        """Go on from the checkpoint's state, with as many learners as there are now."""
        state, cluster = checkpoint.state, self.job.cluster
        before = len(state.vectors["row"])
        if before != cluster.learners:
            state = resized(state, cluster.strategy.holders(tuple(range(before))), cluster.learners)
        self.runtime.load(state)

    def _announce(self, resumed: bool) -> None:
        job = self.job
        self._say(
            RunStarted(
                **self._time(), strategy=job.cluster.strategy.name, label=job.cluster.strategy.label,
                runtime=job.runtime_name, learners=job.cluster.learners, seed=job.cluster.seed, commit=self.commit,
                machine=self.machine, parameters=self.learner.parameters, minibatch_frames=job.minibatch,
                train_frames=self.learner.examples, resumed=resumed,
            )
        )  # fmt: skip
        for died in self.deaths:
            if died.since != self.since:
                continue  # recorded before that checkpoint
            self._say(
                LearnerLost(
                    **self._time(), rank=died.rank, reason=died.reason, replaced=job.after_death == "restart",
                    frames_lost=died.frames,
                )
            )  # fmt: skip
        if self.before != job.cluster.learners:
            self._announce_change(self.before, job.cluster.learners)

    def _announce_change(self, before: int, after: int) -> None:
        model = "the centre" if self.job.cluster.centre else f"the mean of {before} models"
        what = f"every learner begins with {model}"
        if self.job.cluster.memory:
            what += f" and the mean over learners of what they remember ({', '.join(self.job.cluster.memory)})"
        what += "; the schedule, the rounds of the epoch and the place in it stay"
        self._say(LearnersChanged(**self._time(), before=before, after=after, what=what))
        self.progress.start(f"{after} learners go on where {before} stopped: {what}")
        self.progress.finish()

    def _time(self) -> dict[str, Any]:
        return {"wall_s": round(self.now.wall_s + wall_clock() - self.started, 3), "virtual_s": self.now.virtual_s}

    def _say(self, record: Record) -> None:
        append(self.exp, record)

    def _checkpoint(self, name: str) -> None:
        epoch = self.now.schedule.epoch
        self._say(CheckpointWritten(**self._time(), epoch=epoch, file=f"checkpoints/{name}.json"))
        position = dataclasses.replace(
            self.now, wall_s=self._time()["wall_s"], events_bytes=(self.exp / "events.jsonl").stat().st_size
        )
        save_checkpoint(self.checkpoints, name, Checkpoint(self.runtime.state(), position.to_json()))
        # The end of the last epoch stays as long as this one may be taken back.
        prune(self.checkpoints, {name, f"epoch-{epoch:04d}"})
