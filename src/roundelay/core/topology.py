"""Who may talk to whom: rings, relabelled rings, mixing matrices. Data only; nothing here opens a connection."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roundelay.core.streams import stream


def ring_neighbours(order: Sequence[int], rank: int) -> tuple[int, int]:
    """(left, right) of `rank` on the ring that visits `order`; with two learners both are the other one."""
    position = list(order).index(rank)
    return order[position - 1], order[(position + 1) % len(order)]


def fixed_ring(learners: int) -> tuple[int, ...]:
    """0, 1, ..., L-1 and back to 0."""
    return tuple(range(learners))


def random_ring(learners: int, seed: int, round_: int) -> tuple[int, ...]:
    """The ring relabelled by the permutation of round `round_`: the same for every learner that asks.

    Zhang et al. 2020 relabel the ring in every iteration to open the spectral gap of the mixing matrix; learners that
    ask with their own step number need no agreement beyond the seed.
    """
    return tuple(int(rank) for rank in stream(seed, "ring", round_).permutation(learners))


def ring_matrix(learners: int) -> NDArray[np.float64]:
    """The circulant mixing matrix of the ring, one third to each neighbour and to oneself, (L, L)."""
    if learners == 1:
        return np.ones((1, 1))
    matrix = np.zeros((learners, learners))
    for rank in range(learners):
        left, right = ring_neighbours(fixed_ring(learners), rank)
        for other in (rank, left, right):
            matrix[rank, other] += 1 / 3
    return matrix


def pair_matrix(learners: int, i: int, j: int) -> NDArray[np.float64]:
    """The mixing matrix of one pair average, (L, L)."""
    matrix = np.eye(learners)
    matrix[np.ix_([i, j], [i, j])] = 0.5
    return matrix


def second_eigenvalue(matrix: NDArray[np.float64]) -> float:
    """Largest |eigenvalue| of a symmetric mixing matrix on vectors orthogonal to (1, ..., 1).

    One application shrinks the distance from consensus at least by this factor; 1 minus it is the spectral gap.
    """
    learners = len(matrix)
    return float(np.abs(np.linalg.eigvalsh(matrix - np.full_like(matrix, 1 / learners))).max())
