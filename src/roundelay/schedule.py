"""Learning-rate schedules: pure functions from what was seen to what comes next."""

import math
from dataclasses import dataclass, replace

from roundelay.core.errors import UserError


@dataclass(frozen=True)
class Newbob:
    """Fixed rate while the held-out loss falls by at least `halve_below` of itself; then halved every epoch; stopped
    when, while halving, it falls by less than `stop_below` (Li et al. 2017; the values are theirs).

    An epoch that made the held-out loss worse is taken back (`reject_worse`), as in the recipe behind that paper.
    `stop_below: null` never stops before `max_epochs`: then runs to be compared all see the same number of frames.
    """

    learning_rate: float = 0.02
    halve_below: float = 0.01
    stop_below: float | None = 0.001
    factor: float = 0.5
    max_epochs: int = 20
    reject_worse: bool = True

    def __post_init__(self) -> None:
        if not self.learning_rate >= 0:
            raise UserError(f"schedule.learning_rate is {self.learning_rate}: it cannot be negative.")
        if self.max_epochs < 1:
            raise UserError(f"schedule.max_epochs is {self.max_epochs}: at least one epoch is needed.")
        if not 0 < self.factor <= 1:
            raise UserError(f"schedule.factor is {self.factor}: choose a number above 0, up to 1.")


@dataclass(frozen=True)
class Progress:
    """Where a schedule stands. `best` is the held-out loss of the last accepted epoch."""

    epoch: int  # the next to train, from 0
    learning_rate: float
    best: float | None = None
    halving: bool = False
    stopped: str = ""  # why, or "" to go on


def start(schedule: Newbob, loss: float | None = None) -> Progress:
    """Before the first epoch; `loss` is the held-out loss of the untrained model, which an epoch must not make
    worse."""
    return Progress(0, schedule.learning_rate, loss if loss is not None and math.isfinite(loss) else None)


def advance(schedule: Newbob, now: Progress, loss: float) -> tuple[Progress, bool]:
    """After an epoch ended with held-out `loss` (nats per frame): what comes next, and whether the epoch is
    accepted."""
    epoch = now.epoch + 1
    if not math.isfinite(loss):
        accepted, gain = not schedule.reject_worse, float("-inf")
    elif now.best is None:
        accepted, gain = True, float("inf")
    else:
        gain = (now.best - loss) / now.best if now.best else 0.0
        accepted = loss <= now.best or not schedule.reject_worse
    best = loss if accepted and math.isfinite(loss) else now.best
    stopped = ""
    if now.halving and schedule.stop_below is not None and gain < schedule.stop_below:
        change = "fell only" if gain >= 0 else "rose"
        stopped = f"held-out loss {change} {100 * abs(gain):.2f} %"
    elif epoch >= schedule.max_epochs:
        stopped = f"all {schedule.max_epochs} epochs done"
    halving = now.halving or gain < schedule.halve_below
    rate = now.learning_rate * schedule.factor if halving else now.learning_rate
    return replace(now, epoch=epoch, learning_rate=rate, best=best, halving=halving, stopped=stopped), accepted
