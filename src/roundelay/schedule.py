"""Learning-rate schedules: pure functions from the results so far to the next epoch's rate.

All rules share two things.

*Linear scaling* (Goyal et al. 2017, "Accurate, large minibatch SGD"): with `base_minibatch` given, `learning_rate` is
the rate for a round of that many frames, and the run's rate is

    learning_rate * minibatch / base_minibatch          minibatch: frames a round, over all learners

*Warm-up* (the gradual one of the same paper): over the first `warmup_epochs`, which need not be whole, the rate goes
round by round in a straight line from `warmup_from`, by default the unscaled learning_rate, to the scaled one. It is a
factor on the rule's rate, and a function of the round: an asynchronous learner takes the rate of the round its
minibatch belongs to, so that a rate depends on the data only, never on timing.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Literal

from roundelay.core.bounds import Count, NonNegative, ShareAboveZero
from roundelay.core.configure import check_values
from roundelay.core.errors import UserError
from roundelay.core.rates import Warmup


@dataclass(frozen=True)
class SchedulePosition:
    """The position in a schedule. `best` is the held-out loss of the last accepted epoch."""

    epoch: int  # the next to train, from 0
    learning_rate: float  # of that epoch; when warm
    best: float | None = None
    halving: bool = False
    stopped: str = ""  # why, or "" to go on


@dataclass(frozen=True)
class Schedule(ABC):
    """The base of all schedules. `max_epochs` ends a run under each."""

    rule: str = field(default="", kw_only=True)
    """Newbob (by held-out loss) or anneal (by epoch)."""
    learning_rate: NonNegative = 0.02
    """Learning rate at the start."""
    max_epochs: Count = field(default=20, kw_only=True)
    """Epochs, at most."""
    factor: ShareAboveZero = field(default=0.5, kw_only=True)
    """Factor on the learning rate at each reduction."""
    reject_worse: bool = field(default=False, kw_only=True)
    """Take back an epoch that made the held-out loss worse."""
    base_minibatch: Count | None = field(default=None, kw_only=True)
    """Size for which learning_rate is meant, in the unit of training.minibatch (or minibatch_per_learner, whichever is
    given); the rate is scaled to that."""
    warmup_epochs: NonNegative = field(default=0.0, kw_only=True)
    """Epochs over which the rate rises from warmup_from to its value."""
    warmup_from: NonNegative | None = field(default=None, kw_only=True)
    """Learning rate at the start of the warm-up; null for learning_rate."""

    def __post_init__(self) -> None:
        check_values(self, "schedule")
        if self.warmup_from is not None and not self.warmup_epochs:
            raise UserError("schedule.warmup_from needs schedule.warmup_epochs above 0.")
        if self.warmup_epochs and self.warmup_from is None and self.base_minibatch is None:
            raise UserError(
                "schedule.warmup_epochs: the warm-up would begin at learning_rate and end there. Give a "
                "schedule.warmup_from, or a schedule.base_minibatch."
            )

    def scaled(self, minibatch: int) -> float:
        """Return the learning rate of a run with `minibatch` frames a round."""
        return self.learning_rate * (minibatch / self.base_minibatch if self.base_minibatch else 1)

    def warmup(self, minibatch: int, epoch: int, rounds: int) -> Warmup | None:
        """Return the warm-up within epoch `epoch`, if all epochs have `rounds` rounds; None when it is over."""
        if epoch >= self.warmup_epochs:
            return None
        scaled, begin = self.scaled(minibatch), self.learning_rate if self.warmup_from is None else self.warmup_from
        return Warmup(begin / scaled if scaled else 1.0, self.warmup_epochs * rounds, epoch * rounds)

    @abstractmethod
    def decide(self, now: SchedulePosition, gain: float) -> SchedulePosition:
        """Decide how to go on after an epoch in which the held-out loss fell by the share `gain` of itself. This method
        changes only the rate, `halving` and `stopped`."""


@dataclass(frozen=True)
class Newbob(Schedule):
    """A schedule of a fixed rate while the held-out loss falls by at least `halve_below` of itself; then halved every
    epoch; stopped when, while halving, it falls by less than `stop_below` (Li et al. 2017; the values are theirs).

    An epoch that made the held-out loss worse is taken back (`reject_worse`), as in the recipe behind that paper.
    `stop_below: null` never stops before `max_epochs`: then runs to be compared all see the same number of frames.
    In the warm-up, where rates are small on purpose, only a loss that got worse starts the halving.
    """

    rule: Literal["newbob"] = field(default="newbob", kw_only=True)
    halve_below: float = field(default=0.01, kw_only=True)
    """Relative gain of the held-out loss below which reductions begin."""
    stop_below: float | None = field(default=0.001, kw_only=True)
    """Relative gain below which training stops, once reductions have begun; null for never."""
    reject_worse: bool = field(default=True, kw_only=True)

    def decide(self, now: SchedulePosition, gain: float) -> SchedulePosition:
        stopped = ""
        if now.halving and self.stop_below is not None and gain < self.stop_below:
            change = "fell only" if gain >= 0 else "rose"
            stopped = f"held-out loss {change} {100 * abs(gain):.2f} %"
        enough = 0.0 if now.epoch < self.warmup_epochs else self.halve_below
        halving = now.halving or gain < enough
        rate = now.learning_rate * self.factor if halving else now.learning_rate
        return replace(now, learning_rate=rate, halving=halving, stopped=stopped)


@dataclass(frozen=True)
class Anneal(Schedule):
    """A schedule of a fixed rate for `anneal_from` epochs, the warm-up among them; from then on multiplied by `factor`
    before every epoch, whatever the held-out loss. No epoch is taken back unless `reject_worse` asks for it."""

    rule: Literal["anneal"] = field(default="anneal", kw_only=True)
    max_epochs: Count = field(default=16, kw_only=True)
    factor: ShareAboveZero = field(default=2**-0.5, kw_only=True)
    anneal_from: Count = field(default=10, kw_only=True)
    """Epochs before the first reduction."""

    def decide(self, now: SchedulePosition, gain: float) -> SchedulePosition:
        annealing = now.epoch + 1 >= self.anneal_from
        return replace(now, learning_rate=now.learning_rate * (self.factor if annealing else 1))


def start(schedule: Schedule, minibatch: int, loss: float | None = None) -> SchedulePosition:
    """Return the position before the first epoch of a run with `minibatch` frames a round; `loss` is the untrained
    model's held-out loss, which an epoch must not make worse."""
    return SchedulePosition(0, schedule.scaled(minibatch), loss if loss is not None and math.isfinite(loss) else None)


def advance(schedule: Schedule, now: SchedulePosition, loss: float) -> tuple[SchedulePosition, bool]:
    """Advance after an epoch that ended with held-out `loss` (nats per frame); return the next position, and True if
    the epoch is accepted."""
    if not math.isfinite(loss):
        accepted, gain = not schedule.reject_worse, float("-inf")
    elif now.best is None:
        accepted, gain = True, float("inf")
    else:
        gain = (now.best - loss) / now.best if now.best else 0.0
        accepted = loss <= now.best or not schedule.reject_worse
    best = loss if accepted and math.isfinite(loss) else now.best
    after = schedule.decide(now, gain)
    if not after.stopped and now.epoch + 1 >= schedule.max_epochs:
        after = replace(after, stopped=f"all {schedule.max_epochs} epochs done")
    return replace(after, epoch=now.epoch + 1, best=best), accepted
