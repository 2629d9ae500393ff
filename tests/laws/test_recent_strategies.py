"""Strategies of 2023 and later: each is another one under some setting, and its equation written out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.algorithms.continuous_momentum import constants
from roundelay.algorithms.local_update import Sgd
from roundelay.algorithms.sparsification import four_values
from roundelay.core.effects import Exchange
from roundelay.core.errors import UserError
from roundelay.core.flat import CHUNK, VectorFragment
from roundelay.core.streams import stream
from roundelay.runtime.base import Straggler
from roundelay.runtime.hosts.terms import check_hosts
from roundelay.runtime.rows import NoLock, Row, reach
from roundelay.runtime.sim.cluster import Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.runtime.sim.cost import CostModel, Prices
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


# DivShare -------------------------------------------------------------------------------------------------------------


@given(PAPERS, LOCAL)
@some
def test_divshare_of_one_fragment_is_adpsgd_random(paper: Paper, local: Sgd) -> None:
    found = simulated("divshare fragments=1", paper, local, JITTER)
    assert torch.equal(found.rows, simulated("adpsgd:random", paper, local, JITTER).rows)


@given(st.builds(Paper, st.integers(2, 6), st.integers(1, 9)), st.integers(2, 9))
@some
def test_divshare_is_its_equation_part_by_part(paper: Paper, fragments: int) -> None:
    """As above, learners take turns; of seven elements and more parts than that some are empty."""
    x = paper.start
    for k in range(paper.rounds):
        read = x.clone()
        for i in range(paper.learners):
            for f in range(fragments):
                drawn = stream(paper.seed, "peer", i, k, *([f] if f else []))
                other = int(drawn.integers(paper.learners - 1))
                j, part = other + (other >= i), VectorFragment(f, fragments).within(7)
                x[i, part] = x[j, part] = (x[i, part] + x[j, part]) / 2
        x = x - paper.rate * paper.gradients(read, k)
    same(simulated(f"divshare fragments={fragments}", paper, cost=AT_ONCE).rows, x)


@pytest.mark.parametrize("number", range(3))
def test_an_exchange_of_a_fragment_meets_nothing_else(number: int) -> None:
    """Also over the bounds of chunks."""
    size, versions = 2 * CHUNK + 7, np.zeros(2, np.int64)
    rows = [Row(rank, torch.full((size,), 2.0 * rank), versions, NoLock()) for rank in range(2)]
    fragment = VectorFragment(number, 3)
    assert reach(rows[0], rows[1], Exchange(1, pair_average_, fragment=fragment)) == 1
    for rank in range(2):
        expected = torch.full((size,), 2.0 * rank)
        expected[fragment.within(size)] = 1.0
        assert torch.equal(rows[rank].vector, expected)


def test_an_exchange_of_a_fragment_costs_its_share() -> None:
    far = VirtualLinks(VirtualLink(), VirtualLink(1e-3, 1e6))
    prices = Prices(VirtualCluster(nodes=(Node(1, count=2),), links=far), 2, 4e3)
    assert prices.reach_ns(0, 1, fragments=4) == round(1e9 * 2 * (1e-3 + 1e-3))
    assert prices.reach_ns(0, 1) == round(1e9 * 2 * (1e-3 + 4e-3))


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


# Rennala --------------------------------------------------------------------------------------------------------------


@given(PAPERS, LOCAL)
@some
def test_rennala_that_takes_every_report_at_once_is_asgd(paper: Paper, local: Sgd) -> None:
    found, expected = (simulated(name, paper, local, JITTER) for name in ("rennala batch=1 stale=true", "asgd"))
    assert torch.equal(found.centre, expected.centre)
    assert torch.equal(found.rows, expected.rows)


@given(PAPERS, LOCAL, st.integers(1, 7), st.booleans())
@some
def test_rennala_is_its_equation_report_by_report(paper: Paper, local: Sgd, batch: int, stale: bool) -> None:
    """Every report that counts is of the point at which the centre still is."""
    w, gathered, taken, moves = torch.zeros(7), torch.zeros(7), 0, 0
    x, p, memory, seen = paper.start, paper.start, paper.start, [0] * paper.learners
    for _, i, index in in_turn(paper):
        local.update_(x[i], paper.gradient(x[i], index), {"momentum": memory[i]}, paper.rate)
        if stale or seen[i] == moves:
            gathered, taken = gathered + x[i] - p[i], taken + 1
        if taken == batch:
            w, gathered, taken, moves = w + 0.8 * gathered / batch, torch.zeros(7), 0, moves + 1
        x[i], p[i], seen[i] = w, w, moves
    found = simulated(f"rennala batch={batch} rate=0.8 stale={str(stale).lower()}", paper, local)
    same(found.centre, w)
    same(found.memory["centre gathered"][0], gathered)
    assert found.memory["centre taken"][0].tolist() == [taken] * 7


# SparseLoCo -----------------------------------------------------------------------------------------------------------

ALL_OF_IT = "density=1 two_bits=false"


@given(PAPERS, LOCAL, st.integers(1, 4), st.sampled_from(["reset", "keep", "average"]))
@some
def test_sparseloco_that_sends_all_is_diloco_without_momentum(
    paper: Paper, local: Sgd, period: int, local_momentum: str
) -> None:
    """Bit for bit with one learner; with more the mean of changes is that of models but for rounding."""
    setting = f"period={period} local_momentum={local_momentum} rate=0.7"
    found = simulated(f"sparseloco {setting} {ALL_OF_IT}", paper, local)
    expected = simulated(f"diloco {setting} momentum=0", paper, local)
    same(found.rows, expected.rows)
    assert torch.equal(found.rows, expected.rows) or paper.learners > 1
    assert not found.memory["outer_left"].any()


@given(PAPERS, LOCAL, st.integers(1, 4), st.sampled_from([0.2, 0.5]), st.sampled_from([0.0, 0.9, 1.0]))
@some
def test_sparseloco_is_its_equation(paper: Paper, local: Sgd, period: int, density: float, decay: float) -> None:
    w, x, memory, left = torch.zeros(7), paper.start, paper.start, paper.start
    number = round(7 * density)
    for k in range(paper.rounds):
        for i, gradient in enumerate(paper.gradients(x, k)):
            local.update_(x[i], gradient, {"momentum": memory[i]}, paper.rate)
        if (k + 1) % period and k + 1 < paper.rounds:
            continue
        left = decay * left + (w - x)
        least = left.abs().sort(dim=1, descending=True).values[:, number - 1 : number]
        sent = torch.where(left.abs() >= least, left, 0.0)
        left = left - sent
        w = w - 0.8 * sent.mean(0)
        x = w.expand_as(x).clone()
    setting = f"period={period} rate=0.8 density={density} decay={decay} two_bits=false local_momentum=keep"
    found = simulated(f"sparseloco {setting}", paper, local)
    same(found.rows, w)
    same(found.memory["outer_left"], left)


def test_two_bits_by_hand() -> None:
    """Sizes 1, 2, 6, 7, 8 have the mean 4.8: above it are 6 and 8, and -7; below 1 and -2."""
    kept = torch.tensor([[1.0, -2.0, 6.0, -7.0, 8.0]])
    assert four_values(kept).tolist() == [[1.0, -2.0, 7.0, -7.0, 7.0]]


def test_what_is_sent_and_what_is_left_are_what_there_was() -> None:
    """In blocks of 4,096, the last one shorter: of each its share, at least one."""
    x = torch.randn(2 * 4096 + 20, generator=torch.Generator().manual_seed(0))
    left, sent = torch.zeros_like(x), torch.full_like(x, torch.nan)
    Sparse(density=0.01).send(x, left, sent)
    torch.testing.assert_close(left + sent, x, rtol=0, atol=1e-6)
    assert [int(part.count_nonzero()) for part in torch.split(sent, 4096)] == [41, 41, 1]
    assert all(len(set(part.tolist())) <= 5 for part in torch.split(sent, 4096))
    assert float(left[:4096].abs().max()) < float(x[:4096].abs().max())


def test_what_does_not_travel_is_refused_on_several_hosts() -> None:
    kept_here = make_strategy("divshare")
    check_hosts(kept_here, "go-on", record=False)
    object.__setattr__(kept_here, "traits", replace(kept_here.traits, one_host=True))
    with pytest.raises(UserError, match=r"divshare .*is for learners of one host"):
        check_hosts(kept_here, "go-on", record=False)
