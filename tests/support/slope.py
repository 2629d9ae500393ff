"""Learners whose gradient is the same everywhere, so that rows tell what their steps were multiplied by."""

from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task


class Slope(Learner):
    """A learner of so many parameters, whose gradient has this number for every element; 0 of an empty minibatch."""

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
    """The task of such learners."""

    number: float = 1.0
    parameters: int = 3

    def build(self) -> Learner:
        return Slope(self.number, self.parameters)
