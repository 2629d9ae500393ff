"""Rings and mixing matrices against what is known of them on paper."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.state import Me
from roundelay.core.topology import (
    connected,
    doublings,
    fixed_ring,
    metropolis_matrix,
    one_peer_matrix,
    random_ring,
    random_ring_neighbours,
    readers,
    relabelled,
    ring_matrix,
    ring_neighbours,
    second_eigenvalue,
    sparse_row,
)
from roundelay.strategies.dpsgd import DPsgd, mixing_matrix

EDGES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20)


def test_two_learners_on_a_ring_average() -> None:
    """They are each other's only neighbour: with one third and two thirds they would overshoot."""
    assert ring_matrix(1).tolist() == [[1.0]]
    assert ring_matrix(2).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert second_eigenvalue(ring_matrix(2)) == pytest.approx(0)


@pytest.mark.parametrize("learners", [3, 4, 7, 8, 16, 64])
def test_second_eigenvalue_of_the_ring_is_the_closed_form(learners: int) -> None:
    angles = 2 * np.pi * np.arange(1, learners) / learners
    assert second_eigenvalue(ring_matrix(learners)) == pytest.approx(np.abs((1 + 2 * np.cos(angles)) / 3).max())


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


@given(EDGES)
def test_metropolis_weights_are_symmetric_doubly_stochastic_and_on_the_graph(edges: list[tuple[int, int]]) -> None:
    matrix = metropolis_matrix(9, edges)
    assert np.array_equal(matrix, matrix.T)
    assert np.allclose(matrix.sum(0), 1)
    assert (matrix > -1e-12).all()
    links = {frozenset(edge) for edge in edges}
    for i in range(9):
        assert matrix[i, i] > 0, "nobody forgets itself altogether, so the mix cannot oscillate for ever"
        assert all((matrix[i, j] > 0) == ({i, j} in links) for j in range(9) if j != i)


@given(EDGES)
def test_a_graph_is_connected_if_its_mix_has_a_spectral_gap(edges: list[tuple[int, int]]) -> None:
    assert connected(9, edges) == (second_eigenvalue(metropolis_matrix(9, edges)) < 1 - 1e-9)


@given(st.integers(2, 33))
def test_metropolis_weights_of_a_ring_are_one_third(learners: int) -> None:
    ring = [(rank, (rank + 1) % learners) for rank in range(learners)]
    np.testing.assert_allclose(metropolis_matrix(learners, ring), ring_matrix(learners))


@given(st.integers(1, 20), st.integers(0, 9))
def test_one_peer_matrices_are_doubly_stochastic_and_half_one_s_own(learners: int, round_: int) -> None:
    matrix = one_peer_matrix(learners, round_)
    assert np.allclose(matrix.sum(0), 1)
    assert np.allclose(matrix.sum(1), 1)
    assert (np.diag(matrix) >= 0.5).all()


def test_distances_of_the_exponential_graph() -> None:
    assert [doublings(n) for n in (1, 2, 3, 4, 5, 9)] == [(0,), (1,), (1, 2), (1, 2), (1, 2, 4), (1, 2, 4, 8)]


@given(st.permutations(range(6)))
def test_relabelling_gives_every_place_s_weights_to_whoever_takes_it(order: list[int]) -> None:
    matrix = np.arange(36.0).reshape(6, 6)
    found = relabelled(matrix, order)
    assert all(found[order[i], order[j]] == matrix[i, j] for i in range(6) for j in range(6))


@given(st.integers(3, 9), st.integers(0, 5))
def test_the_relabelled_ring_links_the_neighbours_on_it(learners: int, round_: int) -> None:
    order = random_ring(learners, 0, round_)
    matrix = relabelled(ring_matrix(learners), order)
    for rank in range(learners):
        assert set(readers(matrix, rank)) == set(ring_neighbours(order, rank))
        assert random_ring_neighbours(learners, 0, round_)[rank] == ring_neighbours(order, rank)


@given(st.integers(1, 9), st.integers(0, 4))
def test_a_row_and_its_readers_say_the_same_as_the_matrix(learners: int, round_: int) -> None:
    matrix = one_peer_matrix(learners, round_)
    for rank in range(learners):
        row = dict(sparse_row(matrix, rank))
        assert list(row) == sorted(row)
        assert np.allclose([row.get(other, 0.0) for other in range(learners)], matrix[rank])
        assert all(rank in dict(sparse_row(matrix, reader)) for reader in readers(matrix, rank))


@pytest.mark.parametrize("learners", [2, 3, 4, 7])
def test_a_random_rings_rows_are_those_of_its_matrix(learners: int) -> None:
    strategy = DPsgd("random-ring")
    for round_ in range(5):
        matrix = mixing_matrix("random-ring", (), learners, 3, round_)
        for rank in range(learners):
            me = cast(Me, SimpleNamespace(rank=rank, learners=learners, living=range(learners), seed=3, x=None))
            mix = strategy.mix(me, round_)
            assert mix.weights == sparse_row(matrix, rank)
            assert mix.readers == readers(matrix, rank)
