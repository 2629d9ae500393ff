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
    random       anybody else, drawn by each learner for itself
    exponential  the learner 1, 2, 4, ... places ahead, by turns

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
from roundelay.core.streams import stream
from roundelay.core.topology import doublings, random_ring_neighbours
from roundelay.strategies.base import Strategy, Traits

Topology = Literal["random-ring", "fixed-ring", "random", "exponential"]


@dataclass(frozen=True)
class Asynchronous(Strategy):
    """Base of asynchronous gossip: the sequence of peers to exchange with."""

    topology: Topology = "random-ring"

    def __post_init__(self) -> None:
        if self.topology not in get_args(Topology):
            raise UserError(
                f"{self.name} has no topology {self.topology!r}: choose one of {', '.join(get_args(Topology))}."
            )

    @property
    def label(self) -> str:
        return f"{self.name} {self.topology}"

    def peers(self, place: int, places: int, seed: int, first: int) -> Iterator[int]:
        """Peers of the learner at `place` of `places`, from its exchange number `first` on: a function of the number
        alone, so a resumed run goes on where it stood."""
        ahead = doublings(places)
        for k in count(first):
            match self.topology:
                case "fixed-ring":
                    yield (place + (-1 if k % 2 else 1)) % places
                case "random-ring":
                    yield random_ring_neighbours(places, seed, k)[place][0 if k % 2 else 1]
                case "random":
                    other = int(stream(seed, "peer", place, k).integers(places - 1))
                    yield other + (other >= place)
                case "exponential":
                    yield (place + ahead[k % len(ahead)]) % places


@dataclass(frozen=True)
class AdPsgd(Asynchronous):
    """Asynchronous decentralized SGD with pair averages."""

    name: ClassVar[str] = "adpsgd"
    traits: ClassVar[Traits] = Traits(
        synchronous=False, conserves=True, staleness_bound=None, waits="nobody", rows="own", paced_by_links=True
    )

    async def learn(self, me: Me) -> None:
        peers = self.peers(me.rank, me.learners, me.seed, me.steps)
        mixing: Handle[int | None] | None = None
        while batch := await Draw():
            here = me.snapshot()
            if me.learners > 1 and (mixing is None or mixing.done):  # a slow link delays mixing, never the learner
                mixing = await Begin(Exchange(next(peers), pair_average_))
            me.step(await Grad(here, batch))
        if mixing is not None:
            await Wait(mixing)
