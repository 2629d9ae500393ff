"""A task that kills its learner, or the learner's whole host, at one gradient."""

import os
import signal
from dataclasses import dataclass

from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task
from roundelay.learner.quadratic import Quadratic, QuadraticLearner


class FatalLearner(QuadraticLearner):
    """A quadratic that is deadly at one minibatch."""

    def __init__(self, task: "Fatal") -> None:
        super().__init__(task.quadratic)
        self._fatal = task

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **_: object) -> Statistics:
        if (batch.epoch, batch.index) == (0, self._fatal.at) and os.getpid() != self._fatal.spared:
            if self._fatal.host:
                os.killpg(0, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().gradient(x, batch, plan, out)


@dataclass(frozen=True)
class Fatal(Task):
    """The gradient over minibatch `at` of the first epoch kills the process that computes it, unless that is `spared`;
    with `host` its process group, which is a host of support/hosts.py."""

    quadratic: Quadratic
    at: int
    spared: int = 0
    host: bool = False

    def build(self) -> Learner:
        return FatalLearner(self)
