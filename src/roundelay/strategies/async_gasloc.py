"""Asynchronous GASLoC, which is ours: gossip with an outer momentum, each learner on its own clock, and no centre.

After `period` local steps of its own, with one other learner j, which trains on, learner i has (algorithms/
outer_momentum.py)

    exchange  y  <- x_i;  x_i, x_j <- (x_i + x_j) / 2;  x_i <- x_i + momentum (y - y')          (atomic)
              y' <- y                           the first time, and where y' is lost, without momentum

and trains on from x_i. That is `gasloc` with rate 1, on the matrix of one pair at a time. Learners that are slow take
fewer local steps while others take more: the unequal local steps H_i of GASLoC (arXiv 2606.11081, see gasloc.py). With
`momentum` 0 and `period` 1 it is adpsgd with equal weights, to the bit.

`momentum: null` is the block momentum with which the mean of all rows moves as far as one learner does: 1 - 1/L where
each of L learners has a minibatch of its own, at most 0.9; 0 where they share one.

Sent: one model each way (8 P bytes) an exchange on one host; between hosts y' travels along (16 P bytes). Waits: no
learner; an exchange that is still in flight is not waited for, the next begins when it is through.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.algorithms.outer_momentum import OuterMeeting
from roundelay.core.bounds import Count, ShareBelowOne
from roundelay.core.effects import Begin, Draw, Exchange, Grad, Handle, Wait
from roundelay.core.state import Me
from roundelay.strategies.adpsgd import Asynchronous
from roundelay.strategies.base import HostOption, Traits

PROPOSED = "outer_proposed"
LARGEST_MOMENTUM = 0.9
"""Largest momentum that is taken by default, as in DiLoCo."""


@dataclass(frozen=True)
class AsyncGasLoC(Asynchronous):
    """Pair averages after many local steps, with a momentum of each learner's."""

    period: Count = 50
    """Local steps between two communications."""
    momentum: ShareBelowOne | None = None
    """Momentum of a learner's proposals; null for 1 - 1/L where each has a minibatch of its own, at most 0.9, and
    none where they share one."""

    name: ClassVar[str] = "async-gasloc"
    memory: ClassVar[tuple[str, ...]] = (PROPOSED,)
    traits: ClassVar[Traits] = Traits(
        synchronous=False, conserves=False, staleness_bound=None, waits="none", rows="own"
    )

    @property
    def label(self) -> str:
        return f"{super().label} period {self.period}"

    @property
    def host_options(self) -> frozenset[HostOption]:
        return frozenset(("exchange_share",))  # rows travel with their vectors, as they are

    def settled(self, minibatches_a_round: int) -> float:
        """Return the momentum of proposals, as given or by the number of learners."""
        return min(LARGEST_MOMENTUM, 1 - 1 / minibatches_a_round) if self.momentum is None else self.momentum

    def distance(self, learners: int, minibatches_a_round: int) -> float:
        momentum = self.settled(minibatches_a_round) if learners > 1 else 0.0
        return 1 / minibatches_a_round / (1 - momentum)

    async def learn(self, me: Me) -> None:
        peers = self.peers(me.rank, me.learners, me.seed, me.steps // self.period)
        rule, last = OuterMeeting(self.settled(me.minibatches_a_round)), me.memory[PROPOSED]
        mixing: Handle[int | None] | None = None
        steps = me.steps % self.period or self.period
        while batch := await Draw():
            here = me.snapshot()
            if steps >= self.period and me.learners > 1 and (mixing is None or mixing.done):
                mixing, steps = await Begin(Exchange(next(peers), rule, (last,), theirs=(PROPOSED,))), 0
            me.step(await Grad(here, batch))
            steps += 1
        if mixing is not None:
            await Wait(mixing)
