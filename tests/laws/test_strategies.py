"""Laws that every strategy must obey, in the simulator, where nothing depends on timing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roundelay.algorithms.averaging import weighted_mean
from roundelay.core.errors import UserError
from roundelay.core.state import Gradient
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import SegmentPlan, Straggler, staleness_summary
from roundelay.runtime.learner_state import LearnerState
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import STRATEGIES
from roundelay.strategies.base import Strategy
from roundelay.strategies.hadpsgd import HAdPsgd
from support.clusters import (
    ASYNCHRONOUS,
    EVERY,
    MANY,
    MINIBATCH,
    SYNCHRONOUS,
    cluster,
    keeps_sum,
    make_strategy,
    one_of_each,
    plan,
)

JITTER = CostModel(jitter=0.3)


def test_the_table_of_tests_knows_every_strategy() -> None:
    differ = set(STRATEGIES) ^ {make_strategy(name).name for name in EVERY}
    assert not differ, f"no line in MANY, tests/support/clusters.py, for {differ}: so no law holds them"


@pytest.mark.parametrize("name", [n for n in EVERY if make_strategy(n).traits.alone_is_sgd])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_learner_is_plain_sgd(name: str, momentum: float) -> None:
    """x <- x - lr v, v <- momentum v + g, written out here without any of the package's arithmetic."""
    task = Quadratic(parameters=5, examples=20 * MINIBATCH)
    with SimRuntime(cluster(name, 1, task, momentum)) as runtime:
        segment = plan(20, 1)
        runtime.segment(segment)
        row = runtime.consensus().clone()
    learner, x, v, g = task.build(), torch.zeros(5), torch.zeros(5), torch.empty(5)
    for index in range(20):
        learner.gradient(x, segment.epoch.piece(index), segment.epoch, g)
        v = momentum * v + g
        x = x - 0.1 * v
    torch.testing.assert_close(row, x)


@given(st.sampled_from(EVERY), st.integers(1, 7), st.integers(1, 400), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_every_frame_is_trained_exactly_once(name: str, learners: int, examples: int, seed: int) -> None:
    learners = 1 if name == "sgd" else learners
    with SimRuntime(cluster(name, learners, seed=seed), JITTER) as runtime:
        outcome = runtime.segment(plan(0, learners, examples=examples))
    assert outcome.counts.frames.sum() == examples
    assert outcome.finished


@given(st.sampled_from([n for n in EVERY if keeps_sum(make_strategy(n))]), st.integers(1, 7), st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_at_rate_zero_the_sum_of_rows_stays(name: str, learners: int, seed: int) -> None:
    learners = 1 if name == "sgd" else learners
    with SimRuntime(cluster(name, learners, seed=seed), JITTER) as runtime:
        scatter(runtime, seed)
        before = total(runtime)
        runtime.segment(plan(15, learners, rate=0.0))
        after = total(runtime)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in MANY if not keeps_sum(make_strategy(n))])
def test_those_that_declare_nothing_conserved_do_not_conserve(name: str) -> None:
    """The control of the law above: were conservation a matter of course, declaring it would say nothing."""
    with SimRuntime(cluster(name, 4), JITTER) as runtime:
        scatter(runtime, 0)
        before = total(runtime)
        runtime.segment(plan(15, 4, rate=0.1))
        runtime.segment(SegmentPlan(plan(15, 4, epoch=1, examples=15 * MINIBATCH - 50).epoch, 0.0))
        assert not torch.allclose(total(runtime), before, rtol=1e-5, atol=1e-5)


def scatter(runtime: SimRuntime, seed: int) -> None:
    """Rows, and the centre, far from each other."""
    state, generator = runtime.state(), torch.Generator().manual_seed(seed)
    for name in ("row", "centre"):
        if name in state.vectors:
            state.vectors[name].normal_(generator=generator)
    runtime.load(state)


def total(runtime: SimRuntime) -> torch.Tensor:
    """The sum that may be conserved, (P,)."""
    rows = runtime.rows().sum(0)
    return rows + runtime.centre() if runtime.cluster.centre else rows


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_synchronous_results_do_not_depend_on_speed(name: str) -> None:
    learners = 1 if name == "sgd" else 3
    rows = []
    for cost, slow in ((CostModel(), ()), (JITTER, (Straggler(0, 7.0),))):
        with SimRuntime(cluster(name, learners, stragglers=slow), cost) as runtime:
            runtime.segment(plan(12, learners))
            rows.append(runtime.rows().clone())
    assert torch.equal(*rows)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_asynchronous_results_do_depend_on_speed(name: str) -> None:
    """The control of the test above: were it to pass for these too, it could not fail."""
    rows = []
    for slow in ((), (Straggler(0, 7.0),)):
        with SimRuntime(cluster(name, 3, stragglers=slow)) as runtime:
            runtime.segment(plan(12, 3))
            rows.append(runtime.rows().clone())
    assert not torch.equal(*rows)


@pytest.mark.parametrize("learners", [2, 3, 4, 5])
def test_ssgd_is_sgd_with_a_minibatch_as_large_as_all(learners: int) -> None:
    """Without noise a minibatch's gradient is the whole gradient, so only the averaging is left to be compared."""
    task = Quadratic(parameters=37, noise=0.0)
    with SimRuntime(cluster("ssgd", learners, task, 0.9)) as many, SimRuntime(cluster("sgd", 1, task, 0.9)) as one:
        many.segment(plan(0, learners, examples=10 * MINIBATCH + 3))  # the last round leaves some learners empty
        one.segment(plan(0, 1, examples=10 * MINIBATCH + 3))
        for row in many.rows():
            torch.testing.assert_close(row, one.rows()[0])


# Traits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_staleness_never_exceeds_the_declared_bound(name: str) -> None:
    learners = 1 if name == "sgd" else 5
    with SimRuntime(cluster(name, learners, stragglers=(Straggler(0, 5.0),)), JITTER) as runtime:
        outcome = runtime.segment(plan(40, learners))
    histogram, largest, mean = staleness_summary(outcome.counts)
    traits = make_strategy(name).traits
    period = getattr(make_strategy(name), "period", 1) if traits.ages == "centre" else 1
    assert outcome.counts.steps.sum() / period <= sum(histogram) <= outcome.counts.steps.sum()
    assert mean == pytest.approx(sum(s * n for s, n in enumerate(histogram)) / sum(histogram))
    if traits.staleness_bound is None:
        least = 3 if name.startswith(("hadpsgd", "async-gasloc")) else 5  # fewer meet its row, or not every step
        assert largest > least, "a learner five times as slow must have stale gradients"
    else:
        assert largest <= traits.staleness_bound


@pytest.mark.parametrize("cls", [cls for cls in STRATEGIES.values() if cls.traits.staleness_bound])
def test_a_declared_bound_is_reached(cls: type[Strategy]) -> None:
    """By some setting of every strategy that declares one: a bound nothing comes near would say nothing."""
    largest = 0
    for name in (n for n in MANY if type(make_strategy(n)) is cls):
        with SimRuntime(cluster(name, 3)) as runtime:
            largest = max(largest, staleness_summary(runtime.segment(plan(8, 3)).counts)[1])
    assert largest == cls.traits.staleness_bound


@pytest.mark.parametrize("name", [n for n in MANY if make_strategy(n).traits.ages == "centre"])
def test_ages_of_the_centre_count_what_others_have_reported(name: str) -> None:
    """Equally fast learners take turns at the centre: but for the first time, everybody else has been there."""
    with SimRuntime(cluster(name, 4)) as runtime:
        outcome = runtime.segment(plan(30, 4))
    histogram, largest, _ = staleness_summary(outcome.counts)
    assert largest == 3
    assert histogram[:3] == [1, 1, 1]


def test_a_largest_delay_below_the_number_of_learners_is_refused() -> None:
    """Learners that take turns would drop each other's reports for ever."""
    with pytest.raises(UserError, match=r"asgd\.max_delay is 3 with 4 learners"):
        make_strategy("asgd max_delay=3").check(4)
    make_strategy("asgd max_delay=4").check(4)


@pytest.mark.parametrize("name", [n for n in MANY if not make_strategy(n).traits.alone_is_sgd])
def test_those_that_declare_not_to_be_sgd_alone_are_not(name: str) -> None:
    ends = []
    for which in (name, "sgd"):
        with SimRuntime(cluster(which, 1)) as runtime:
            runtime.segment(plan(20, 1))
            ends.append(runtime.consensus().clone())
    assert not torch.allclose(ends[0], ends[1], rtol=1e-3)


@pytest.mark.parametrize("name", EVERY)
def test_the_model_to_evaluate_is_the_declared_one(name: str) -> None:
    learners = 1 if name == "sgd" else 4
    with SimRuntime(cluster(name, learners), JITTER) as runtime:
        runtime.segment(plan(12, learners))
        vectors, strategy = runtime.state().vectors, make_strategy(name)
        assert ("centre" in vectors) == (strategy.traits.model == "centre")
        holders = strategy.holders(tuple(range(learners)))
        rows, shares = vectors["row"][list(holders)], runtime.shares()
        mean = rows.mean(0) if shares is None else weighted_mean(list(rows), shares)
        centre = vectors["centre"][0] if "centre" in vectors else mean
        assert torch.equal(runtime.consensus(), centre)
        assert (strategy.traits.model == "mean") == torch.allclose(centre, mean, rtol=1e-3)
        assert set(strategy.memory) <= set(vectors)


@pytest.mark.parametrize("name", [n for n in MANY if make_strategy(n).traits.model == "mean"])
def test_learners_go_on_from_one_model_or_from_rows_of_their_own_as_declared(name: str) -> None:
    with SimRuntime(cluster(name, 4), JITTER) as runtime:
        runtime.segment(plan(11, 4))
        rows = runtime.rows()
    assert all(torch.equal(row, rows[0]) for row in rows) == (make_strategy(name).traits.rows != "own")


@pytest.mark.parametrize("name", MANY)
def test_rows_are_equal_after_every_step_where_that_is_declared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    after: dict[int, list[Tensor]] = {}
    step = LearnerState.step

    def noted(self: LearnerState, gradient: Gradient) -> None:
        step(self, gradient)
        after.setdefault(self.steps, []).append(self.x.clone())

    monkeypatch.setattr(LearnerState, "step", noted)
    with SimRuntime(cluster(name, 4), JITTER) as runtime:
        runtime.segment(plan(6, 4))
    equal = all(torch.equal(row, rows[0]) for rows in after.values() for row in rows)
    assert equal == (make_strategy(name).traits.rows == "equal")


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_where_a_segment_ends_changes_nothing(name: str) -> None:
    """To stop in the middle of an epoch, at a round that ends a block, and go on is not to have stopped. Bitwise."""
    learners = 1 if name == "sgd" else 3
    whole = plan(12, learners, examples=12 * MINIBATCH - 7)
    block = make_strategy(name).block
    states = []
    for cuts in ((), (6,), (6, 6 + block)):
        ends = (*cuts, whole.end_round)
        with SimRuntime(cluster(name, learners, momentum=0.9)) as runtime:
            for first, last in zip((0, *cuts), ends, strict=True):
                runtime.segment(SegmentPlan(whole.epoch, 0.1, first=first * learners, last_round=last))
            states.append(runtime.state().vectors)
    for vector in states[0]:
        if vector == "centre":  # written at the end of each segment
            continue
        assert all(torch.equal(state[vector], states[0][vector]) for state in states), vector


@pytest.mark.parametrize(
    ("name", "learners"), [*((name, 5) for name in MANY), *((name, 2) for name in one_of_each(MANY))]
)
def test_every_strategy_finds_the_optimum(name: str, learners: int) -> None:
    task = Quadratic(parameters=10, curvature=(0.3, 1.0), noise=0.0)
    # The centre of asgd takes every learner's step in full, some of them late: it bears 1 / L of the rate.
    in_full = make_strategy(name).traits.ages == "centre" and name != "rennala"
    rate, rounds = (0.03, 1200) if in_full else (0.3, 300)
    with SimRuntime(cluster(name, learners, task), JITTER) as runtime:
        runtime.segment(plan(rounds, learners, rate=rate))
        assert task.build().evaluate(runtime.consensus(), "held out").mean_loss < 1e-5
        assert runtime.consensus_distance() < 1e-2


def seconds(
    name: str, learners: int, slow: tuple[Straggler, ...], cost: CostModel | None = None, rounds: int = 60
) -> float:
    with SimRuntime(cluster(name, learners, stragglers=slow), cost) as runtime:
        outcome = runtime.segment(plan(rounds, learners))
    assert outcome.virtual_seconds is not None
    return outcome.virtual_seconds


@pytest.mark.parametrize("name", one_of_each(MANY))
def test_a_straggler_holds_up_whom_it_should(name: str) -> None:
    """One of 8 learners is 10 times slower, so 7.1 of 8 are left: the ideal is 8 / 7.1 = 1.13 times the time, and its
    last minibatch, for which all wait in the end, takes 10 of 120."""
    ratio = seconds(name, 8, (Straggler(3, 10.0),), rounds=120) / seconds(name, 8, (), rounds=120)
    if make_strategy(name).traits.synchronous:
        assert ratio > 6
    else:
        assert ratio < (1.4 if name == "hadpsgd" else 1.3)  # a node of two is lost with its slow half: 8 / 6.2


def held_up(strategy: Strategy, rank: int) -> set[int]:
    """Those of 8 learners who wait for a slow `rank`, by what the strategy declares."""
    if strategy.traits.waits.startswith("nobody"):
        return {rank}
    if isinstance(strategy, HAdPsgd):
        return set(next(node for node in strategy.nodes(tuple(range(8))) if rank in node))
    return set(range(8))  # neighbours have neighbours: on a connected graph it reaches everybody in the end


@pytest.mark.parametrize("name", MANY)
def test_who_waits_is_as_declared(name: str) -> None:
    """By what each learner gets done while one of them is 10 times slower."""
    with SimRuntime(cluster(name, 8, stragglers=(Straggler(3, 10.0),))) as runtime:
        outcome = runtime.segment(plan(60, 8))
    assert outcome.virtual_seconds is not None
    alone = outcome.virtual_seconds / CostModel().gradient
    slow = {rank for rank in range(8) if outcome.counts.steps[rank] < 0.5 * alone}
    assert slow == held_up(make_strategy(name), 3)


@pytest.mark.parametrize("name", ["bsp period=20", "bmuf period=20", "slowmo period=20", "diloco period=20"])
def test_to_wait_once_a_period_is_to_wait_less(name: str) -> None:
    """Gradients take now longer, now shorter: many steps of one learner take nearly as long as those of
    another."""
    uneven = CostModel(jitter=0.5)
    assert seconds(name, 8, (), uneven) < 0.75 * seconds("ssgd", 8, (), uneven)


@pytest.mark.parametrize(
    "name",
    [
        "delay-by-one",
        "delayed-gradient",
        "dpsgd order=consensus",
        "easgd-sync period=1",
        "diloco period=2 delay=1",
        "diloco period=4 fragments=2 delay=1 codec=int4",
    ],
)
def test_what_is_sent_behind_the_gradient_costs_no_time(name: str) -> None:
    dear, free = CostModel(exchange=0.02, allreduce=0.02), CostModel(exchange=0.0, allreduce=0.0)
    assert seconds(name, 4, (), dear) < 1.02 * seconds(name, 4, (), free)
    assert seconds("ssgd", 4, (), dear) > 1.2 * seconds("ssgd", 4, (), free)
    assert seconds("dpsgd order=atc", 4, (), dear) > 1.2 * seconds("dpsgd order=atc", 4, (), free)
