"""Strategies of 2023 and later: each is another one under some setting, and its equation written out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.algorithms.continuous_momentum import constants
from roundelay.algorithms.local_update import Sgd
from roundelay.core.errors import UserError
from roundelay.runtime.base import Straggler
from roundelay.runtime.hosts.terms import check_hosts
from roundelay.runtime.sim.cost import CostModel
from support.clusters import make_strategy
from support.on_paper import Paper, in_turn, simulated

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


# Asynchronous DiLoCo --------------------------------------------------------------------------------------------------


@given(st.builds(Paper, st.just(1), st.integers(1, 9)), LOCAL, st.integers(1, 4), st.integers(0, 9))
@some
def test_async_diloco_of_one_learner_is_diloco(paper: Paper, local: Sgd, period: int, tenths: int) -> None:
    setting = f"period={period} momentum={tenths / 10}"
    found, expected = (simulated(f"{name} {setting}", paper, local) for name in ("async-diloco", "diloco"))
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.memory["centre momentum"], expected.memory["outer_momentum"])


@given(PAPERS, st.integers(1, 4))
@some
def test_async_diloco_without_momentum_is_asgd_of_rate_one_over_n(paper: Paper, period: int) -> None:
    found = simulated(f"async-diloco period={period} momentum=0 rate=0.8 reports=5", paper, cost=JITTER)
    same(found.centre, simulated(f"asgd period={period} rate=0.16", paper, cost=JITTER).centre)


@given(PAPERS, LOCAL, st.integers(1, 3), st.integers(0, 9), st.integers(1, 7))
@some
def test_async_diloco_is_delayed_nesterov_report_by_report(
    paper: Paper, local: Sgd, period: int, tenths: int, reports: int
) -> None:
    mu, rate = tenths / 10, 0.6
    w, m, gathered, t = torch.zeros(7), torch.zeros(7), torch.zeros(7), 0
    x, p, memory = paper.start, paper.start, paper.start
    for k, i, index in in_turn(paper):
        local.update_(x[i], paper.gradient(x[i], index), {"momentum": memory[i]}, paper.rate)
        if (k + 1) % period and k + 1 < paper.rounds:
            continue
        t, d = t + 1, p[i] - x[i]
        gathered = gathered + d
        w = w - rate * d / reports
        if t % reports == 0:
            m = mu * m + gathered / reports
            w, gathered = w - rate * mu * m, torch.zeros(7)
        x[i], p[i] = w, w
    setting = f"period={period} momentum={mu} rate={rate} reports={reports} local_momentum=keep"
    found = simulated(f"async-diloco {setting}", paper, local)
    same(found.centre, w)
    same(found.memory["centre momentum"][0], m)


@given(PAPERS, st.integers(1, 4))
@some
def test_equally_fast_learners_take_equally_many_steps_by_speed(paper: Paper, period: int) -> None:
    found = simulated(f"async-diloco period={period} by_speed=true", paper)
    assert torch.equal(found.centre, simulated(f"async-diloco period={period}", paper).centre)


def test_by_speed_all_report_equally_often() -> None:
    """One of four is three times as slow: it takes a third of the steps to a report, not three times as long."""
    slow, reports = (Straggler(0, 3.0),), {}
    for by_speed in ("false", "true"):
        name = f"async-diloco period=12 by_speed={by_speed}"
        found = simulated(name, Paper(4, 300), stragglers=slow).outcome.counts.exchanges[:, 4]
        reports[by_speed] = found[0] / found[1:].mean()
    assert reports["false"] == pytest.approx(1 / 3, rel=0.1)
    assert reports["true"] == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("name", ["a2cid2", "async-diloco"])
def test_what_does_not_travel_is_refused_on_several_hosts(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} .*is for learners of one host"):
        check_hosts(make_strategy(name), "go-on", record=False)
