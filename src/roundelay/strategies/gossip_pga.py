"""Gossip with periodic global averaging (Chen, Yuan, Zhang, Pan, Xu and Yin 2021, "Accelerating gossip SGD with
periodic global averaging").

    y_l = x_l - lr g(x_l)
    x_l <- mean_j y_j              every `period` rounds
    x_l <- sum_j T_lj y_j          else

so that a sparse topology's small spectral gap cannot let the models drift apart for long. Adapt, then combine, as in
dpsgd's default order; the topologies are the same.

Sent: one model (4 P bytes) a learner and neighbour each step, and one a learner in an allreduce every `period` steps.
Waits: each learner for its neighbours, every step; all for the slowest, every period.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.core.bounds import Count
from roundelay.core.effects import Draw, Grad, Mean
from roundelay.core.state import Me
from roundelay.strategies.base import Traits
from roundelay.strategies.dpsgd import Gossip


@dataclass(frozen=True)
class GossipPga(Gossip):
    """Decentralized SGD with a mean of all models now and then."""

    period: Count = 6
    """Local steps between two communications."""

    name: ClassVar[str] = "gossip-pga"
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=True,
        staleness_bound=0,
        waits="all for its neighbours, every step; for the slowest, every period",
        rows="own",
    )

    @property
    def label(self) -> str:
        return f"{super().label} period {self.period}"

    async def learn(self, me: Me) -> None:
        while batch := await Draw():
            mix = self.mix(me, me.steps)  # the matrices of dpsgd, round by round
            me.step(await Grad(me.snapshot(), batch))
            everybody = me.steps % self.period == 0
            me.replace(await (Mean(me.everyone, me.x) if everybody else mix))
