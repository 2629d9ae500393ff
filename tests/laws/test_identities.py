"""Strategies that are each other under some setting, and strategies against their equations written out by hand."""

import math
import re
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.algorithms.local_update import Sgd
from roundelay.core.flat import VectorFragment
from roundelay.core.topology import metropolis_matrix
from roundelay.learner.quadratic import Quadratic, QuadraticLearner
from roundelay.runtime.sim.cost import CostModel
from support.on_paper import Paper, Watched, in_turn, same, simulated


def tenths(low: int, high: int) -> st.SearchStrategy[float]:
    """Numbers a person would write in a recipe."""
    return st.integers(low, high).map(lambda n: n / 10)


LEARNERS, ROUNDS = st.integers(1, 6), st.integers(1, 9)
PAPERS = st.builds(Paper, LEARNERS, ROUNDS, tenths(1, 5), seed=st.integers(0, 9))
UNEVEN = st.builds(Paper, LEARNERS, ROUNDS, tenths(1, 5), cut=st.integers(0, 59))
LOCAL = st.sampled_from([Sgd(), Sgd(0.9), Sgd(0.5, nesterov=True)])
JITTER = CostModel(jitter=0.3)

some = settings(max_examples=10, deadline=None)


@dataclass(frozen=True)
class Pair:
    """Two strategies that come to the same, whatever is drawn for the names in braces."""

    one: str
    other: str
    papers: st.SearchStrategy[Paper] = UNEVEN
    local: st.SearchStrategy[Sgd] = LOCAL
    cost: CostModel | None = None
    to_the_bit: bool = False
    what: dict[str, str] = field(default_factory=lambda: {"rows": "rows"})
    """Names of values that are compared: of the one, and of the other."""


DRAWN: dict[str, st.SearchStrategy[float | str]] = {
    "period": st.integers(1, 4),
    "long": st.integers(1, 12),
    "momentum": tenths(0, 9),
    "rate": tenths(1, 15),
    "mixing": tenths(1, 10),
    "kept": st.sampled_from(["reset", "keep", "average"]),
    "graph": st.sampled_from(["ring", "random-ring", "exponential", "complete"]),
    "known": st.sampled_from(["ring", "complete"]),
    "gossip": st.sampled_from(["fixed-ring", "random-ring", "random", "exponential"]),
    "everybody": st.sampled_from(["random-ring", "random"]),
}
ALONE, TWO = st.builds(Paper, st.just(1), ROUNDS), st.builds(Paper, st.just(2), st.integers(1, 11))
PLAIN = st.just(Sgd())
CENTRE = {"centre": "centre"}
BOTH = {"rows": "rows", **CENTRE}
OUTER = "period={period} momentum={momentum} rate={rate}"
KEPT = "period={period} momentum={momentum} local_momentum={kept}"
REPORTS = "async-diloco period={period}"
PAIRS = [
    # Averaging models is averaging gradients, and what is left without an outer momentum
    Pair("bsp period=1", "ssgd", local=PLAIN),
    *[
        Pair(f"{name} momentum=0.0 period={{long}}", "bsp period={long} local_momentum=reset")
        for name in ("bmuf", "bmuf nesterov=true", "bmuf-fairseq", "slowmo", "diloco rate=1.0")
    ],
    Pair("sparta fragments=1", "bsp period=1", PAPERS),
    Pair("sparta fragments=1", "gossip-pga period=1", PAPERS, to_the_bit=True),
    # Outer steps: SlowMo while the learning rate is constant. An outer Nesterov step in torch's convention holds the
    # look-ahead point, and the strict form keeps it beside W. SlowMo divides by the learning rate what it multiplies.
    Pair(f"slowmo {OUTER}", f"bmuf {OUTER}"),
    Pair(f"diloco {OUTER}", f"bmuf {OUTER} nesterov=true", what={"rows": "block_broadcast"}),
    Pair(
        f"gossip-diloco partners=null {KEPT}",
        f"diloco {KEPT}",
        PAPERS,
        to_the_bit=True,
        what={"rows": "rows", "outer_momentum": "outer_momentum"},
    ),
    Pair(
        "gossip-diloco partners=null period={period} momentum={momentum} rate=0.6 nesterov=false",
        "slowmo period={period} momentum={momentum} rate=0.6 local_momentum=reset",
        PAPERS,
        PLAIN,
    ),
    Pair(
        "gossip-diloco period={period} momentum=0 rate=0.6 nesterov=false",
        "gossip-diloco period={period} momentum=0 rate=0.6",
        PAPERS,
    ),
    Pair(f"gasloc:complete accelerated=mixed {KEPT}", f"diloco {KEPT}", PAPERS),
    # Outer steps of a centre: of one learner, without momentum, and of learners who are equally fast and never late
    Pair(
        "async-diloco period={period} momentum={momentum}",
        "diloco period={period} momentum={momentum}",
        ALONE,
        to_the_bit=True,
        what={"rows": "rows", "centre momentum": "outer_momentum"},
    ),
    Pair(
        "async-diloco period={period} momentum=0 rate=0.8 reports=5",
        "asgd period={period} rate=0.16",
        PAPERS,
        PLAIN,
        JITTER,
        what=CENTRE,
    ),
    *[
        Pair(f"{REPORTS} {more}", REPORTS, PAPERS, to_the_bit=True, what=CENTRE)
        for more in ("by_speed=true", "decay=1 cutoff=1")
    ],
    Pair("asgd period={period} max_delay=1000000", "asgd period={period}", PAPERS, to_the_bit=True, what=BOTH),
    Pair("rennala batch=1 stale=true", "asgd", PAPERS, cost=JITTER, to_the_bit=True, what=BOTH),
    Pair(
        "sparseloco period={period} local_momentum={kept} rate=0.7 density=1 two_bits=false",
        "diloco period={period} local_momentum={kept} rate=0.7 momentum=0",
        PAPERS,
    ),
    # Mixing: with everybody; never or always all; and with nothing left out. Every learner's momentum is its own, but a
    # mean of momenta is the momentum of the mean.
    Pair("dpsgd:complete order=consensus", "delay-by-one", to_the_bit=True),
    Pair("dpsgd:complete order=atc", "ssgd", PAPERS),
    Pair("gossip-pga:{graph} period=1", "dpsgd:complete order=atc", to_the_bit=True),
    Pair("gossip-pga:{graph} period=1000000", "dpsgd:{graph} order=atc", to_the_bit=True),
    *[
        Pair(f"choco-sgd:{{known}} mixing={{mixing}} {all_of_it}", "dpsgd:{known} mixing={mixing}", PAPERS)
        for all_of_it in ("codec=fp32", "density=1")
    ],
    # Pairs: two that are equally fast meet before either has its gradient, as in D-PSGD in consensus order
    Pair("adpsgd:{gossip}", "delay-by-one", TWO),
    Pair("divshare fragments=1", "adpsgd:random", PAPERS, cost=JITTER, to_the_bit=True),
    Pair("a2cid2:{everybody}", "adpsgd:{everybody}", PAPERS, cost=JITTER, to_the_bit=True),
    *[
        Pair(name, "adpsgd:{gossip}", papers, cost=JITTER, to_the_bit=True)
        for name, papers in (
            ("hadpsgd:{gossip} node_size=1", UNEVEN),
            ("a2cid2:{gossip} mixing_rate=0", PAPERS),
            ("async-gasloc:{gossip} period=1 momentum=0", PAPERS),
        )
    ],
]


@given(st.data())
@some
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.one} is {pair.other}")
def test_strategies_that_are_each_other(pair: Pair, data: st.DataObject) -> None:
    paper, local = data.draw(pair.papers), data.draw(pair.local)
    drawn = {name: data.draw(DRAWN[name]) for name in re.findall(r"{(\w+)}", pair.one + pair.other)}
    one, other = (simulated(name.format(**drawn), paper, local, pair.cost) for name in (pair.one, pair.other))
    for left, right in pair.what.items():
        found, expected = one.vector(left), other.vector(right)
        if pair.to_the_bit:
            assert torch.equal(found, expected)
        else:
            same(found, expected)


# The averaging family -------------------------------------------------------------------------------------------------


@given(UNEVEN, LOCAL, st.integers(2, 4), tenths(0, 9), st.sampled_from(["reset", "keep", "average"]))
@some
def test_the_last_fragment_of_streaming_diloco_is_diloco(
    paper: Paper, local: Sgd, period: int, momentum: float, local_momentum: str
) -> None:
    """Its outer steps are taken at a period's end. Coordinates do not see each other, so it is so to the bit."""
    setting = f"period={period} momentum={momentum} local_momentum={local_momentum}"
    whole, parts = (simulated(f"diloco {setting}{more}", paper, local) for more in ("", f" fragments={period}"))
    last = VectorFragment(period - 1, period).within(paper.parameters)
    assert torch.equal(parts.rows[:, last], whole.rows[:, last])
    assert torch.equal(parts.memory["outer_momentum"][:, last], whole.memory["outer_momentum"][:, last])


@given(PAPERS, LOCAL, st.integers(1, 4))
@some
def test_learners_of_streaming_diloco_that_mix_nothing_in_never_talk(paper: Paper, local: Sgd, period: int) -> None:
    x, memory = paper.start, paper.start
    for k in range(paper.rounds):
        for rank, gradient in enumerate(paper.gradients(x, k)):
            local.update_(x[rank], gradient, {"momentum": memory[rank]}, paper.rate)
    found = simulated(f"diloco period={period} mix=1 local_momentum=keep", paper, local)
    same(found.memory["outer_local"], x)


@given(UNEVEN, LOCAL, st.integers(1, 4), tenths(0, 8), tenths(1, 10))
@some
def test_the_recursion_of_fairseq_is_classical_bmuf_with_a_larger_block_rate(
    paper: Paper, local: Sgd, period: int, momentum: float, rate: float
) -> None:
    found = simulated(f"bmuf-fairseq period={period} momentum={momentum} rate={rate}", paper, local)
    larger = (1 + momentum) * rate
    same(found.rows, simulated(f"bmuf period={period} momentum={momentum} rate={larger}", paper, local).rows)


@pytest.mark.parametrize("momentum", [0.5, 0.75])
def test_the_recursion_of_fairseq_is_not_the_strict_nesterov_one(momentum: float) -> None:
    """While the gradient hardly changes it goes 1 + zeta times as fast."""
    paper, flat = Paper(2, rounds=400, rate=1e-4, parameters=1), Quadratic(1, curvature=(1.0, 1.0), noise=0.0)
    gone = []
    for name in ("bmuf-fairseq", "bmuf"):
        strict = " nesterov=true" * (name == "bmuf")
        end = simulated(f"{name} period=2 momentum={momentum} rate=1.0{strict}", paper, task=flat)
        gone.append(-math.log(1 - float(end.rows[0] / QuadraticLearner(flat).optimum)))
    assert gone[0] / gone[1] == pytest.approx(1 + momentum, rel=0.02)


# A centre -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 4))
@some
def test_easgd_without_springs_is_learners_that_never_talk(learners: int, rounds: int, period: int) -> None:
    """Every gradient was taken where one of the lone learners stood, on whatever minibatch it drew."""
    paper = Paper(learners, rounds)
    task = Watched(paper.task)
    one_by_one = CostModel(jitter=0.3, together=False)  # so that every gradient is on the log
    end = simulated(f"easgd beta=0.0 period={period}", paper, cost=one_by_one, task=task)
    lone = paper.start
    for point, _, gradient in task.log:
        rank = next(r for r in range(learners) if torch.equal(lone[r], point))
        lone[rank].add_(gradient, alpha=-paper.rate)
    assert {tuple(row) for row in end.rows.tolist()} == {tuple(row) for row in lone.tolist()}
    assert torch.equal(end.centre, torch.zeros(7))


@given(PAPERS, st.integers(1, 4), tenths(0, 10))
@some
def test_synchronous_easgd_is_equation_8(paper: Paper, period: int, beta: float) -> None:
    alpha, x, centre = beta / paper.learners, paper.start, torch.zeros(7)
    for k in range(paper.rounds):
        g = paper.gradients(x, k)
        if k % period == 0:
            x, centre = x - paper.rate * g - alpha * (x - centre), centre - alpha * (centre - x).sum(0)
        else:
            x = x - paper.rate * g
    end = simulated(f"easgd-sync period={period} beta={beta}", paper)
    same(end.rows, x)
    same(end.centre, centre)


@given(PAPERS, st.integers(1, 4), tenths(0, 10))
@some
def test_asynchronous_easgd_is_equation_9_learner_after_learner(paper: Paper, period: int, beta: float) -> None:
    alpha, x, centre = beta / paper.learners, paper.start, torch.zeros(7)
    for k, rank, index in in_turn(paper):
        if k % period == 0:
            mine, theirs = x[rank].clone(), centre
            x[rank], centre = (1 - alpha) * mine + alpha * theirs, (1 - alpha) * theirs + alpha * mine
        x[rank] -= paper.rate * paper.gradient(x[rank], index)
    end = simulated(f"easgd period={period} beta={beta}", paper)
    same(end.rows, x)
    same(end.centre, centre)


@given(tenths(1, 9), st.integers(0, 9))
def test_the_local_update_of_eamsgd_is_the_authors_at_the_look_ahead_point(delta: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sgd, x, memory = Sgd(delta, nesterov=True), torch.randn(5, generator=generator), {"momentum": torch.zeros(5)}
    w, v = x.clone(), torch.zeros(5)
    slope = torch.rand(5, generator=generator)
    for _ in range(10):
        v = delta * v
        w = w + v
        same(x, w)  # both take the gradient here
        g = slope * w
        w, v = w - 0.1 * g, v - 0.1 * g
        sgd.update_(x, slope * x, memory, 0.1)


@given(PAPERS, st.booleans(), tenths(2, 10))
@some
def test_classical_asgd_is_the_delayed_gradient_at_the_centre(paper: Paper, aware: bool, rate: float) -> None:
    centre, seen = torch.zeros(7), paper.start
    for k, rank, index in in_turn(paper):
        age = paper.learners - 1 if k else rank  # reports of others since this learner read the centre
        scale = rate / max(1, age) if aware else rate
        centre = centre - scale * paper.rate * paper.gradient(seen[rank], index)
        seen[rank] = centre
    end = simulated(f"asgd rate={rate} staleness_aware={str(aware).lower()}", paper)
    same(end.centre, centre)
    same(end.rows, seen)


@given(PAPERS, LOCAL, st.integers(2, 5))
@some
def test_asgd_with_a_period_adds_what_each_learner_has_learned_since(paper: Paper, local: Sgd, period: int) -> None:
    centre, x, p, memory = torch.zeros(7), paper.start, paper.start, paper.start
    for k, rank, index in in_turn(paper):
        local.update_(x[rank], paper.gradient(x[rank], index), {"momentum": memory[rank]}, paper.rate)
        if (k + 1) % period == 0 or k + 1 == paper.rounds:
            centre = centre + (x[rank] - p[rank])
            x[rank], p[rank] = centre, centre
    same(simulated(f"asgd period={period}", paper, local).centre, centre)


# Gossip ---------------------------------------------------------------------------------------------------------------


GRAPH = "dpsgd:graph edges=[[0,1],[1,2],[1,3]]"


@given(st.integers(1, 9), LOCAL)
@some
@pytest.mark.parametrize("name", ["dpsgd:ring", GRAPH, "dpsgd:complete"])
def test_to_step_first_is_to_mix_first_and_mix_once_more(name: str, rounds: int, local: Sgd) -> None:
    paper = Paper(4, rounds)
    matrix = {
        "dpsgd:ring": metropolis_matrix(4, [(0, 1), (1, 2), (2, 3), (3, 0)]),
        GRAPH: metropolis_matrix(4, [(0, 1), (1, 2), (1, 3)]),
        "dpsgd:complete": metropolis_matrix(4, [(i, j) for i in range(4) for j in range(i)]),
    }[name]
    cta = simulated(f"{name} order=cta", paper, local).rows
    same(simulated(f"{name} order=atc", paper, local).rows, torch.from_numpy(matrix).float() @ cta)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """A connected graph: a random tree, and some edges more."""
    learners = draw(st.integers(2, 7))
    tree = [(i, draw(st.integers(0, i - 1))) for i in range(1, learners)]
    rank = st.integers(0, learners - 1)
    more = draw(st.lists(st.tuples(rank, rank).filter(lambda edge: edge[0] != edge[1]), max_size=5))
    return learners, tree + more


@given(graphs(), st.integers(1, 6), st.sampled_from(["atc", "cta", "consensus"]), st.integers(0, 99), tenths(1, 10))
@some
def test_without_gradients_dpsgd_is_a_power_of_its_matrix(
    graph: tuple[int, list[tuple[int, int]]], rounds: int, order: str, seed: int, mixing: float
) -> None:
    learners, edges = graph
    paper = Paper(learners, rounds, rate=0.0)
    rows = torch.randn(learners, 7, generator=torch.Generator().manual_seed(seed))
    text = str([list(edge) for edge in edges]).replace(" ", "")
    end = simulated(f"dpsgd:graph order={order} mixing={mixing} edges={text}", paper, scattered=rows)
    matrix = mixing * torch.from_numpy(metropolis_matrix(learners, edges)) + (1 - mixing) * torch.eye(learners)
    same(end.rows, (torch.linalg.matrix_power(matrix, rounds) @ rows.double()).float())


@given(UNEVEN, LOCAL)
@some
def test_one_super_learner_is_ssgd(paper: Paper, local: Sgd) -> None:
    """Also in the last round, in which some learners may have nothing to do."""
    found = simulated("hadpsgd node_size=6", paper, local, JITTER)
    same(found.rows[0], simulated("ssgd", paper, local).rows[0])


# Late gradients -------------------------------------------------------------------------------------------------------


@given(UNEVEN)
@some
def test_delayed_gradient_is_its_recursion(paper: Paper) -> None:
    x, late = torch.zeros(7), torch.zeros(7)
    for k in range(paper.rounds):
        frames = paper.frames(k)
        g = (paper.gradients(x.expand(paper.learners, 7), k) * frames).sum(0) / frames.sum()
        x, late = x - paper.rate * late, g
    same(simulated("delayed-gradient", paper).rows, x)


@pytest.mark.parametrize("learners", [2, 3, 8])
def test_delay_by_one_is_one_step_of_gradient_noise_from_consensus(learners: int) -> None:
    """x_l - mean(x) = -lr (g_l - mean(g)) exactly, with g taken at the rows before the step."""
    before = simulated("delay-by-one", Paper(learners, rounds=5)).rows
    after = simulated("delay-by-one", Paper(learners, rounds=6)).rows
    g = Paper(learners).gradients(before, 5)
    same(after - after.mean(0), -0.2 * (g - g.mean(0)))
    same(after.mean(0), before.mean(0) - 0.2 * g.mean(0))
