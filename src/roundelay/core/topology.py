"""Topologies: rings, relabelled rings, graphs, mixing matrices. Data only; nothing here opens a connection.

Legend: L learners.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from roundelay.core.streams import stream


def ring_neighbours(order: Sequence[int], rank: int) -> tuple[int, int]:
    """Return (left, right) of `rank` on the ring that visits `order`; with two learners both are the other one."""
    position = list(order).index(rank)
    return order[position - 1], order[(position + 1) % len(order)]


def fixed_ring(learners: int) -> tuple[int, ...]:
    """Return the ring 0, 1, ..., L-1, in the order it is visited."""
    return tuple(range(learners))


def random_ring(learners: int, seed: int, round_: int) -> tuple[int, ...]:
    """Return the ring relabelled by the permutation of round `round_`: the same for every learner that asks.

    Zhang et al. 2020 relabel the ring in every iteration to open the spectral gap of the mixing matrix; learners that
    ask with their own step number need no agreement beyond the seed.
    """
    return tuple(int(rank) for rank in stream(seed, "ring", round_).permutation(learners))


@lru_cache(maxsize=256)  # a thousand learners ask for nearly the same rounds
def random_ring_neighbours(learners: int, seed: int, round_: int) -> tuple[tuple[int, int], ...]:
    """Return (left, right) of every learner on `random_ring`, by rank."""
    order = random_ring(learners, seed, round_)
    found = [(0, 0)] * learners
    for position, rank in enumerate(order):
        found[rank] = (order[position - 1], order[(position + 1) % learners])
    return tuple(found)


def doublings(learners: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... below L: the distances of an exponential graph; (0,) for one learner."""
    return tuple(1 << k for k in range((learners - 1).bit_length())) or (0,)


def ring_matrix(learners: int) -> NDArray[np.float64]:
    """Return the circulant mixing matrix of the ring, (L, L): one third for oneself and for each neighbour. Two
    learners have one neighbour, and average."""
    matrix = np.zeros((learners, learners))
    for rank in range(learners):
        around = {rank, *ring_neighbours(fixed_ring(learners), rank)}
        matrix[rank, list(around)] = 1 / len(around)
    return matrix


def second_eigenvalue(matrix: NDArray[np.float64]) -> float:
    """Return the largest |eigenvalue| of a symmetric mixing matrix on vectors orthogonal to (1, ..., 1).

    One application shrinks the distance from consensus at least by this factor; 1 minus it is the spectral gap.
    """
    learners = len(matrix)
    return float(np.abs(np.linalg.eigvalsh(matrix - np.full_like(matrix, 1 / learners))).max())


Weights = tuple[tuple[int, float], ...]
"""(rank, weight) of one learner's row of a mixing matrix, in rank order, zeros left out."""


def sparse_row(matrix: NDArray[np.float64], rank: int) -> Weights:
    """Return row `rank` of a mixing matrix."""
    return tuple((int(other), float(matrix[rank, other])) for other in np.flatnonzero(matrix[rank]))


def readers(matrix: NDArray[np.float64], rank: int) -> tuple[int, ...]:
    """Return the others whose rows have a weight for `rank`."""
    return tuple(int(other) for other in np.flatnonzero(matrix[:, rank]) if other != rank)


def complete_matrix(learners: int) -> NDArray[np.float64]:
    """Return the mixing matrix that gives every learner the mean of all, (L, L)."""
    return np.full((learners, learners), 1 / learners)


def one_peer_matrix(learners: int, round_: int) -> NDArray[np.float64]:
    """Return the mixing matrix (L, L) of half each learner and half the one that is 1, 2, 4, ... places ahead, by
    rounds: directed, doubly stochastic.

    When L is a power of two, log2 L rounds in a row are exactly one mean of all learners.
    """
    distances = doublings(learners)
    return (np.eye(learners) + np.roll(np.eye(learners), distances[round_ % len(distances)], axis=1)) / 2


def relabelled(matrix: NDArray[np.float64], order: Sequence[int]) -> NDArray[np.float64]:
    """Return the mixing matrix with learners renamed by the permutation `order`: learner order[i] takes place i."""
    found = np.empty_like(matrix)
    found[np.ix_(order, order)] = matrix
    return found


def metropolis_matrix(learners: int, edges: Iterable[Sequence[int]]) -> NDArray[np.float64]:
    """Return symmetric, doubly stochastic weights for any undirected graph (Metropolis and Hastings), (L, L):

    1 / (1 + max(degree i, degree j)) for an edge, the rest for oneself. On a ring of three or more: one third each.
    """
    linked = np.zeros((learners, learners), bool)
    for i, j in edges:
        linked[i, j] = linked[j, i] = i != j
    degree = linked.sum(1)
    matrix = np.where(linked, 1 / (1 + np.maximum.outer(degree, degree)), 0.0)
    return matrix + np.diag(1 - matrix.sum(1))


def connected(learners: int, edges: Iterable[Sequence[int]]) -> bool:
    """Return True if every learner can reach every other along the undirected `edges`."""
    reached = {0}
    links = [set(edge) for edge in edges]
    while grown := {rank for link in links if link & reached for rank in link} - reached:
        reached |= grown
    return len(reached) == learners


def without(gone: Iterable[int], edges: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Return the sorted undirected edges of a graph without the nodes `gone`. The neighbours of a removed node are
    linked in a chain by number, so that a connected graph stays connected."""
    links = {(min(edge), max(edge)) for edge in edges}
    for node in sorted(gone):
        around = sorted({rank for link in links if node in link for rank in link} - {node})
        links = {link for link in links if node not in link} | set(pairwise(around))
    return sorted(links)
