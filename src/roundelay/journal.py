"""Writes the records of a run, curve points among them, to `events.jsonl`, and passes them to loggers.

Learners only count, as they do anyway; the process that leads the run looks at the counts a few times a second. A point
is written when so many minibatches have been trained since the last, so that an epoch has about as many points however
long it takes.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roundelay.checkpoint import Room
from roundelay.core.records import (
    EVENTS,
    SPAN_KINDS,
    CurvePoint,
    Evaluation,
    Exchanges,
    HostJoined,
    HostLost,
    LearnerJoined,
    LearnerLost,
    Links,
    Record,
    Segment,
    Staleness,
    Timeline,
)
from roundelay.core.state import Statistics
from roundelay.loggers.base import FunctionLogger, LoggedRun, Logger
from roundelay.loggers.tensorboard import TensorBoard
from roundelay.run_directory import append
from roundelay.runtime.base import Glance, Lost, Outcome, SegmentPlan, staleness_summary, wall_clock
from roundelay.saving import Position


class Journal:
    """The writer of a run's records, to the log in directory `exp` and to loggers.

    Args:
        run: facts of the run for loggers.
        time: returns the fields of a record that give its time.
        loggers: get every record, as TensorBoard does.
        tell: shows a sentence to those who watch the run.
    """

    def __init__(
        self,
        run: LoggedRun,
        room: Room,
        time: Callable[[], dict[str, Any]],
        loggers: Sequence[Logger] = (),
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._exp, self._room, self._time, self._tell = run.exp, room, time, tell
        self._tensorboard, self._loggers = TensorBoard(tell), [*loggers]
        self._tensorboard.begin(run)
        self._each(lambda logger: logger.begin(run))
        self._deaths: Counter[tuple[int, str]] = Counter()  # said in this segment: rank and reason

    def close(self) -> None:
        """Close the log and all loggers."""
        self._tensorboard.close()
        self._each(lambda logger: logger.close())

    @property
    def asked_to_stop(self) -> bool:
        """True once a user's function that gets records has asked the run to stop."""
        return any(isinstance(logger, FunctionLogger) and logger.asked for logger in self._loggers)

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return (self._exp / EVENTS).stat().st_size

    def say(self, record: Record) -> None:
        """Append a record to the log and give it to loggers; wait for room on a full disk.

        Raises:
            UserError: the disk stays full, or cannot be written.
        """
        self._room.wait_for(lambda: append(self._exp, record), self._exp)
        self._tensorboard.log(record)
        self._each(lambda logger: logger.log(record))

    def _each(self, call: Callable[[Logger], None]) -> None:
        """Call all loggers, and drop those that fail; errors of the user's own functions end the run."""
        for logger in [*self._loggers]:
            try:
                call(logger)
            except Exception as error:
                if isinstance(logger, FunctionLogger):
                    raise
                self._loggers.remove(logger)
                self._tell(f"{type(logger).__name__} is told no more of this run: {error}")

    def begin_segment(self) -> None:
        """Begin a segment: forget the deaths reported in the last one."""
        self._deaths.clear()

    def lose(self, lost: Lost, frames: int = 0) -> None:
        """Report a learner that has died in this segment, at once, since the segment may never come to its end. A death
        that was reported before is not reported again."""
        self._deaths[lost.rank, lost.reason] += 1
        self.say(
            LearnerLost(**self._time(), rank=lost.rank, reason=lost.reason, replaced=lost.replaced, frames_lost=frames)
        )

    def lose_all(self, lost: tuple[Lost, ...]) -> None:
        """Report all learners that have died in this segment so far, in order; each death is reported once."""
        said: Counter[tuple[int, str]] = Counter()
        for one in lost:
            said[one.rank, one.reason] += 1
            if said[one.rank, one.reason] > self._deaths[one.rank, one.reason]:
                self.lose(one)

    def has_said(self, rank: int, reason: str) -> bool:
        """Return True if the death of learner `rank` for `reason` was already reported in this segment."""
        return (rank, reason) in self._deaths

    def segment(self, epoch: int, rate: float, outcome: Outcome, now: Position) -> None:
        """Report a segment of training that has ended; `now` already includes it."""
        counts, statistics, time = outcome.counts, outcome.counts.statistics, self._time()
        seconds = outcome.virtual_seconds if outcome.virtual_seconds is not None else outcome.wall_seconds
        speed = statistics.frames / max(seconds, 1e-9)
        self.lose_all(outcome.lost)
        for joined in outcome.joined:
            self.say(LearnerJoined(**time, rank=joined.rank, copied=joined.copied))
        for number, gone in enumerate(outcome.hosts_lost, 1):
            again = any(later.host == gone.host for later in outcome.hosts_lost[number:])  # which says all of it
            missing = 0 if again else sum(outcome.missing[rank] for rank in gone.ranks if outcome.missing)
            self.say(
                HostLost(
                    **time,
                    host=gone.host,
                    ranks=[*gone.ranks],
                    reason=gone.reason,
                    redrawn=gone.redrawn,
                    missing=missing,
                )
            )
        for back in outcome.hosts_joined:
            self.say(HostJoined(**time, host=back.host, ranks=[*back.ranks], copied=back.copied))
        self.say(
            Segment(
                **time,
                epoch=epoch,
                learning_rate=rate,
                frames=now.frames,
                loss=statistics.mean_loss,
                accuracy=statistics.accuracy,
                frames_per_second=speed,
                learner_frames=counts.frames.tolist(),
                learner_steps=counts.steps.tolist(),
                **_spent(outcome),
                **_gathered(outcome),
                learner_missing=[*outcome.missing] if any(outcome.missing) else [],
                learner_rate_factors=_factors(outcome),
            )
        )
        histogram, largest, mean = staleness_summary(counts)
        self.say(Staleness(**time, epoch=epoch, histogram=histogram, largest=largest, mean=mean))
        self.say(Exchanges(**time, epoch=epoch, matrix=counts.exchanges.tolist()))
        if outcome.lanes:
            lanes = [[[*span] for span in outcome.lanes.get(rank, ())] for rank in range(len(counts.steps))]
            self.say(Timeline(**time, epoch=epoch, kinds=[*SPAN_KINDS], lanes=lanes))
        if outcome.traffic:
            links = [dataclasses.asdict(traffic) for traffic in outcome.traffic]
            rows = {str(host): form for host, form in outcome.forms.items()}
            self.say(Links(**time, epoch=epoch, links=links, refused=outcome.refused, rows=rows))

    def evaluation(
        self, split: str, found: Statistics, epoch: int, frames: int, distance: float, accepted: bool
    ) -> None:
        """Report an evaluation of the model; `distance` is the consensus distance."""
        self.say(
            Evaluation(
                **self._time(),
                epoch=epoch,
                split=split,
                frames=frames,
                cross_entropy=found.mean_loss,
                accuracy=found.accuracy,
                consensus_distance=distance,
                accepted=accepted,
            )
        )


def _spent(outcome: Outcome) -> dict[str, Any]:
    """Return the fields with seconds that learners spent, by activity; empty if seconds are virtual."""
    if outcome.virtual_seconds is not None:
        return {}
    seconds = {name: getattr(outcome.counts, name) for name in ("gradient_s", "update_s", "exchange_s", "mean_s")}
    rounded = {f"learner_{name}": [round(value, 6) for value in array.tolist()] for name, array in seconds.items()}
    return {**rounded, "learner_means": outcome.counts.means.tolist()}


def _factors(outcome: Outcome) -> list[float]:
    """Return the mean factors on the learning rate, by rank; empty if all are 1."""
    sums, steps = outcome.counts.rate_factors, np.maximum(1, outcome.counts.steps)
    return [round(factor, 6) for factor in (sums / steps).tolist()] if sums.any() else []


def _gathered(outcome: Outcome) -> dict[str, Any]:
    """Return the fields on gatherings and contributions to them; empty if there were none."""
    if (gathered := outcome.gathered) is None:
        return {}
    by_rank = {"gathered": gathered.counted, "late": gathered.late, "left_out": gathered.left_out}
    return {"gatherings": gathered.closed, **{f"learner_{name}": [*counts] for name, counts in by_rank.items()}}


class CurvePoints:
    """Writes the curve points of one segment.

    Args:
        period: minibatches of all learners between two points; 0: no points.
        frames: frames trained before the segment.
        say: called with each point.
        time: returns the fields of a record that give its time.
    """

    def __init__(
        self,
        segment: SegmentPlan,
        period: int,
        frames: int,
        say: Callable[[CurvePoint], None],
        time: Callable[[], dict[str, Any]],
    ) -> None:
        self._segment, self._period, self._frames, self._say, self._time = segment, period, frames, say, time
        self._before = Glance(0, 0.0, 0.0, 0)
        self._at, self._virtual_start = wall_clock(), None if period else 0.0

    def look(self, glance: Glance) -> None:
        """Write a point if `period` minibatches have been trained since the last one."""
        if self._virtual_start is None and glance.virtual_seconds is not None:  # the clock has gone on since the start
            self._virtual_start = glance.virtual_seconds
            self._before = dataclasses.replace(self._before, virtual_seconds=glance.virtual_seconds)
        if not self._period or glance.steps - self._before.steps < self._period:
            return
        before, now = self._before, wall_clock()
        seconds, time = now - self._at, self._time()
        if glance.virtual_seconds is not None and before.virtual_seconds is not None:
            seconds = glance.virtual_seconds - before.virtual_seconds
            time["virtual_s"] = (time["virtual_s"] or 0.0) + glance.virtual_seconds - (self._virtual_start or 0.0)
        frames, steps = glance.frames - before.frames, glance.steps - before.steps
        norms = glance.gradient_norms - before.gradient_norms
        self._say(
            CurvePoint(
                **time,
                epoch=self._segment.epoch.epoch,
                frames=self._frames + glance.frames,
                learning_rate=self._rate(glance.steps),
                loss=(glance.loss * glance.frames - before.loss * before.frames) / max(1, frames),
                frames_per_second=round(frames / max(1e-9, seconds), 3),
                staleness=(glance.staleness * glance.steps - before.staleness * before.steps) / steps,
                gradient_norm=(glance.gradient_norm_sum - before.gradient_norm_sum) / norms if norms else None,
                consensus_distance=glance.consensus_distance,
            )
        )
        self._before, self._at = glance, now

    def _rate(self, steps: int) -> float:
        """Return the learning rate of the round reached after `steps` minibatches."""
        segment = self._segment
        return segment.rate(min(segment.end_round - 1, segment.first_round + steps // segment.epoch.learners))
