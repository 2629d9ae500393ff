"""Speed at which rows agree when nobody learns: the spectral gap, in the strategies' own code."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roundelay.core.topology import complete_matrix, metropolis_matrix, ring_matrix, second_eigenvalue
from support.on_paper import Paper, simulated

PARAMETERS = 400


def apart(rows: Tensor) -> float:
    """Squared distance from consensus."""
    return float((rows.double() - rows.double().mean(0)).square().sum())


def shrunk(name: str, learners: int, rounds: int, seed: int = 0, start: Tensor | None = None) -> float:
    """Of random rows, the squared distance from consensus after so many rounds, to what it was."""
    if start is None:
        start = torch.randn(learners, PARAMETERS, generator=torch.Generator().manual_seed(seed))
    paper = Paper(learners, rounds, rate=0.0, seed=seed, parameters=start.shape[1])
    return apart(simulated(name, paper, scattered=start).rows) / apart(start)


CHAIN = [(0, 1), (1, 2), (2, 3), (3, 4)]
STAR = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        *((f"dpsgd:ring order={order}", ring_matrix(n)) for n, order in ((3, "atc"), (4, "cta"), (5, "consensus"))),
        *((f"dpsgd:ring order={order}", ring_matrix(n)) for n, order in ((8, "atc"), (9, "cta"))),
        ("dpsgd:graph edges=[[0,1],[1,2],[2,3],[3,4]]", metropolis_matrix(5, CHAIN)),
        ("dpsgd:graph edges=[[0,1],[0,2],[0,3],[0,4],[0,5]]", metropolis_matrix(6, STAR)),
        ("dpsgd:complete", complete_matrix(6)),
    ],
)
def test_the_slowest_way_to_be_apart_shrinks_by_the_second_eigenvalue(name: str, matrix: np.ndarray) -> None:
    """By exactly that, and every other at least as fast."""
    learners, rounds = len(matrix), 5
    values, vectors = np.linalg.eigh(matrix - complete_matrix(learners))
    slowest = vectors[:, np.abs(values).argmax()]
    expected = second_eigenvalue(matrix) ** (2 * rounds)
    found = shrunk(name, learners, rounds, start=torch.from_numpy(slowest).float()[:, None].expand(learners, 3))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-12)
    assert shrunk(name, learners, rounds) <= expected * (1 + 1e-5) + 1e-12


@given(st.integers(0, 4), st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_one_peer_at_a_time_reaches_the_mean_in_log2_rounds(doublings: int, seed: int) -> None:
    """The number of learners is a power of two; the mean is not reached a round earlier."""
    learners = 2**doublings
    start = torch.randn(learners, 5, generator=torch.Generator().manual_seed(seed))
    for rounds in range(1, doublings + 1):
        left = shrunk("dpsgd:exponential", learners, rounds, start=start)
        assert (left < 1e-12) == (rounds == doublings)


def test_one_peer_at_a_time_among_others_comes_near_it() -> None:
    for learners in (3, 5, 6, 7, 12):
        assert 1e-9 < shrunk("dpsgd:exponential", learners, 2 * math.ceil(math.log2(learners))) < 0.05


@pytest.mark.parametrize("learners", [5, 8, 16])
def test_a_random_ring_shrinks_the_square_by_a_third_or_less_whatever_the_number(learners: int) -> None:
    """Expected (L/3 - 1) / (L - 1) a round; over 6 rounds and 20 seeds the mean is near that."""
    rounds, seeds = 6, 20
    a_round = (learners / 3 - 1) / (learners - 1)
    mean = np.mean([shrunk("dpsgd:random-ring", learners, rounds, seed) for seed in range(seeds)])
    assert float(mean) ** (1 / rounds) == pytest.approx(a_round, rel=0.1)


@pytest.mark.parametrize("name", ["adpsgd:random", "adpsgd:random-ring"])
@pytest.mark.parametrize("learners", [4, 9])
def test_exchanges_of_adpsgd_shrink_it_at_least_as_random_pairs_do(name: str, learners: int) -> None:
    """L exchanges a round. Whoever begins one is not drawn but has its turn, which is better than chance."""
    rounds, seeds = 3, 40
    mean = np.mean([shrunk(name, learners, rounds, seed) for seed in range(seeds)])
    per_exchange = math.log(mean) / (rounds * learners)
    assert 0.98 < per_exchange / math.log(1 - 1 / (learners - 1)) < 3


@pytest.mark.parametrize("topology", ["fixed-ring", "random-ring", "random", "exponential"])
@pytest.mark.parametrize("learners", [4, 5, 16])
def test_a_round_of_adpsgd_mixes_at_least_as_well_as_the_ring_matrix(topology: str, learners: int) -> None:
    """A round is L pair averages. (In step, four learners meet the one two places ahead twice: one half is wasted.)"""
    rounds = 8
    bound = 1 / 4 if (topology, learners) == ("exponential", 4) else second_eigenvalue(ring_matrix(learners)) ** 2
    assert shrunk(f"adpsgd:{topology}", learners, rounds) <= bound**rounds


def test_a_random_ring_mixes_faster_than_a_fixed_one_when_there_are_many() -> None:
    for name in ("adpsgd:random-ring", "adpsgd:random", "adpsgd:exponential"):
        assert shrunk(name, 32, 6) < 0.25 * shrunk("adpsgd:fixed-ring", 32, 6)


def test_super_learners_mix_as_fast_as_a_ring_of_nodes() -> None:
    """16 learners on nodes of 4 are a ring of 4, however the learners inside stand."""
    bound = second_eigenvalue(ring_matrix(4)) ** (2 * 6)
    start = torch.randn(16, PARAMETERS, generator=torch.Generator().manual_seed(0))
    paper = Paper(16, 6, rate=0.0, parameters=PARAMETERS)
    nodes = simulated("hadpsgd:fixed-ring node_size=4", paper, scattered=start).rows
    assert len(nodes) == 4
    assert apart(nodes) <= bound * apart(start[::4])
    assert shrunk("adpsgd:fixed-ring", 16, 6) > 2 * bound


@given(st.integers(2, 8), st.integers(0, 20))
@settings(max_examples=10, deadline=None)
def test_a_mean_of_everybody_every_period_is_consensus(learners: int, seed: int) -> None:
    assert shrunk("gossip-pga period=4", learners, 4, seed) < 1e-12
    left = shrunk("gossip-pga period=4", learners, 3, seed)
    assert left == pytest.approx(shrunk("dpsgd:ring", learners, 3, seed), rel=1e-4, abs=1e-12)
