"""Quadratics whose learners misbehave; a module of its own because learner processes import it by name."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner
from roundelay.learner.quadratic import Quadratic, QuadraticLearner


class _Failing(QuadraticLearner):
    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **how: Any) -> Statistics:
        if batch.index == 10:
            raise ArithmeticError("minibatch 10 is cursed")
        return super().gradient(x, batch, plan, out, **how)


@dataclass(frozen=True)
class Failing(Quadratic):
    """A quadratic of which one minibatch raises an exception, in any learner that draws it."""

    def build(self) -> Learner:
        return _Failing(self)


@dataclass(frozen=True)
class DeadOnArrival(Quadratic):
    """A quadratic that ends any process except `parent` while it builds its learner."""

    parent: int = 0

    def build(self) -> Learner:
        if os.getpid() != self.parent:
            os._exit(7)
        return QuadraticLearner(self)


@dataclass(frozen=True)
class SlowToStart(Quadratic):
    """A quadratic whose learners, but for that of process `parent`, are built once there is `file`."""

    parent: int = 0
    file: str = ""

    def build(self) -> Learner:
        while os.getpid() != self.parent and not Path(self.file).exists():
            time.sleep(0.01)
        return QuadraticLearner(self)


@dataclass(frozen=True)
class Moody(Quadratic):
    """Does at a learner's start what a file in `folder` says: it waits as long as there is one called `wait`, and ends
    or raises an exception if there is one called `end` or `raise`."""

    folder: str = ""

    def build(self) -> Learner:
        while Path(self.folder, "wait").exists():
            time.sleep(0.01)
        if Path(self.folder, "end").exists():
            os._exit(7)
        if Path(self.folder, "raise").exists():
            raise ArithmeticError("no luck today")
        return QuadraticLearner(self)


class _Waiting(QuadraticLearner):
    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **how: Any) -> Statistics:
        task = self._task
        assert isinstance(task, Waiting)
        while (batch.epoch, batch.index) >= (task.epoch, task.index) and not Path(task.file).exists():
            time.sleep(0.01)
        return super().gradient(x, batch, plan, out, **how)


@dataclass(frozen=True)
class Waiting(Quadratic):
    """A quadratic of which the gradients from minibatch `index` of an epoch on are there once there is `file`."""

    epoch: int = 0
    index: int = 0
    file: str = ""

    def build(self) -> Learner:
        return _Waiting(self)


@dataclass(frozen=True)
class Unlucky(Quadratic):
    """The first `deaths` learners that are built, but for those of process `parent`, are killed by signal `number`; a
    file each in `folder` counts them."""

    parent: int = 0
    deaths: int = 1
    number: int = signal.SIGKILL
    folder: str = ""

    def build(self) -> Learner:
        if os.getpid() != self.parent:
            for death in range(self.deaths):
                try:
                    Path(self.folder, f"{death}").touch(exist_ok=False)
                except FileExistsError:
                    continue
                os.kill(os.getpid(), self.number)
        return QuadraticLearner(self)
