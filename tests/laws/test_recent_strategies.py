"""Strategies of 2023 and later: each is another one under some setting, and its equation written out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.algorithms.continuous_momentum import constants
from roundelay.algorithms.local_update import Sgd
from roundelay.core.errors import UserError
from roundelay.runtime.hosts.terms import check_hosts
from roundelay.runtime.sim.cost import CostModel
from support.clusters import make_strategy
from support.on_paper import Paper, simulated

PAPERS = st.builds(Paper, st.integers(1, 6), st.integers(1, 9), st.sampled_from([0.1, 0.3]), seed=st.integers(0, 9))
LOCAL = st.sampled_from([Sgd(), Sgd(0.9), Sgd(0.5, nesterov=True)])
JITTER = CostModel(jitter=0.3)
AT_ONCE = CostModel(exchange=0.0)

some = settings(max_examples=10, deadline=None)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """But for the order of additions."""
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-4, atol=1e-5)


# A2CiD2 ---------------------------------------------------------------------------------------------------------------


@given(PAPERS, LOCAL, st.sampled_from(["fixed-ring", "random-ring", "random", "exponential"]))
@some
def test_a2cid2_that_mixes_nothing_is_adpsgd(paper: Paper, local: Sgd, topology: str) -> None:
    found = simulated(f"a2cid2:{topology} mixing_rate=0", paper, local, JITTER)
    assert torch.equal(found.rows, simulated(f"adpsgd:{topology}", paper, local, JITTER).rows)


@given(PAPERS, LOCAL, st.sampled_from(["random-ring", "random"]))
@some
def test_a2cid2_where_everybody_meets_everybody_is_adpsgd(paper: Paper, local: Sgd, topology: str) -> None:
    found = simulated(f"a2cid2:{topology}", paper, local, JITTER)
    assert torch.equal(found.rows, simulated(f"adpsgd:{topology}", paper, local, JITTER).rows)


@given(st.builds(Paper, st.integers(2, 6), st.integers(1, 9)), st.integers(0, 20), st.integers(1, 20))
@some
def test_a2cid2_is_its_equation_in_x_and_x_tilde(paper: Paper, tenths: int, pull: int) -> None:
    """Learners in lockstep take turns, and all have read before anybody has a gradient; meetings in between are of
    neighbours to the right, then to the left."""
    eta, pulled = tenths / 10, pull / 10
    x, ahead = paper.start.double(), paper.start.double()
    stay = (1 + math.exp(-2 * eta)) / 2
    for k in range(paper.rounds):
        read = x.clone()
        for i in range(paper.learners):
            x[i], ahead[i] = stay * x[i] + (1 - stay) * ahead[i], stay * ahead[i] + (1 - stay) * x[i]
            j = (i + (-1 if k % 2 else 1)) % paper.learners
            d = x[i] - x[j]
            x[i], x[j] = x[i] - d / 2, x[j] + d / 2
            ahead[i], ahead[j] = ahead[i] - pulled * d, ahead[j] + pulled * d
        for i, gradient in enumerate(paper.gradients(read.float(), k)):
            x[i] -= paper.rate * gradient
            ahead[i] -= paper.rate * gradient
    found = simulated(f"a2cid2 mixing_rate={eta} pull={pulled}", paper, cost=AT_ONCE)
    same(found.rows, x.float())
    same(found.memory["gossip_ahead"], (ahead - x).float())


@given(st.integers(2, 6), st.integers(0, 9))
@some
def test_rows_and_second_vectors_of_a2cid2_keep_their_sum(learners: int, seed: int) -> None:
    rows = torch.randn(learners, 7, generator=torch.Generator().manual_seed(seed))
    found = simulated("a2cid2", Paper(learners, 12, rate=0.0), cost=JITTER, scattered=rows)
    same((found.rows + found.memory["gossip_ahead"] / 2).sum(0), rows.sum(0))


def test_a2cid2_agrees_on_a_ring_in_fewer_steps_than_adpsgd() -> None:
    rows = torch.randn(24, 7, generator=torch.Generator().manual_seed(0))
    apart = {}
    for name in ("a2cid2", "adpsgd:fixed-ring"):
        found = simulated(name, Paper(24, 40, rate=0.0), cost=JITTER, scattered=rows)
        apart[name] = float((found.rows - found.rows.mean(0)).square().mean().sqrt())
    assert apart["a2cid2"] < 0.25 * apart["adpsgd:fixed-ring"]


def test_constants_of_a2cid2_by_hand() -> None:
    """Four on a ring, each pair once a unit of time: the Laplacian's eigenvalues are 0, 2, 2, 4, and an edge has three
    quarters of an ohm. With everybody both come to L / (L - 1) and 1/2."""
    chi_1, chi_2 = 1 / 2, 3 / 8
    assert constants(4, (1,)) == pytest.approx((0.5 / math.sqrt(chi_1 * chi_2), 0.5 * math.sqrt(chi_1 / chi_2)))
    assert constants(5, None) == (1.25, 0.5)
    assert constants(5, (1, 2, 3, 4)) == pytest.approx((1.25, 0.5))


@pytest.mark.parametrize("name", ["a2cid2"])
def test_what_does_not_travel_is_refused_on_several_hosts(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} .*is for learners of one host"):
        check_hosts(make_strategy(name), "go-on", record=False)
