"""Strategies of 2023 and later against their equations written out by hand. Those that are another one under some
setting: test_identities.py."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.codecs import CODECS
from roundelay.algorithms.codecs.sparse import Sparse
from roundelay.algorithms.continuous_momentum import constants
from roundelay.algorithms.local_update import Sgd
from roundelay.algorithms.stale_reports import turn_, weight_of_age
from roundelay.core.codec import Codec
from roundelay.core.effects import Exchange
from roundelay.core.errors import UserError
from roundelay.core.flat import CHUNK, VectorFragment
from roundelay.core.streams import stream
from roundelay.core.topology import complete_matrix, metropolis_matrix, ring_matrix
from roundelay.runtime.base import Straggler
from roundelay.runtime.hosts.terms import check_hosts
from roundelay.runtime.rows import NoLock, Row, reach
from roundelay.runtime.sim.cluster import Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.runtime.sim.cost import CostModel, Prices
from roundelay.strategies.dpsgd import mixing_matrix
from support.clusters import make_strategy
from support.on_paper import Paper, in_turn, same, simulated

PAPERS = st.builds(Paper, st.integers(1, 6), st.integers(1, 9), st.sampled_from([0.1, 0.3]), seed=st.integers(0, 9))
LOCAL = st.sampled_from([Sgd(), Sgd(0.9), Sgd(0.5, nesterov=True)])
FORMS = {"codec=int4": CODECS["int4"], "codec=bf16": CODECS["bf16"], "density=0.3": Sparse("", 0.3, two_bits=False)}
JITTER = CostModel(jitter=0.3)
AT_ONCE = CostModel(exchange=0.0)

some = settings(max_examples=10, deadline=None)


# A2CiD2 ---------------------------------------------------------------------------------------------------------------


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


def test_what_does_not_travel_is_refused_on_several_hosts() -> None:
    kept_here = make_strategy("divshare")
    check_hosts(kept_here, "go-on")
    object.__setattr__(kept_here, "traits", replace(kept_here.traits, one_host=True))
    with pytest.raises(UserError, match=r"divshare .*is for learners of one host"):
        check_hosts(kept_here, "go-on")


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


# Asynchronous GASLoC --------------------------------------------------------------------------------------------------


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


# CHOCO-SGD ------------------------------------------------------------------------------------------------------------


@given(PAPERS, st.sampled_from(["ring", "complete", "graph"]), st.sampled_from([*FORMS]), st.integers(1, 10))
@some
def test_choco_sgd_is_its_equation(paper: Paper, topology: str, form: str, tenths: int) -> None:
    """With x^ of everybody, as the paper has it."""
    edges = [(i, i + 1) for i in range(paper.learners - 1)]
    topology = "ring" if topology == "graph" and not edges else topology
    matrices = {"ring": ring_matrix(paper.learners), "complete": complete_matrix(paper.learners)}
    matrices["graph"] = metropolis_matrix(paper.learners, edges)
    mixing, matrix = tenths / 10, torch.from_numpy(matrices[topology]).float()
    x, known = paper.start, paper.start
    for k in range(paper.rounds):
        y = x - paper.rate * paper.gradients(x, k)
        known = known + torch.stack([coded(FORMS[form], row) for row in y - known])
        x = y + mixing * (matrix @ known - known)
    shown = f" edges={[list(edge) for edge in edges]}".replace(", ", ",") if topology == "graph" else ""
    found = simulated(f"choco-sgd:{topology} mixing={mixing} {form}{shown}", paper)
    torch.testing.assert_close(found.rows, x, rtol=2e-3, atol=2e-3)  # a number in the middle may go up here, down there


def coded(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    arrived = torch.empty_like(x)
    codec.send(x, None, arrived)
    return arrived


@pytest.mark.parametrize("form", ["codec=int4 mixing=1", "codec=1bit mixing=0.3", "density=0.1 mixing=0.3"])
def test_rows_agree_though_little_is_sent_and_their_mean_stays(form: str) -> None:
    """Without gradients rows that begin apart come together, at the mean: all that a codec leaves out is sent later."""
    rows = torch.randn(5, 50, generator=torch.Generator().manual_seed(0))
    paper = Paper(5, 400, rate=0.0, parameters=50)
    found = simulated(f"choco-sgd {form}", paper, scattered=rows).rows
    torch.testing.assert_close(found, rows.mean(0).expand_as(rows), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.mean(0), rows.mean(0), rtol=0, atol=1e-4)  # 400 sums, each to half of 2^-22


# Slips ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gasloc accelerated=all", "gasloc.accelerated is 'all'"),
        ("gasloc mixing=0", "gasloc.mixing is 0"),
        ("gasloc period=0", "gasloc.period is 0"),
        ("sparta fragments=0", "sparta.fragments is 0"),
        ("async-diloco decay=-1", "async-diloco.decay is"),
        ("async-diloco cutoff=0", "async-diloco.cutoff is"),
        ("async-diloco keep=2", "async-diloco.keep is"),
        ("choco-sgd:exponential", "choco-sgd.topology is exponential, .* choose one of ring, complete, graph"),
        ("choco-sgd density=0", "choco-sgd.density is 0"),
        ("choco-sgd mixing=0", "choco-sgd.mixing is 0"),
        ("choco-sgd codec=int3", "choco-sgd.codec is 'int3'"),
    ],
)
def test_slips_are_named(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_strategy(name)
