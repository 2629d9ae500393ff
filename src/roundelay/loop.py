"""One loop for every strategy, runtime and task: a segment, an evaluation, records, a checkpoint, again."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from roundelay import schedule as schedules
from roundelay.checkpoint import Checkpoint, Room, bytes_of, load_checkpoint, set_aside
from roundelay.core.checksums import Damaged
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress, mention
from roundelay.core.records import (
    CheckpointDamaged,
    CheckpointWritten,
    Finished,
    Interrupted,
    LearnersChanged,
    Results,
    RunStarted,
)
from roundelay.core.state import Statistics
from roundelay.job import Begin, Interrupt, Job
from roundelay.journal import CurvePoints, Journal
from roundelay.learner.base import Learner, Stopped
from roundelay.loggers.base import LoggedRun
from roundelay.run_directory import commit, cut, has_trained, machine
from roundelay.runtime.base import Glance, LearnerDied, Lost, Outcome, Runtime, SegmentPlan, ended_by_death, wall_clock
from roundelay.runtime.learners_rate import said_at_end, said_at_start
from roundelay.runtime.live import LiveFile
from roundelay.runtime.resize import TrainedBy, begun_at, gone_on_with
from roundelay.saving import BEGINNING, MODELS, Found, Position, Saves, averaged_model

RESTARTS = 20
"""Number of times that one call of `train` starts learners again after a death before it gives up."""


class WentBack(Exception):
    """Raised when an epoch cannot be taken back, since the checkpoint it began with is damaged, but an earlier one is
    whole."""


class Run:
    """One call of `train`, or its continuation after a death: the loop and its records."""

    def __init__(
        self,
        job: Job,
        exp: Path,
        learner: Learner,
        runtime: Runtime,
        progress: Progress,
        interrupt: Interrupt,
        restarts: int = 0,
    ) -> None:
        self.job, self.exp, self.learner, self.runtime = job, exp, learner, runtime
        self.progress, self.interrupt, self.restarts = progress, interrupt, restarts
        self.room = Room(job.disk_patience, lambda: interrupt.asked, self._tell)
        self.saves = Saves(exp, job.keep_checkpoints, self.room, job.average)
        self.minibatch = job.minibatch.frames(job.cluster.learners, learner.examples, learner.sequences, learner.unit)
        self.now = Position(schedules.start(job.schedule, job.minibatch.number))
        self.due, self.division = False, ""  # checkpoint in the epoch; its division, as said last
        self.commit, self.machine = commit(), machine()

    def go(self) -> Results | None:
        self.interrupt.busy = True
        self.started = wall_clock()
        self.examples = self._plan(0, 1).examples  # of all hosts
        with LiveFile(self.exp, self.job.cluster.learners, self.examples) as self.live:
            return self._go()

    def _go(self) -> Results | None:
        """Train from the last checkpoint or the beginning; return the results, or None if stopped."""
        found = self._resume()
        run = LoggedRun(self.exp, self.job.recipe, self.now.frames if found else None)
        self.journal = Journal(run, self.room, self._time, self.job.loggers, self._tell)
        try:
            if not found and self.job.begin is not None and not self._begin(self.job.begin):
                return None
            self._announce(found)
            if not found:
                try:
                    untrained = self._measure(self.job.held_out)
                except Stopped:  # nothing is there to be kept
                    self._stop()
                    return None
                self._evaluation(self.job.held_out, untrained, epoch=-1, accepted=True)
                self.now.schedule = schedules.start(self.job.schedule, self.job.minibatch.number, untrained.mean_loss)
                self.now.judge(BEGINNING, untrained.mean_loss)
                self._checkpoint(BEGINNING)
            while not self.now.schedule.stopped:
                if not self._epoch():
                    return None
            return self._finish()
        finally:
            self.journal.close()

    def _begin(self, begin: Begin) -> bool:
        """Start from the model that `begin` finds; return False if asked to stop."""
        found = begin(self.learner, self.progress, self.interrupt)
        self.started = wall_clock()  # a first phase is a run of its own
        if found is None:
            self._stop()
            return False
        self.runtime.load(begun_at(self.runtime.state(), found.row))
        self.now.started_from = found.source
        self._tell(f"started from {found.source}")
        return True

    # One epoch --------------------------------------------------------------------------------------------------------

    def _epoch(self) -> bool:
        """Train the rest of an epoch, evaluate, and let the schedule decide; return False if interrupted."""
        now, epoch = self.now.schedule, self.now.schedule.epoch
        if self._asked():  # between epochs, or in one too short for a look
            return self._interrupted(epoch)
        minibatch = self.now.cut(self.minibatch)
        plan = self._plan(epoch, minibatch)
        if (division := plan.division(self.learner.shards)) and division != self.division:
            self._tell(division)
        self.division = division
        warmup = self.job.schedule.warmup(self.job.minibatch.number, epoch, plan.rounds)
        segment = SegmentPlan(plan, now.learning_rate, first=self.now.first, warmup=warmup)
        done = min(plan.examples, segment.first_round * plan.minibatch)
        self.progress.start(f"epoch {epoch + 1}", plan.examples)
        self.live.train(epoch, done)
        self.progress.advance(done)
        if segment.first_round < plan.rounds:  # else it was stopped while it was evaluated
            outcome = self._segment(segment)
            self._record_segment(segment, outcome)
            self.now.first = plan.rounds * plan.learners if outcome.finished else outcome.next
            if not outcome.finished:
                if self._asked() or not self.due:
                    return self._interrupted(epoch)
                self._checkpoint(self._inside(epoch))
                return True
        self.live.evaluate()
        try:
            loss = self._measure(self.job.held_out)
        except Stopped:
            return self._interrupted(epoch)
        self._judge(loss)
        return True

    def _plan(self, epoch: int, minibatch: int) -> EpochPlan:
        learners, seed = self.job.cluster.learners, self.job.cluster.seed
        return self.runtime.divided(EpochPlan(epoch, self.learner.examples, minibatch, learners, seed))

    def _segment(self, segment: SegmentPlan) -> Outcome:
        self.journal.begin_segment()
        self.due = False
        try:
            return self.runtime.segment(segment, self._watch(segment))
        except LearnerDied as error:
            survives = self.restarts < RESTARTS and self.job.survives_death()
            if not self.journal.has_said(error.rank, error.reason):
                replaced = survives and self.job.after_death == "restart"
                self.journal.lose(Lost(error.rank, error.reason, replaced), error.frames)
            if survives:
                raise
            raise self._bereaved(error) from error
        except TimeoutError as error:
            raise UserError(
                f"{error}. If it hangs, the same command resumes from {self.saves.folder}; if it is only slow, raise "
                "training.patience_seconds."
            ) from error
        finally:
            self.progress.finish()

    def _bereaved(self, error: LearnerDied) -> UserError:
        """Return the error for a death that ends this run, with what a resumed run would do."""
        strategy, job, others = self.job.cluster.strategy, self.job, ""
        if error.last:
            why = "no learner is left that could go on"
        elif self.restarts >= RESTARTS and job.survives_death():
            why = f"after {RESTARTS} starts in one call the run starts no learner again"
        elif job.after_death == "shrink":
            why = f"{strategy.label} cannot run with fewer"
        else:
            why, others = ended_by_death(strategy)
            others = "" if job.after_death == "go-on" else others
        return self.saves.bereaved(error, why, self.learner.unit, others)

    def _judge(self, loss: Statistics) -> None:
        """Let the schedule accept or take back an epoch with this held-out loss, and write a checkpoint."""
        now, epoch = self.now.schedule, self.now.schedule.epoch
        next_, accepted = schedules.advance(self.job.schedule, now, loss.mean_loss)
        self._evaluation(self.job.held_out, loss, epoch, accepted)
        name = f"epoch-{epoch + 1:04d}"
        if accepted:
            self.now.judge(name, loss.mean_loss)
            if self.job.keeps_models:
                self._keep_model(name)
        else:
            self._take_back(f"epoch-{epoch:04d}")
        self.now.schedule, self.now.first = next_, 0
        self._checkpoint(name)

    def _keep_model(self, name: str) -> None:
        """Keep the model at the end of an epoch; its seconds do not count as the run's."""
        began, folder = wall_clock(), self.exp / MODELS / name
        folder.mkdir(parents=True, exist_ok=True)
        self._save_model(self.runtime.consensus(), folder)
        self.started += wall_clock() - began

    def _save_model(self, x: Tensor, folder: Path) -> None:
        model = folder / "model.safetensors"
        self.room.wait_for(lambda: self.job.save_model(x, model), folder, bytes_of([x]))

    def _take_back(self, name: str) -> None:
        """Take an epoch back: go on from the checkpoint `name`, which it began with. If that is damaged and there is no
        earlier one, keep the epoch's model."""
        try:
            self._load(load_checkpoint(self.saves.folder / f"{name}.json"))
        except Damaged as damage:
            instead = self.saves.before(name)
            self._damaged(self.saves.folder / f"{name}.json", str(damage), instead)
            if instead:
                raise WentBack from damage
            self._tell("the epoch cannot be taken back: its model is kept")

    def _damaged(self, path: Path, reason: str, instead: Path | None) -> None:
        """Report a damaged checkpoint."""
        names = [f"checkpoints/{one.name}" if one else "" for one in (path, instead)]
        self.journal.say(CheckpointDamaged(**self._time(), file=names[0], reason=reason, instead=names[1]))
        self._tell(f"{reason} It was set aside (*.damaged)" + (f"; going on from {names[1]}" if instead else ""))

    def _inside(self, epoch: int) -> str:
        """Return the name of the next checkpoint inside an epoch."""
        return f"epoch-{epoch:04d}-at-{self.now.first // self.job.cluster.learners:09d}"

    def _interrupted(self, epoch: int) -> bool:
        self._say_interrupted()
        self._checkpoint(self._inside(epoch))
        self.live.interrupt()
        return False

    def _say_interrupted(self) -> None:
        self.runtime.stopped_by = why = self.interrupt.why or "SIGINT"
        epoch = self.now.schedule.epoch
        self.journal.say(Interrupted(**self._time(), epoch=epoch, frames=self.now.frames, why=why))

    def _stop(self) -> None:
        """End the run early, with everything trained in the last checkpoint."""
        self._say_interrupted()
        self.live.interrupt()

    def _asked(self) -> bool:
        """Return True if the run is to stop, also because a signal came to another host."""
        if self.journal.asked_to_stop and not self.interrupt.asked:
            self.interrupt.asked, self.interrupt.why = True, "a callback"
        if self.runtime.stopped_by and not self.interrupt.asked:
            self.interrupt.asked, self.interrupt.why = True, self.runtime.stopped_by
        return self.interrupt.asked

    def _watch(self, segment: SegmentPlan) -> Callable[[Glance], bool]:
        """Return the function that a segment calls with its progress; True from it asks the segment to stop."""
        shown, most = 0, self.job.curve_points
        period = max(1, segment.epoch.pieces // most) if most else 0
        points = CurvePoints(segment, period, self.now.frames, self.journal.say, self._time)
        started = wall_clock()

        def look(glance: Glance) -> bool:
            nonlocal shown
            speed = glance.frames / max(1e-9, wall_clock() - started)
            note = f"loss {glance.loss:.3f}  {speed:,.0f} {self.learner.unit}/s  staleness {glance.staleness:.1f}"
            if glance.learners_alive < self.job.cluster.learners:
                note += f"  {glance.learners_alive} of {self.job.cluster.learners} learners alive"
            self.progress.advance(glance.frames - shown, note)
            shown = glance.frames
            self.live.look(glance)
            points.look(glance)
            self.journal.lose_all(glance.lost)
            # Without a minibatch trained the segment would stop where it began, again and again.
            self.due = self.due or (glance.frames > 0 and wall_clock() - started >= self.job.checkpoint_seconds)
            return self._asked() or self.due

        return look

    def _record_segment(self, segment: SegmentPlan, outcome: Outcome) -> None:
        rate = segment.rate(max(segment.first_round, outcome.next // segment.epoch.learners - 1))
        cluster = self.job.cluster
        self.now.count(outcome, cluster)
        if any(outcome.missing):
            parts = [f"{count:,} of learner {rank}" for rank, count in enumerate(outcome.missing) if count]
            unit, epoch = self.learner.unit, segment.epoch.epoch + 1
            self._tell(f"{unit} of epoch {epoch} that no learner has trained: {', '.join(parts)}")
        self.journal.segment(segment.epoch.epoch, rate, outcome, self.now)

    # Evaluation -------------------------------------------------------------------------------------------------------

    def _measure(self, split: str) -> Statistics:
        return self._evaluated(self.runtime.consensus(), split)

    def _evaluated(self, x: Tensor, split: str) -> Statistics:
        """Return loss and accuracy at `x` (P,) on the examples of `split`.

        Raises:
            Stopped: the run is to stop.
        """
        self.learner.stop = self._asked
        try:
            return self.learner.evaluate(x, split)
        finally:
            self.learner.stop = None

    def _evaluation(self, split: str, found: Statistics, epoch: int, accepted: bool) -> None:
        distance = self.runtime.consensus_distance()
        self.journal.evaluation(split, found, epoch, self.now.frames, distance, accepted)
        mention(
            self.progress,
            f"epoch {epoch + 1} {split} {self.learner.measured} {found.mean_loss:.4f} "
            f"{self.learner.right} {100 * found.accuracy:.1f} %" + ("" if accepted else " (taken back)"),
        )

    def _finish(self) -> Results | None:
        """Evaluate the final model and return the results, or None if the run is stopped before."""
        consensus = averaged_model(self.job.average, self.saves.folder, self._load, self.runtime.consensus)
        self._save_model(consensus, self.exp)
        try:
            final = {split: self._evaluated(consensus, split) for split in self.job.final_splits}
        except Stopped:  # the last checkpoint has all that was trained
            self._stop()
            return None
        distance, now, job = self.runtime.consensus_distance(), self.now, self.job
        results = Results(
            name=self.exp.resolve().name,
            **self._identity(),
            corpus=job.corpus,
            epochs=now.schedule.epoch,
            frames_seen=now.frames,
            frame_cross_entropy={split: s.mean_loss for split, s in final.items()},
            frame_accuracy={split: s.accuracy for split, s in final.items()},
            wall_seconds=round(self._time()["wall_s"], 3),
            virtual_seconds=now.virtual_s,
            staleness={"mean": now.stale_sum / max(1, now.stale_count), "largest": now.stale_largest},
            consensus_distance=distance,
            stopped=now.schedule.stopped,
            gatherings=now.gathered,
            work=now.moved / now.longest if now.longest else None,
        )
        self._say_work(now.moved / max(1.0, now.longest), now.averaged / max(1.0, now.longest))
        self.journal.say(Finished(**self._time(), frames=now.frames, reason=now.schedule.stopped))
        # Last: with it the run counts as finished.
        self.room.wait_for(lambda: results.write(self.exp), self.exp)
        self.live.finish()
        return results

    def _say_work(self, work: float, averaged: float) -> None:
        """Show one line on how far the learners' rows have come, and how far their mean."""
        cluster = self.job.cluster
        known = cluster.rate, cluster.strategy, cluster.learners, cluster.shared_minibatch
        if said := said_at_end(*known, work=work, averaged=averaged):
            self._tell(said)

    # Records ----------------------------------------------------------------------------------------------------------

    def _resume(self) -> Found | None:
        """Go on from the newest whole checkpoint, and return it; return None if nothing was trained yet."""
        found, learners = self.saves.newest(), self.job.cluster.learners
        if found is None:
            if has_trained(self.exp):
                raise UserError(
                    f"{self.exp} has trained, says its events.jsonl, but {self.saves.folder} has no checkpoint. "
                    "Restore one from a backup. To train this run again from its beginning, give --begin-anew: its log "
                    "is kept under another name."
                )
            cut(self.exp, 0)
            return None
        before, parameters = found.checkpoint.state.vectors["row"].shape
        if parameters != self.runtime.parameters:
            raise UserError(
                f"{found.path}: {before} rows of {parameters} parameters, but now there are {learners} of "
                f"{self.runtime.parameters}: the alignment or the corpus was made again since. Choose another --exp."
            )
        self._load(found.checkpoint)
        self.now = found.position
        self.now.first = self.now.first // before * learners  # the same round: rounds do not depend on learners
        for path, _ in found.damaged:
            set_aside(path)
        cut(self.exp, self.now.events_bytes)
        return found

    def _load(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint's state into the present learners, under their number and strategy."""
        self.runtime.load(gone_on_with(checkpoint.state, self.job.cluster, self._trained(checkpoint)))

    def _trained(self, checkpoint: Checkpoint) -> TrainedBy:
        """Return the strategy that trained a checkpoint; if the checkpoint is of a version that did not note it, the
        present one."""
        learners = range(len(checkpoint.state.vectors["row"]))
        return checkpoint.trained or TrainedBy.of(self.job.cluster.strategy, learners)

    def _announce(self, found: Found | None) -> None:
        job = self.job
        for path, reason in found.damaged if found else self.saves.untrained:
            self._damaged(path, reason, found.path if found else None)
        begun = RunStarted(**self._time(), **self._identity(), train_frames=self.examples, resumed=found is not None)
        self.journal.say(begun)
        cluster = job.cluster
        if said := said_at_start(cluster.rate, cluster.strategy, cluster.learners, cluster.shared_minibatch):
            self._tell(said)
        if self.runtime.remark:
            self._tell(self.runtime.remark)
        if found:
            self._say_changed(self._trained(found.checkpoint), len(found.checkpoint.state.vectors["row"]))

    def _say_changed(self, trained: TrainedBy, before: int) -> None:
        """Show which state learners begin with, if number or strategy has changed since the checkpoint."""
        cluster, after = self.job.cluster, self.job.cluster.learners
        if before == after and trained.remembered_by(cluster.strategy):
            return
        memory = ", ".join(cluster.optimizer.memory)
        optimizers = memory and f"the mean over learners of the optimizer's state ({memory})"
        what = trained.become(cluster.strategy, f"{before} model{'s' * (before > 1)}", optimizers)
        what += "; the schedule, the rounds of the epoch and the place in it stay"
        self.journal.say(LearnersChanged(**self._time(), before=before, after=after, what=what))
        self._tell(f"{after} learner{'s' * (after > 1)} go{'es' * (after == 1)} on where {before} stopped: {what}")

    def _identity(self) -> dict[str, Any]:
        """Return the fields by which records identify this run."""
        mine = {"commit": self.commit, "machine": self.machine, "started_from": self.now.started_from}
        sizes = {"parameters": self.learner.parameters, "minibatch_frames": self.minibatch}
        return {**self.job.identity(), **mine, **sizes, **self.learner.wording}

    def _tell(self, what: str) -> None:
        mention(self.progress, what)

    def _time(self) -> dict[str, Any]:
        return {"wall_s": round(self.now.wall_s + wall_clock() - self.started, 3), "virtual_s": self.now.virtual_s}

    def _checkpoint(self, name: str) -> None:
        epoch = self.now.schedule.epoch
        self.journal.say(CheckpointWritten(**self._time(), epoch=epoch, file=f"checkpoints/{name}.json"))
        position = dataclasses.replace(self.now, wall_s=self._time()["wall_s"], events_bytes=self.journal.size)
        trained = TrainedBy.of(self.job.cluster.strategy, range(self.job.cluster.learners))
        self.saves.write(name, self.runtime.state(), position, trained)
