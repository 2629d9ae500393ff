"""SparseLoCo: DiLoCo whose learners send the few largest elements of what they have changed, in two bits each, and the
rest later (Sarfi, Thérien, Lidin and Belilovsky 2025, arXiv 2508.15706).

With W the anchor and x_i where learner i has come from it in `period` local steps (algorithms/sparsification.py):

    e_i <- beta e_i + (W - x_i)
    s_i  = Q(top-k(e_i))
    e_i <- e_i - s_i
    W   <- W - rate sum_i p_i s_i          p_i: learner i's share of the frames; all go on from W

There is no outer momentum: what is not sent adds up in e_i, and does its work. With `density` 1, `decay` 0 or 1 and
full precision it is diloco with momentum 0.

Sent: 4 P bytes a learner every `period` steps, most of them zeros; by indices and two bits it would be density P (12 +
2) / 8. Waits: everybody for the slowest, every `period` steps.

Where we differ: means of s_i are weighted by frames and taken over all learners, as the paper writes them; in its code
a place counts for those alone who have sent it. Blocks are runs of the row, not parts of a matrix. Vectors travel
whole: no codec here sends places, so bytes are not saved yet.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.algorithms.sparsification import take_largest_
from roundelay.core.effects import Mean
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.strategies.base import Traits, positive
from roundelay.strategies.periodic import LocalMomentum, Periodic, PlainSetting


@dataclass(frozen=True)
class SparseLoCo(Periodic):
    """Outer steps on the mean of sparse changes, with error feedback."""

    period: int = 50
    local_momentum: LocalMomentum = "reset"
    rate: float = 1.0
    density: float = 0.03
    decay: float = 0.95
    two_bits: bool = True

    name: ClassVar[str] = "sparseloco"
    memory: ClassVar[tuple[str, ...]] = ("outer_anchor", "outer_left", "outer_sent")
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=False,
        staleness_bound=0,
        alone_is_sgd=False,
        waits="everybody for the slowest, every period",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.name, "rate", self.rate)
        if not 0 < self.density <= 1:
            raise UserError(f"{self.name}.density is {self.density}: choose a share above 0 and up to 1.")
        if not 0 <= self.decay <= 1:
            raise UserError(f"{self.name}.decay is {self.decay}: choose a number from 0 to 1.")

    @property
    def label(self) -> str:
        return f"{super().label} density {self.density:g}"

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        return self.shortfall(PlainSetting(learners, minibatches_a_round)) * self.rate

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory["outer_anchor"].copy_(me.x)

    def given(self, me: Me, frames: float) -> Mean:
        anchor, left, sent = (me.memory[name] for name in self.memory)
        torch.sub(anchor, me.x, out=sent)
        left.mul_(self.decay).add_(sent)
        if frames:  # else nothing is sent
            take_largest_(left, sent, self.density, self.two_bits)
        return Mean(me.everyone, sent, frames)

    def end_block(self, me: Me, mean: Tensor) -> None:
        anchor = me.memory["outer_anchor"]
        anchor.sub_(mean, alpha=self.rate)
        me.replace(anchor)
