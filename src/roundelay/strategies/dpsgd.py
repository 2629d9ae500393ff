"""D-PSGD: synchronous decentralized SGD; every learner averages with its neighbours only (Lian et al. 2017, arXiv
1705.09056).

With T_k the mixing matrix of round k, doubly stochastic, there are three orders, all called D-PSGD in the literature
(with names as in BlueFog's code):

    atc         x_l <- sum_j T_lj (x_j - lr g(x_j))             adapt, then combine
    consensus   x_l <- sum_j T_lj x_j - lr g(x_l)               the exchange hides behind the gradient
    cta         y_l  = sum_j T_lj x_j ;  x_l <- y_l - lr g(y_l)  combine, then adapt

The default is atc. On a quadratic it is stable up to lr x curvature 2, as SGD is, for every T; the consensus order
only up to 1 + the smallest eigenvalue of T: 2/3 on the ring with one third each (docs/stability.md). The price is that
nothing hides the exchange; choose `order: consensus` where the network is slow and the rate is small.

With `mixing` g below 1, T is (1 - g) I + g T: learners give in to their neighbours by that share only, and go on
disagreeing. It is the factor of DSGD-AC (Wang and Johansson 2026, arXiv 2602.02899) as its authors' code has it
(Decent-DP, `set_adaptive_factor`); there a schedule of the caller's moves it, here it is constant.

Topologies: ring and random-ring (one third to each neighbour and oneself, halves with two learners; the latter
relabelled every round), complete (all learners), exponential (one peer: half to the learner 1, 2, 4, ... places ahead
by turns), graph (any connected undirected `edges`, with Metropolis weights).

Sent: one model (4 P bytes) a learner and neighbour, every step. Waits: each learner for its neighbours, every step.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from roundelay.core.bounds import ShareAboveZero
from roundelay.core.effects import Begin, Draw, Grad, Mix, Wait
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.core.topology import (
    Weights,
    complete_matrix,
    connected,
    doublings,
    metropolis_matrix,
    one_peer_matrix,
    random_ring,
    random_ring_neighbours,
    readers,
    relabelled,
    ring_matrix,
    sparse_row,
    without,
)
from roundelay.strategies.base import HostOption, Strategy, Traits

TOPOLOGIES = {
    "ring": "each with both neighbours on the ring 0, 1, 2, ...",
    "fixed-ring": "by turns with the right and the left neighbour on the ring 0, 1, 2, ...",
    "random-ring": "as on a ring, in an order that is drawn anew for every round",
    "random": "with anybody else, drawn anew each time",
    "complete": "each with all others",
    "exponential": "with the learner 1, 2, 4, ... places ahead, by turns",
    "graph": "with the neighbours in a graph of your own (option edges)",
}
"""Topologies of all strategies, each with a sentence."""
Topology = Literal["ring", "random-ring", "complete", "exponential", "graph"]
Order = Literal["atc", "consensus", "cta"]
Edges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Gossip(Strategy):
    """The base of synchronous gossip: a topology, and the neighbours of each learner in round k."""

    topology: Topology = "ring"
    """Graph of those who talk to each other (`roundelay list topologies`)."""
    edges: Sequence[Sequence[int]] = ()
    """Pairs of learners that are neighbours, with topology graph."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = all(len(edge) == 2 and all(isinstance(rank, int) for rank in edge) for edge in self.edges)
        if (self.topology == "graph") != bool(self.edges) or not pairs:
            raise UserError(
                f"{self.name}.edges is {self.edges!r}: topology graph, and no other, takes a list of pairs of learners,"
                " for example edges: [[0, 1], [1, 2]]."
            )
        object.__setattr__(self, "edges", tuple(tuple(edge) for edge in self.edges))  # hashable, where YAML gave lists

    @property
    def label(self) -> str:
        return f"{self.name} {self.topology}"

    def check(self, learners: int) -> None:
        super().check(learners)
        if self.topology == "graph":
            if beyond := sorted({r for edge in self.edges for r in edge if not 0 <= r < learners}):
                raise UserError(f"{self.name}.edges names learners {beyond}: they are 0 to {learners - 1}.")
            if not connected(learners, self.edges):
                raise UserError(f"{self.name}.edges leaves some of {learners} learners unconnected: add edges.")

    def mix(self, me: Me, round_: int) -> Mix:
        """Return this learner's mix in round `round_`, in a topology of the living learners."""
        edges = tuple((int(i), int(j)) for i, j in self.edges)
        if len(me.living) == me.learners:
            weights, others = _mixing(self.topology, edges, me.learners, me.seed, round_, me.rank)
            return Mix(weights, others, me.x)
        living, place = me.living, me.living.index(me.rank)
        left = without({*me.everyone} - {*living}, edges)
        numbered = tuple((living.index(i), living.index(j)) for i, j in left)
        weights, others = _mixing(self.topology, numbered, len(living), me.seed, round_, place)
        there = tuple((living[other], weight) for other, weight in weights)
        return Mix(there, tuple(living[other] for other in others), me.x)


@dataclass(frozen=True)
class DPsgd(Gossip):
    """Synchronous decentralized SGD."""

    order: Order = "atc"
    """Atc steps, then averages; cta averages, then steps; consensus averages while the gradient is computed."""
    mixing: ShareAboveZero = 1.0
    """Share by which learners give in to their neighbours, above 0 and up to 1."""

    name: ClassVar[str] = "dpsgd"
    traits: ClassVar[Traits] = Traits(
        synchronous=True,
        conserves=True,
        staleness_bound=1,
        waits="all for its neighbours, every step",
        rows="own",
    )

    @property
    def label(self) -> str:
        return f"{super().label} {self.order}" + f" mixing {self.mixing:g}" * (self.mixing < 1)

    @property
    def host_options(self) -> frozenset[HostOption]:
        return frozenset()  # mixes of neighbours go as they are

    def mix(self, me: Me, round_: int) -> Mix:
        whole = super().mix(me, round_)
        if self.mixing == 1:
            return whole
        own = 1 - self.mixing
        weights = tuple((rank, self.mixing * weight + own * (rank == me.rank)) for rank, weight in whole.weights)
        return replace(whole, weights=weights)

    async def learn(self, me: Me) -> None:
        while batch := await Draw():
            mix = self.mix(me, me.steps)
            if self.order == "consensus":
                mixed = await Begin(mix)
                gradient = await Grad(me.snapshot(), batch)
                me.replace(await Wait(mixed))
                me.step(gradient)
            elif self.order == "cta":
                me.replace(await mix)
                me.step(await Grad(me.snapshot(), batch))
            else:
                me.step(await Grad(me.snapshot(), batch))
                me.replace(await mix)


def mixing_matrix(topology: Topology, edges: Edges, learners: int, seed: int, round_: int) -> NDArray[np.float64]:
    """Return the mixing matrix of round `round_`, (L, L)."""
    match topology:
        case "ring":
            return ring_matrix(learners)
        case "random-ring":
            return relabelled(ring_matrix(learners), random_ring(learners, seed, round_))
        case "complete":
            return complete_matrix(learners)
        case "exponential":
            return one_peer_matrix(learners, round_)
        case "graph":
            return metropolis_matrix(learners, edges)


def _mixing(
    topology: Topology, edges: Edges, learners: int, seed: int, round_: int, rank: int
) -> tuple[Weights, tuple[int, ...]]:
    if topology == "random-ring":
        return _sparse(topology, edges, learners, seed, round_)[rank]
    turn = round_ % len(doublings(learners)) if topology == "exponential" else 0
    return _sparse(topology, edges, learners, 0, turn)[rank]


@lru_cache(maxsize=64)  # all learners ask for nearly the same rounds
def _sparse(
    topology: Topology, edges: Edges, learners: int, seed: int, round_: int
) -> list[tuple[Weights, tuple[int, ...]]]:
    # L x L numbers would be most of the work, and of the memory, with many learners
    if topology == "random-ring" and learners > 1:
        return [_on_a_ring(rank, around) for rank, around in enumerate(random_ring_neighbours(learners, seed, round_))]
    if topology == "ring":
        return [_on_a_ring(rank, ((rank - 1) % learners, (rank + 1) % learners)) for rank in range(learners)]
    if topology == "exponential" and learners > 1:
        ahead = doublings(learners)[round_]
        return [(_equally({rank, (rank + ahead) % learners}), ((rank - ahead) % learners,)) for rank in range(learners)]
    matrix = mixing_matrix(topology, edges, learners, seed, round_)
    return [(sparse_row(matrix, rank), readers(matrix, rank)) for rank in range(learners)]


def _on_a_ring(rank: int, around: tuple[int, int]) -> tuple[Weights, tuple[int, ...]]:
    """Return the row of learner `rank` in a ring's mixing matrix, and its readers: one third each, or one half if both
    neighbours are the same learner."""
    return _equally({rank, *around}), tuple(sorted({*around} - {rank}))


def _equally(around: Set[int]) -> Weights:
    """Return equal weights for the learners `around`."""
    return tuple((rank, 1 / len(around)) for rank in sorted(around))
