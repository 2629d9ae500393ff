"""A task whose every number is the same on every machine, to the last bit.

    gradient of minibatch i = (x - c) / 2 + ((i mod 4) - 3/2) / 8 ,   c_p = p - 2 ,   x = 0 at first

Products are by powers of two (give a learning rate, a momentum and a moving rate that are such), so they are exact, and
a processor that adds to a product at once rounds as one that rounds twice. Sums are of two numbers; those of a loss are
taken one after the other.

Legend: P parameters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, OnReady, Task

PARAMETERS, EXAMPLES = 5, 1280


class ExactLearner(Learner):
    """See the module's equation."""

    parameters, examples = PARAMETERS, EXAMPLES

    def __init__(self) -> None:
        self._c = torch.arange(PARAMETERS, dtype=torch.float32) - 2.0

    def initial(self) -> Tensor:
        return torch.zeros(PARAMETERS)

    def gradient(
        self,
        x: Tensor,
        batch: Minibatch,
        plan: EpochPlan,
        out: Tensor,
        *,
        resident: bool = False,
        on_ready: OnReady | None = None,
    ) -> Statistics:
        out.copy_((x - self._c) * 0.5 + (batch.index % 4 - 1.5) / 8)
        return Statistics(batch.frames, self._loss(x) * batch.frames)

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        return Statistics(1, self._loss(x))

    def _loss(self, x: Tensor) -> float:
        away: list[float] = (x - self._c).tolist()
        return sum(0.25 * value * value for value in away)


@dataclass(frozen=True)
class Exact(Task):
    """The task of such learners."""

    def build(self) -> Learner:
        return ExactLearner()
