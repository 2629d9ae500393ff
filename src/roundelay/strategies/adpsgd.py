"""AD-PSGD: asynchronous decentralized parallel SGD (Lian et al. 2018, arXiv 1710.06952), on a ring (Cui et al. 2021).

Each learner l, on its own clock, again and again:

    read      y   <- x_l                           (snapshot)
    exchange  x_l, x_j <- (x_l + x_j) / 2          (atomic, with one neighbour j, which goes on with its work)
    gradient  g   <- grad f(y; b)                  (at the snapshot, however old it is by now)
    update    x_l <- x_l - lr * g                  (applied to the row as mixed meanwhile)

As one sequence: X_{k+1} = X_k T_k - lr g(X^_k), T_k doubly stochastic, so the sum of all rows moves only by gradients.

Neighbour of the k-th exchange:
    fixed-ring   right, left, right, ... on 0, 1, ..., L-1
    random-ring  the same on the ring relabelled by the permutation of round k, common to all learners. Averaged over
                 permutations every pair meets equally often, so mixing does not slow down with L as on the fixed ring
                 (second eigenvalue of the fixed ring: (1 + 2 cos(2 pi / L)) / 3).
    random       any other learner, drawn by each learner for itself
    exponential  the learner 1, 2, 4, ... places ahead, by turns

With `weights` "progress", the default under rates `gain` and `fastest`, rows are weighed by their learners' updates.
Row l has a mass m_l, which grows by 1 with every update; the exchange of l with j is

    x_l, x_j <- p x_l + (1 - p) x_j,   p = w_l / (w_l + w_j),  w = sqrt(m)         (1/2 where both are 0)
    m_l <- (1 - 1 / (M (L - 1))) m_l,  m_j <- (1 - 1 / M) m_j                      M = 256 (`REMEMBERED`)

It leaves w_l x_l + w_j x_j, with the weights it begins with, as it was, and the model is the mean of rows by their
weights. A mass is a count of recent steps, which starts at 0. With one exchange a step, peers drawn evenly and speeds
s_l a learner begins s_l exchanges in a second and is met in sum_{j != l} s_j / (L - 1), so its mass fades by
sum_j s_j / (M (L - 1)) a second, the same for every learner: masses become proportional to speeds, shares p_l to their
square roots, and the model advances by sum_l p_l s_l steps a second instead of the mean speed, which is never more. A
learner that has just come has no mass: its first exchange is a copy of the other's row.

Under rate `fastest` (runtime/learners_rate.py) every learner's learning rate is multiplied by

    f = max_l s_l / sum_l p_l s_l = max(s) sum(s^1/2) / sum(s^3/2)

so that the model advances as the fastest learner's row alone would. The variance that gradients add to it in a second,
f^2 sum_l p_l^2 s_l = max(s)^2 sum(s^2) / sum(s^3/2)^2 of one gradient's, is at most max(s), that of the fastest alone:
in sum(s^3/2)^2 every product of max(s)^3/2 and another s^3/2 is at least max(s) s^2. So a slow learner never harms in
this model, and takes noise away. (Shares in proportion to s leave more of it, 1/1.19 in place of 1/1.28 for speeds 1
and 1/3, and equal ones 1/1.33; but a row that weighs much and moves little holds others back between exchanges.) A
learner knows ratios of masses from the shares p of the exchanges that it has asked for; nothing else is sent. Rate
`gain` goes further by the noise of gradients: f times the gain of as many learners as have a mean with that variance.
While curvature withholds that gain, rows much lighter than the heaviest follow it (algorithms/averaging.py).

Sent: one model each way (8 P bytes) an exchange, one exchange begun per step. Waits: no learner; an exchange still in
flight is skipped, not waited for. No bound on staleness follows from the method; the largest seen is reported.
Where we differ from Lian et al.: exchanges are one-sided, so no bipartite graph is needed against deadlock, and the
number of learners may be odd. Momentum buffers stay local, as in the public implementations.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar, Literal, Self

from roundelay.algorithms.averaging import pair_average_, share_average_
from roundelay.core.effects import Begin, Draw, Exchange, Grad, Handle, Wait
from roundelay.core.rates import LearnersRate
from roundelay.core.state import Me
from roundelay.core.streams import stream
from roundelay.core.topology import doublings, random_ring_neighbours
from roundelay.strategies.base import Strategy, Traits

Topology = Literal["random-ring", "fixed-ring", "random", "exponential"]
Weights = Literal["auto", "equal", "progress"]
REMEMBERED = 256
"""Exchanges after which a share 1/e of a row's mass is left: enough that masses of equally fast learners differ by
little more than a hundredth, and few compared with a run."""


@dataclass(frozen=True)
class Asynchronous(Strategy):
    """The base of asynchronous gossip, with the sequence of peers to exchange with."""

    topology: Topology = "random-ring"
    """Graph of those who talk to each other (`roundelay list topologies`)."""

    @property
    def label(self) -> str:
        return f"{self.name} {self.topology}"

    def peers(self, place: int, places: int, seed: int, first: int) -> Iterator[int]:
        """Yield the peers of the learner at `place` of `places`, from its exchange number `first` on: a function of the
        number alone, so a resumed run goes on where it stood."""
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
class PairAverages(Asynchronous):
    """The base of strategies whose exchange is a pair average, with equal weights or by progress.

    `weights` "auto" is progress where rate `gain` or `fastest` sets the learning rate of learners with a minibatch
    each; else it is equal: under other rates, and where learners share a round's minibatch, of which a slow one takes
    less, so that all gradients should count alike.
    """

    weights: Weights = "auto"
    """Weights of rows in exchanges: equal, or progress, by recent steps of their learners, so a slow one has less say;
    auto for progress under training.rate gain and fastest where learners have a minibatch each, equal elsewhere."""

    @property
    def label(self) -> str:
        return super().label + " weighed by progress" * self.weighed

    @property
    def weighed(self) -> bool:
        return self.weights == "progress"

    def under(self, rate: LearnersRate, shared: bool) -> Self:
        if self.weights != "auto":
            return self
        return replace(self, weights="progress" if rate in ("auto", "fastest", "gain") and not shared else "equal")

    def average(self, peer: int, places: int) -> Exchange:
        """Return the exchange with `peer`, one of `places` whose rows are models."""
        if not self.weighed:
            return Exchange(peer, pair_average_)
        return Exchange(peer, share_average_, decay=(1 - 1 / (REMEMBERED * (places - 1)), 1 - 1 / REMEMBERED))


@dataclass(frozen=True)
class AdPsgd(PairAverages):
    """Asynchronous decentralized SGD with pair averages."""

    name: ClassVar[str] = "adpsgd"
    traits: ClassVar[Traits] = Traits(
        synchronous=False, conserves=True, staleness_bound=None, waits="none", rows="own", paced_by_links=True
    )

    async def learn(self, me: Me) -> None:
        peers = self.peers(me.rank, me.learners, me.seed, me.steps)
        mixing: Handle[int | None] | None = None
        while batch := await Draw():
            here = me.snapshot()
            if me.learners > 1 and (mixing is None or mixing.done):  # a slow link delays mixing, never the learner
                mixing = await Begin(self.average(next(peers), me.learners))
            me.step(await Grad(here, batch))
        if mixing is not None:
            await Wait(mixing)
