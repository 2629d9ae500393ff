"""Learners whose gradient is the same everywhere, so that rows tell what their steps were multiplied by; or is told."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task


class Slope(Learner):
    """A learner whose gradient has the same number for every element, 0 for an empty minibatch."""

    examples = 1 << 30

    def __init__(self, number: float, parameters: int) -> None:
        self._number, self.parameters = number, parameters

    def initial(self) -> Tensor:
        return torch.zeros(self.parameters)

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **_: object) -> Statistics:
        out.fill_(self._number if batch.frames else 0.0)
        return Statistics(batch.frames)

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        return Statistics()


@dataclass(frozen=True)
class SlopeTask(Task):
    """The task of learners whose gradient is the same everywhere."""

    number: float = 1.0
    parameters: int = 3

    def build(self) -> Learner:
        return Slope(self.number, self.parameters)


class Told(Learner, Task):
    """A learner of the simulator whose gradients a function computes: from a point and a minibatch, into a vector. The
    function may return the minibatch's loss."""

    def __init__(
        self,
        parameters: int,
        gradient: Callable[[Tensor, Minibatch, Tensor], object],
        examples: int,
        start: float = 0.0,
    ) -> None:
        self.parameters, self.examples, self._gradient, self._start = parameters, examples, gradient, start

    def build(self) -> Learner:
        return self

    def initial(self) -> Tensor:
        return torch.full((self.parameters,), self._start)

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **_: object) -> Statistics:
        loss = self._gradient(x, batch, out)
        return Statistics(batch.frames, loss if isinstance(loss, float) else 0.0)

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        return Statistics()
