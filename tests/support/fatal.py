"""Tasks that kill their learner, or the learner's whole host, at one gradient, or get it wrong."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task
from roundelay.learner.quadratic import Quadratic, QuadraticLearner
from support.coarse import CoarseLearner


class FatalLearner(QuadraticLearner):
    """A quadratic that is deadly at one minibatch."""

    def __init__(self, task: "Fatal") -> None:
        super().__init__(task.quadratic)
        self._fatal = task

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **_: object) -> Statistics:
        fatal = self._fatal
        if batch.epoch == 0 and batch.index in (fatal.at, fatal.learner_at) and fatal.strikes(batch.index):
            if fatal.host and batch.index == fatal.at:
                os.killpg(0, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().gradient(x, batch, plan, out)


@dataclass(frozen=True)
class Fatal(Task):
    """The gradient over minibatch `at` of the first epoch kills the process that computes it, unless that is `spared`;
    with `host` its process group, which is a host of support/hosts.py. The one over `learner_at` kills its process.

    Whoever draws the same minibatch after that dies too, unless `once` is a folder, in which is noted who struck; as
    long as there is a file `wait` in it, no learner is built.
    """

    quadratic: Quadratic
    at: int
    spared: int = 0
    host: bool = False
    learner_at: int = -1
    once: str = ""

    def strikes(self, index: int) -> bool:
        """Return True if this process is to die at minibatch `index`, and note that it does."""
        if os.getpid() == self.spared:
            return False
        try:
            if self.once:
                (Path(self.once) / f"struck-{index}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def build(self) -> Learner:
        while self.once and Path(self.once, "wait").exists():
            time.sleep(0.01)
        return FatalLearner(self)


@dataclass(frozen=True)
class Corrupt(Task):
    """A task of which the gradient over minibatch `at` has one wrong bit in one element."""

    quadratic: Quadratic
    at: int

    def build(self) -> Learner:
        return CorruptLearner(self)


class CorruptLearner(CoarseLearner):
    """A quadratic that gets one gradient wrong."""

    def __init__(self, task: Corrupt) -> None:
        super().__init__(task.quadratic)
        self._wrong = task.at

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **_: object) -> Statistics:
        found = super().gradient(x, batch, plan, out)
        if batch.index == self._wrong:
            out.view(torch.int32)[3] ^= 1
        return found
