"""A2CiD2: AD-PSGD with a momentum of gossip, which mixes a sparse graph faster (Nabli, Belilovsky and Oyallon 2023,
arXiv 2306.08289).

The equations are in algorithms/continuous_momentum.py. Each learner keeps `ahead`, how far its second vector x~ is
before its row, and as in adpsgd, on its own clock:

    read      y   <- x_l                           (snapshot)
    exchange  x_l and x~_l mix for as long as the last exchange is past, then x_l, x_j <- (x_l + x_j) / 2,
              x~_l, x~_j <- x~_l - pull d, x~_j + pull d, with d = x_l - x_j        (atomic)
    gradient  g   <- grad f(y; b)
    update    x_l <- x_l - lr * g                  (and x~_l with it)

Rows and x~ together keep their sum; rows alone do not. With `mixing_rate` 0 the rows are those of adpsgd, to the bit.
`mixing_rate: null` and `pull: null` are the constants of the mean graph in its authors' code: on a ring the momentum is
strong, and where all learners meet each other (random, random-ring) it is nothing.

Sent: one model each way (8 P bytes) an exchange: each end finds the change of its x~ from its own row. Waits: no
learner.

Where we differ: x and x~ of a learner mix when it begins an exchange of its own, with the gradients it has taken since
as the time; there they also mix when a peer comes, by the time of a common clock. A learner begins an exchange with
every gradient, so that it meets twice a unit of time on average, and the constants are of that; there meetings come by
chance at a rate of choice. Between hosts x~ travels with the row: two models each way (16 P bytes).
"""

from dataclasses import dataclass
from typing import ClassVar

from roundelay.algorithms.continuous_momentum import constants, meeting
from roundelay.core.bounds import NonNegative, Positive
from roundelay.core.effects import Begin, Draw, Exchange, Grad, Handle, Wait
from roundelay.core.state import Me
from roundelay.core.topology import doublings
from roundelay.strategies.adpsgd import Asynchronous, Topology
from roundelay.strategies.base import HostOption, Traits

AHEAD = "gossip_ahead"


@dataclass(frozen=True)
class A2CiD2(Asynchronous):
    """Asynchronous decentralized SGD with a continuous momentum of gossip."""

    topology: Topology = "fixed-ring"
    mixing_rate: NonNegative | None = None
    """Rate at which second vectors and rows of A2CiD2 mix, for one gradient's time; null for the graph's own."""
    pull: Positive | None = None
    """Share of a difference by which an exchange moves the second vectors of A2CiD2; null for the graph's own."""

    name: ClassVar[str] = "a2cid2"
    memory: ClassVar[tuple[str, ...]] = (AHEAD,)
    traits: ClassVar[Traits] = Traits(
        synchronous=False, conserves=False, staleness_bound=None, waits="none", rows="own"
    )

    @property
    def host_options(self) -> frozenset[HostOption]:
        return frozenset(("exchange_share",))  # rows travel with their vectors, as they are

    def settled(self, learners: int) -> tuple[float, float]:
        """Return the mixing rate, for one gradient's time, and the pull, for `learners` learners."""
        ahead = {"fixed-ring": (1,), "exponential": doublings(learners)}
        eta, pull = constants(learners, ahead.get(self.topology))
        return (
            eta if self.mixing_rate is None else self.mixing_rate,
            pull if self.pull is None else self.pull,
        )

    async def learn(self, me: Me) -> None:
        peers, (eta, pull) = self.peers(me.rank, me.learners, me.seed, me.steps), self.settled(me.learners)
        mixing: Handle[int | None] | None = None
        begun = me.steps - 1
        while batch := await Draw():
            here = me.snapshot()
            if me.learners > 1 and (mixing is None or mixing.done):  # a slow link delays mixing, never the learner
                rule = meeting(eta, pull, me.steps - begun)
                mixing = await Begin(Exchange(next(peers), rule, (me.memory[AHEAD],), theirs=(AHEAD,)))
                begun = me.steps
            me.step(await Grad(here, batch))
        if mixing is not None:
            await Wait(mixing)
