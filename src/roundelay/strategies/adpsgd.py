"""AD-PSGD: asynchronous decentralized parallel SGD (Lian et al. 2018, arXiv 1710.06952), on a ring (Cui et al. 2021).

Each learner l, on its own clock, again and again:

    read      y   <- x_l                           (snapshot)
    exchange  x_l, x_j <- (x_l + x_j) / 2          (atomic, with one neighbour j, which goes on with its work)
    gradient  g   <- grad f(y; b)                  (at the snapshot, however old it is by now)
    update    x_l <- x_l - lr * g                  (applied to whatever was mixed in meanwhile)

As one sequence: X_{k+1} = X_k T_k - lr g(X^_k), T_k doubly stochastic, so the sum of all rows moves only by gradients.

Neighbour of the k-th exchange:
    fixed-ring   right, left, right, ... on 0, 1, ..., L-1
    random-ring  the same on the ring relabelled by the permutation of round k, common to all learners. Averaged over
                 permutations every pair meets equally often, so mixing does not slow down with L as on the fixed ring
                 (second eigenvalue of the fixed ring: (1 + 2 cos(2 pi / L)) / 3).

Sent: one model each way (8 P bytes) an exchange, one exchange begun per step. Waits: nobody; an exchange still in
flight is skipped, not waited for. No bound on staleness follows from the method; the largest seen is reported.
Where we differ from Lian et al.: exchanges are one-sided, so no bipartite graph is needed against deadlock, and the
number of learners may be odd. Momentum buffers stay local, as in the public implementations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar, Literal, get_args

from roundelay.algorithms.averaging import pair_average_
from roundelay.core.effects import Begin, Draw, Exchange, Grad, Handle, Wait
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.core.topology import fixed_ring, random_ring, ring_neighbours
from roundelay.strategies.base import Strategy, Traits

Topology = Literal["random-ring", "fixed-ring"]


@dataclass(frozen=True)
class AdPsgd(Strategy):
    """Asynchronous decentralized SGD with pair averages."""

    topology: Topology = "random-ring"

    name: ClassVar[str] = "adpsgd"
    traits: ClassVar[Traits] = Traits(synchronous=False, conserves=True, staleness_bound=None, waits="nobody")

    def __post_init__(self) -> None:
        if self.topology not in get_args(Topology):
            raise UserError(f"adpsgd has no topology {self.topology!r}: choose one of {', '.join(get_args(Topology))}.")

    @property
    def label(self) -> str:
        return f"{self.name} {self.topology}"

    async def learn(self, me: Me) -> None:
        peers = self.peers(me)
        mixing: Handle[bool] | None = None
        while batch := await Draw():
            here = me.snapshot()
            if me.learners > 1 and (mixing is None or mixing.done):  # a slow link delays mixing, never the learner
                mixing = await Begin(Exchange(next(peers), pair_average_))
            me.step(await Grad(here, batch))
        if mixing is not None:
            await Wait(mixing)

    def peers(self, me: Me) -> Iterator[int]:
        """Whom to ask, exchange after exchange; goes on after a resume where it stood."""
        for k in count(me.steps):
            ring = fixed_ring(me.learners) if self.topology == "fixed-ring" else random_ring(me.learners, me.seed, k)
            left, right = ring_neighbours(ring, me.rank)
            yield left if k % 2 else right
