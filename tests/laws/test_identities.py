"""Strategies that are each other under some setting, and strategies against their equations written out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.algorithms.local_update import Sgd
from roundelay.core.flat import VectorFragment
from roundelay.core.topology import metropolis_matrix
from roundelay.learner.quadratic import Quadratic, QuadraticLearner
from roundelay.runtime.sim.cost import CostModel
from support.on_paper import Paper, Watched, in_turn, simulated


def tenths(low: int, high: int) -> st.SearchStrategy[float]:
    """Numbers a person would write in a recipe."""
    return st.integers(low, high).map(lambda n: n / 10)


LEARNERS, ROUNDS = st.integers(1, 6), st.integers(1, 9)
PAPERS = st.builds(Paper, LEARNERS, ROUNDS, tenths(1, 5), seed=st.integers(0, 9))
UNEVEN = st.builds(Paper, LEARNERS, ROUNDS, tenths(1, 5), cut=st.integers(0, 59))
LOCAL = st.sampled_from([Sgd(), Sgd(0.9), Sgd(0.5, nesterov=True)])
JITTER = CostModel(jitter=0.3)

some = settings(max_examples=10, deadline=None)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """But for the order of additions."""
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-4, atol=1e-5)


# The averaging family -------------------------------------------------------------------------------------------------


@given(UNEVEN)
@some
def test_averaging_models_every_step_is_averaging_gradients(paper: Paper) -> None:
    same(simulated("bsp period=1", paper).rows, simulated("ssgd", paper).rows)


@given(UNEVEN, LOCAL, st.integers(1, 12))
@some
@pytest.mark.parametrize(
    "name",
    [
        "bmuf momentum=0.0",
        "bmuf momentum=0.0 nesterov=true",
        "bmuf-fairseq momentum=0.0",
        "slowmo momentum=0.0",
        "diloco momentum=0.0 rate=1.0",
    ],
)
def test_without_an_outer_momentum_what_is_left_is_model_averaging(
    name: str, paper: Paper, local: Sgd, period: int
) -> None:
    found = simulated(f"{name} period={period}", paper, local)
    same(found.rows, simulated(f"bsp period={period} local_momentum=reset", paper, local).rows)


@given(UNEVEN, LOCAL, st.integers(1, 4), tenths(0, 9), tenths(1, 15))
@some
def test_slowmo_is_classical_bmuf_while_the_learning_rate_is_constant(
    paper: Paper, local: Sgd, period: int, momentum: float, rate: float
) -> None:
    setting = f"period={period} momentum={momentum} rate={rate}"
    same(simulated(f"slowmo {setting}", paper, local).rows, simulated(f"bmuf {setting}", paper, local).rows)


@given(UNEVEN, LOCAL, st.integers(1, 4), tenths(0, 9), tenths(1, 15))
@some
def test_diloco_is_the_model_that_bmuf_with_nesterov_broadcasts(
    paper: Paper, local: Sgd, period: int, momentum: float, rate: float
) -> None:
    """An outer Nesterov step in torch's convention holds the look-ahead point; the strict form keeps it beside W."""
    setting = f"period={period} momentum={momentum} rate={rate}"
    bmuf = simulated(f"bmuf {setting} nesterov=true", paper, local)
    same(simulated(f"diloco {setting}", paper, local).rows, bmuf.memory["block_broadcast"])


@given(PAPERS, LOCAL, st.integers(1, 4), tenths(0, 9), st.sampled_from(["reset", "keep", "average"]))
@some
def test_gossip_diloco_of_everybody_is_diloco(
    paper: Paper, local: Sgd, period: int, momentum: float, local_momentum: str
) -> None:
    setting = f"period={period} momentum={momentum} local_momentum={local_momentum}"
    found, expected = (
        simulated(f"{name} {setting}", paper, local) for name in ("gossip-diloco partners=null", "diloco")
    )
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.memory["outer_momentum"], expected.memory["outer_momentum"])


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


@given(PAPERS, LOCAL, st.integers(1, 3))
@some
def test_asgd_that_drops_nothing_is_asgd(paper: Paper, local: Sgd, period: int) -> None:
    found, expected = (simulated(f"asgd period={period}{more}", paper, local) for more in (" max_delay=1000000", ""))
    assert torch.equal(found.centre, expected.centre)
    assert torch.equal(found.rows, expected.rows)


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


@given(UNEVEN, LOCAL)
@some
def test_dpsgd_of_everybody_in_consensus_order_is_delay_by_one(paper: Paper, local: Sgd) -> None:
    found = simulated("dpsgd:complete order=consensus", paper, local)
    assert torch.equal(found.rows, simulated("delay-by-one", paper, local).rows)


@given(PAPERS, LOCAL)
@some
def test_dpsgd_of_everybody_that_steps_first_is_ssgd(paper: Paper, local: Sgd) -> None:
    """Every learner's momentum is its own, but a mean of momenta is the momentum of the mean."""
    same(simulated("dpsgd:complete order=atc", paper, local).rows, simulated("ssgd", paper, local).rows)


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


@given(UNEVEN, LOCAL, st.sampled_from(["ring", "random-ring", "exponential", "complete"]))
@some
def test_gossip_pga_lies_between_two_forms_of_dpsgd(paper: Paper, local: Sgd, topology: str) -> None:
    always = simulated(f"gossip-pga:{topology} period=1", paper, local)
    assert torch.equal(always.rows, simulated("dpsgd:complete order=atc", paper, local).rows)
    never = simulated(f"gossip-pga:{topology} period=1000000", paper, local)
    assert torch.equal(never.rows, simulated(f"dpsgd:{topology} order=atc", paper, local).rows)


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


@given(st.integers(1, 11), LOCAL, st.sampled_from(["fixed-ring", "random-ring", "random", "exponential"]))
@some
def test_adpsgd_of_two_equally_fast_learners_is_delay_by_one(rounds: int, local: Sgd, topology: str) -> None:
    """Both meet before either has its gradient. So is asynchrony behind a barrier D-PSGD in consensus order."""
    paper = Paper(2, rounds)
    same(simulated(f"adpsgd:{topology}", paper, local).rows, simulated("delay-by-one", paper, local).rows)


@given(UNEVEN, LOCAL, st.sampled_from(["fixed-ring", "random-ring", "random", "exponential"]))
@some
def test_super_learners_of_one_are_adpsgd(paper: Paper, local: Sgd, topology: str) -> None:
    found = simulated(f"hadpsgd:{topology} node_size=1", paper, local, JITTER)
    assert torch.equal(found.rows, simulated(f"adpsgd:{topology}", paper, local, JITTER).rows)


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
