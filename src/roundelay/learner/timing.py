"""Nothing to learn: a task without parameters, for simulations that ask only how long things take."""

from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task


class TimingLearner(Learner):
    """Counts frames. Rows are empty, so every equation of every strategy is done at once."""

    def __init__(self, examples: int) -> None:
        self.parameters, self.examples = 0, examples

    def initial(self) -> Tensor:
        return torch.empty(0)

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **_: object) -> Statistics:
        return Statistics(batch.frames)

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        return Statistics(1)


@dataclass(frozen=True)
class TimingOnly(Task):
    """So many examples and no parameters."""

    examples: int = 10_000

    def build(self) -> Learner:
        return TimingLearner(self.examples)
