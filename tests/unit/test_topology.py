"""Rings and mixing matrices against what is known of them on paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.topology import (
    fixed_ring,
    pair_matrix,
    random_ring,
    ring_matrix,
    ring_neighbours,
    second_eigenvalue,
)


@given(st.integers(1, 33))
def test_ring_matrix_is_symmetric_and_doubly_stochastic(learners: int) -> None:
    matrix = ring_matrix(learners)
    assert np.allclose(matrix, matrix.T)
    assert np.allclose(matrix.sum(0), 1)


@pytest.mark.parametrize("learners", [3, 4, 7, 8, 16, 64])
def test_second_eigenvalue_of_the_ring_is_the_closed_form(learners: int) -> None:
    angles = 2 * np.pi * np.arange(1, learners) / learners
    assert second_eigenvalue(ring_matrix(learners)) == pytest.approx(np.abs((1 + 2 * np.cos(angles)) / 3).max())


def test_a_pair_average_of_two_reaches_consensus_at_once() -> None:
    assert second_eigenvalue(pair_matrix(2, 0, 1)) == pytest.approx(0)


@given(st.integers(2, 20), st.integers(0, 50), st.integers(0, 3))
def test_neighbourhood_is_mutual_on_every_ring(learners: int, round_: int, seed: int) -> None:
    for ring in (fixed_ring(learners), random_ring(learners, seed, round_)):
        assert sorted(ring) == list(range(learners))
        for rank in range(learners):
            left, right = ring_neighbours(ring, rank)
            assert ring_neighbours(ring, left)[1] == rank == ring_neighbours(ring, right)[0]
            assert rank not in (left, right)


def test_random_rings_let_every_pair_meet_equally_often() -> None:
    learners, rounds = 6, 3000
    meetings = np.zeros((learners, learners))
    for k in range(rounds):
        ring = random_ring(learners, seed=0, round_=k)
        for rank in range(learners):
            meetings[rank, ring_neighbours(ring, rank)[1]] += 1
    expected = rounds / (learners - 1)
    off_diagonal = meetings[~np.eye(learners, dtype=bool)]
    assert np.abs(off_diagonal - expected).max() < 5 * np.sqrt(expected)
