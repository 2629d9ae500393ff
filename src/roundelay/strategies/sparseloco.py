"""SparseLoCo: DiLoCo whose learners send the few largest elements of their changes, in two bits each, and the
rest later (Sarfi, Thérien, Lidin and Belilovsky 2025, arXiv 2508.15706).

With W the anchor and x_i where learner i has come from it in `period` local steps (algorithms/sparsification.py):

    e_i <- beta e_i + (W - x_i)
    s_i  = Q(top-k(e_i))
    e_i <- e_i - s_i
    W   <- W - rate sum_i p_i s_i          p_i: learner i's share of the frames; all go on from W

There is no outer momentum: elements not sent add up in e_i, which does its work. With `density` 1, `decay` 0 or 1 and
full precision it is diloco with momentum 0.

Sent: density P (12 + 2) / 8 bytes a learner every `period` steps and 16 a block, which is P / 18 by default: s_i, and
so e_i, are as the codec of the message leaves them (algorithms/codecs/sparse.py). Waits: all learners for the slowest,
every `period` steps.

Where we differ: means of s_i are weighted by frames and taken over all learners, as others quote the paper; in its code
a place counts for those alone who have sent it. Blocks are runs of the row, not parts of a matrix.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.core.bounds import Count, Positive, Share, ShareAboveZero
from roundelay.core.effects import Mean
from roundelay.core.state import Me
from roundelay.strategies.base import HostOption, Traits
from roundelay.strategies.periodic import LocalMomentum, Periodic, PlainSetting


@dataclass(frozen=True)
class SparseLoCo(Periodic):
    """SparseLoCo: outer steps on the mean of sparse changes, with error feedback."""

    period: Count = 50
    local_momentum: LocalMomentum = "reset"
    rate: Positive = 1.0
    """Rate of the outer step."""
    density: ShareAboveZero = 0.03
    """Share of the elements of every block that a learner sends."""
    decay: Share = 0.95
    """Share of the unsent changes that is left after a period."""
    two_bits: bool = True
    """Send one of four values a block for each element, instead of its own."""

    name: ClassVar[str] = "sparseloco"
    memory: ClassVar[tuple[str, ...]] = ("outer_anchor", "outer_left", "outer_sent")
    traits: ClassVar[Traits] = replace(Periodic.traits, alone_is_sgd=False)

    @property
    def label(self) -> str:
        return f"{super().label} density {self.density:g}"

    @property
    def host_options(self) -> frozenset[HostOption]:
        return super().host_options if self.local_momentum == "average" else frozenset()  # momenta go as they are

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        return self.shortfall(PlainSetting(learners, minibatches_a_round)) * self.rate

    @property
    def form(self) -> Sparse:
        """The codec of the messages between learners."""
        return Sparse("outer_left", self.density, self.two_bits)

    def start(self, me: Me) -> None:
        if me.steps == 0:
            me.memory["outer_anchor"].copy_(me.x)

    def given(self, me: Me, frames: float) -> Mean:
        anchor, left, given = (me.memory[name] for name in self.memory)
        left.mul_(self.decay)
        return Mean(me.everyone, torch.sub(anchor, me.x, out=given), frames, self.form)

    def end_block(self, me: Me, mean: Tensor) -> None:
        anchor = me.memory["outer_anchor"]
        anchor.sub_(mean, alpha=self.rate)
        me.replace(anchor)
