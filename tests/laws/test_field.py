"""Strategies of 2024 to 2026: each is another one under some setting, and its equation written out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.algorithms.local_update import Sgd
from roundelay.algorithms.stale_reports import turn_, weight_of_age
from roundelay.core.errors import UserError
from roundelay.core.flat import VectorFragment
from roundelay.core.streams import stream
from roundelay.runtime.base import Straggler
from roundelay.runtime.sim.cost import CostModel
from roundelay.strategies.dpsgd import mixing_matrix
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


# 1-bit SGD ------------------------------------------------------------------------------------------------------------


@given(st.builds(Paper, st.integers(2, 6), st.integers(1, 9), seed=st.integers(0, 9)))
@some
def test_what_ssgd_sends_in_one_bit_adds_up_to_what_there_was(paper: Paper) -> None:
    """All that has been sent, and the rests, are all gradients."""
    x, left, total = torch.zeros(7), torch.zeros(paper.learners, 7), torch.zeros(7)
    for k in range(paper.rounds):
        gradients = paper.gradients(x.expand(paper.learners, 7), k)
        sent = torch.stack([in_one_bit(row) for row in gradients + left])
        left, total = gradients + left - sent, total + gradients.mean(0)
        x = x - paper.rate * sent.mean(0)
    found = simulated("ssgd codec=1bit", paper)
    torch.testing.assert_close(found.rows, x.expand_as(found.rows), rtol=2e-3, atol=2e-3)  # values have eight bits
    same(found.rows[0] - paper.rate * found.memory["gradient_left"].mean(0), -paper.rate * total)


def in_one_bit(x: torch.Tensor) -> torch.Tensor:
    """As the paper has it: the mean of those of one sign, for each."""
    at_least_0 = x >= 0
    above, below = (
        eight_bits(float(x[side].double().mean())) if side.any() else 0.0 for side in (at_least_0, ~at_least_0)
    )
    return torch.where(at_least_0, above, below)


def eight_bits(value: float) -> float:
    """Towards zero."""
    significand, exponent = math.frexp(value)
    return math.ldexp(math.trunc(significand * 256), exponent - 8)


# SPARTA ---------------------------------------------------------------------------------------------------------------


@given(PAPERS, LOCAL)
@some
def test_sparta_of_one_part_is_averaging_every_step(paper: Paper, local: Sgd) -> None:
    found = simulated("sparta fragments=1", paper, local)
    same(found.rows, simulated("bsp period=1", paper, local).rows)
    assert torch.equal(found.rows, simulated("gossip-pga period=1", paper, local).rows)


@given(PAPERS, st.integers(2, 9), st.integers(1, 3))
@some
def test_sparta_is_its_equation(paper: Paper, fragments: int, period: int) -> None:
    """Of seven elements and more parts than that some are empty."""
    x = paper.start
    for k in range(paper.rounds):
        x = x - paper.rate * paper.gradients(x, k)
        if (k + 1) % period == 0:
            number = int(stream(paper.seed, "slice", k + 1).integers(fragments))
            part = VectorFragment(number, fragments).within(7)
            x[:, part] = x[:, part].mean(0)
    same(simulated(f"sparta fragments={fragments} period={period}", paper).rows, x)


# GASLoC ---------------------------------------------------------------------------------------------------------------


@given(PAPERS, LOCAL, st.integers(1, 4), st.integers(0, 9), st.sampled_from(["reset", "keep", "average"]))
@some
def test_gasloc_on_the_complete_graph_is_diloco(
    paper: Paper, local: Sgd, period: int, tenths: int, local_momentum: str
) -> None:
    """On every learner where the momentum is of what is mixed."""
    setting = f"period={period} momentum={tenths / 10} local_momentum={local_momentum}"
    found = simulated(f"gasloc:complete accelerated=mixed {setting}", paper, local)
    same(found.rows, simulated(f"diloco {setting}", paper, local).rows)


@given(PAPERS, st.integers(1, 4), st.integers(0, 9), st.sampled_from(["complete", "ring", "random-ring"]))
@some
def test_the_mean_of_gasloc_is_diloco_whatever_the_graph(paper: Paper, period: int, tenths: int, topology: str) -> None:
    """On a quadratic, where the mean of gradients is the gradient of the mean."""
    setting = f"period={period} momentum={tenths / 10}"
    found = simulated(f"gasloc:{topology} {setting}", paper)
    same(found.rows.mean(0), simulated(f"diloco {setting}", paper).rows[0])


@given(PAPERS, st.integers(1, 3), st.sampled_from(["ring", "random-ring", "exponential"]), st.booleans())
@some
def test_gasloc_is_its_equation(paper: Paper, period: int, topology: str, mixed: bool) -> None:
    mixing, rate, gamma = 0.8, 0.6, 0.5
    w, before, x, blocks = paper.start, paper.start, paper.start, 0
    for k in range(paper.rounds):
        x = x - paper.rate * paper.gradients(x, k)
        if (k + 1) % period and k + 1 < paper.rounds:
            continue
        blocks += 1
        matrix = torch.from_numpy(np.asarray(mixing_matrix(topology, (), paper.learners, paper.seed, blocks))).float()  # type: ignore[arg-type]  # one of its names
        y = w + rate * (x - w)
        z = y + mixing * (matrix @ y - y)
        newest = z if mixed else y
        w, before = z + gamma * (newest - before), newest
        x = w
    setting = f"period={period} mixing={mixing} rate={rate} momentum={gamma}"
    accelerated = "mixed" if mixed else "proposed"
    same(simulated(f"gasloc:{topology} {setting} accelerated={accelerated}", paper).rows, x)


# NoLoCo's own momentum ------------------------------------------------------------------------------------------------


@given(PAPERS, st.integers(1, 4))
@some
def test_without_momentum_a_heavy_ball_is_nesterov_s(paper: Paper, period: int) -> None:
    setting = f"gossip-diloco period={period} momentum=0 rate=0.6"
    same(simulated(f"{setting} nesterov=false", paper).rows, simulated(setting, paper).rows)


@given(PAPERS, st.integers(1, 4), st.integers(0, 9))
@some
def test_noloco_of_everybody_is_slowmo(paper: Paper, period: int, tenths: int) -> None:
    """A heavy ball on the mean of all: SlowMo's, whose rate divides by the learning rate what it multiplies again."""
    mu, rate = tenths / 10, 0.6
    found = simulated(f"gossip-diloco partners=null period={period} momentum={mu} rate={rate} nesterov=false", paper)
    same(found.rows, simulated(f"slowmo period={period} momentum={mu} rate={rate} local_momentum=reset", paper).rows)


def test_slips_are_named() -> None:
    with pytest.raises(UserError, match=r"gasloc.accelerated is 'all'"):
        make_strategy("gasloc accelerated=all")
    with pytest.raises(UserError, match=r"gasloc.mixing is 0"):
        make_strategy("gasloc mixing=0")
    with pytest.raises(UserError, match=r"gasloc.period is 0"):
        make_strategy("gasloc period=0")
    with pytest.raises(UserError, match=r"sparta.fragments is 0"):
        make_strategy("sparta fragments=0")


# Asynchronous GASLoC --------------------------------------------------------------------------------------------------


@given(PAPERS, LOCAL, st.sampled_from(["fixed-ring", "random-ring", "random", "exponential"]))
@some
def test_async_gasloc_without_momentum_every_step_is_adpsgd(paper: Paper, local: Sgd, topology: str) -> None:
    found = simulated(f"async-gasloc:{topology} period=1 momentum=0", paper, local, JITTER)
    assert torch.equal(found.rows, simulated(f"adpsgd:{topology}", paper, local, JITTER).rows)


@given(st.builds(Paper, st.integers(2, 6), st.integers(1, 9)), st.integers(1, 3), st.integers(0, 9))
@some
def test_async_gasloc_is_its_equation(paper: Paper, period: int, tenths: int) -> None:
    """Learners in lockstep take turns, and all have read before anybody has a gradient."""
    x, last, turns = paper.start.double(), paper.start.double(), 0
    for k in range(paper.rounds):
        read = x.clone()
        if k % period == 0:
            for i in range(paper.learners):
                j = (i + (-1 if turns % 2 else 1)) % paper.learners
                y = x[i].clone()
                x[i] = x[j] = (x[i] + x[j]) / 2
                if last[i].any():  # all begin at zero, and what is zero is no proposal
                    x[i] = x[i] + tenths / 10 * (y - last[i])
                last[i] = y
            turns += 1
        x = x - paper.rate * paper.gradients(read.float(), k)
    found = simulated(f"async-gasloc:fixed-ring period={period} momentum={tenths / 10}", paper, cost=AT_ONCE)
    same(found.rows, x.float())
    same(found.memory["outer_proposed"], last.float())


# Late reports of async-diloco -----------------------------------------------------------------------------------------


@given(PAPERS, LOCAL, st.integers(1, 3))
@some
def test_reports_of_equally_fast_learners_are_never_late(paper: Paper, local: Sgd, period: int) -> None:
    """All of a round's are as old as those of others in that round, which is no outer round."""
    setting = f"async-diloco period={period}"
    found = simulated(f"{setting} decay=1 cutoff=1", paper, local)
    assert torch.equal(found.centre, simulated(setting, paper, local).centre)


def test_the_weight_of_age_falls_from_one_to_nothing_at_the_cutoff() -> None:
    assert [weight_of_age(tau, 0.0, 0.0) for tau in (0, 1, 9)] == [1, 1, 1]
    assert weight_of_age(2, 0.5, 0.0) == pytest.approx(math.exp(-1))
    assert weight_of_age(0, 0.5, 4.0) == 1
    assert weight_of_age(2, 0.0, 4.0) == pytest.approx(0.5)
    assert weight_of_age(4, 0.0, 4.0) == weight_of_age(9, 0.0, 4.0) == pytest.approx(0)


def test_a_slow_learner_s_reports_weigh_less_by_age() -> None:
    """One of four is ten times slower: outer rounds are over when it reports. Past a cutoff of one its reports count
    nothing."""
    ends = {}
    for late in ("", " decay=0.5", " cutoff=1"):
        name = f"async-diloco period=4 momentum=0.5 rate=0.5{late}"
        ends[late] = simulated(name, Paper(4, 200), stragglers=(Straggler(0, 10.0),)).centre
    assert not torch.allclose(ends[""], ends[" decay=0.5"])
    assert not torch.allclose(ends[" decay=0.5"], ends[" cutoff=1"])


def test_turns_by_hand() -> None:
    """In the plane, m = (2, 0), |d| = 2, so conf = 1/2: along m, d stays; straight up, l = 1/2 and d goes to 45 degrees
    at its length; straight against m, b = 1/2 and half of it is taken away; nothing is turned without a momentum."""
    m = torch.tensor([2.0, 0.0])
    cases = [([2.0, 0.0], [2.0, 0.0]), ([0.0, 2.0], [math.sqrt(2), math.sqrt(2)]), ([-2.0, 0.0], [-1.0, 0.0])]
    for given_, expected in cases:
        d = torch.tensor(given_)
        turn_(d, m, 0.5, 1.0)
        torch.testing.assert_close(d, torch.tensor(expected))
    d = torch.tensor([-2.0, 1.0])
    turn_(d, torch.zeros(2), 0.5, 1.0)
    assert d.tolist() == [-2.0, 1.0]
    turn_(d := torch.zeros(2), m, 0.5, 1.0)
    assert d.tolist() == [0.0, 0.0]


def test_blocks_are_turned_by_themselves_and_never_made_longer() -> None:
    generator = torch.Generator().manual_seed(0)
    d, m = (torch.randn(3 * 1024 + 5, generator=generator) for _ in range(2))
    before, alone = d.clone(), d[1024:2048].clone()
    turn_(d, m, 0.9, 1.0)
    turn_(alone, m[1024:2048], 0.9, 1.0)
    torch.testing.assert_close(d[1024:2048], alone)
    for part in (slice(0, 1024), slice(1024, 2048), slice(2048, 3072), slice(3072, None)):
        assert d[part].norm() <= before[part].norm() * (1 + 1e-5)
        assert torch.dot(d[part], m[part]) > torch.dot(before[part], m[part])


def test_slips_of_late_reports_are_named() -> None:
    for slip in ("decay=-1", "cutoff=0", "keep=2"):
        with pytest.raises(UserError, match=f"async-diloco.{slip.split('=')[0]} is"):
            make_strategy(f"async-diloco {slip}")
