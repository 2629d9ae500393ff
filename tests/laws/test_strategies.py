"""What every strategy must obey, in the simulator, where nothing depends on timing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundelay.core.topology import ring_matrix, second_eigenvalue
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import SegmentPlan, Straggler, staleness_summary
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import STRATEGIES
from support.clusters import ASYNCHRONOUS, EVERY, MANY, MINIBATCH, SYNCHRONOUS, cluster, make_strategy, plan

JITTER = CostModel(jitter=0.3)


def test_the_table_of_tests_knows_every_strategy() -> None:
    assert {make_strategy(name).name for name in EVERY} == set(STRATEGIES)


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


@given(st.sampled_from([n for n in EVERY if make_strategy(n).traits.conserves]), st.integers(1, 7), st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_at_rate_zero_the_sum_of_rows_stays(name: str, learners: int, seed: int) -> None:
    learners = 1 if name == "sgd" else learners
    with SimRuntime(cluster(name, learners, seed=seed), JITTER) as runtime:
        scatter(runtime, seed)
        before = total(runtime)
        runtime.segment(plan(15, learners, rate=0.0))
        after = total(runtime)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in MANY if not make_strategy(n).traits.conserves])
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


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("learners", [1, 3, 4])
def test_two_equal_simulations_are_equal(name: str, learners: int) -> None:
    learners = 1 if name == "sgd" else learners
    ends = []
    for _ in range(2):
        with SimRuntime(cluster(name, learners, momentum=0.5), JITTER) as runtime:
            outcome = runtime.segment(plan(20, learners))
            ends.append((runtime.rows().clone(), outcome.virtual_seconds, outcome.counts.exchanges.tolist()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]


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


def end(name: str, learners: int, momentum: float = 0.0) -> torch.Tensor:
    with SimRuntime(cluster(name, learners, momentum=momentum)) as runtime:
        runtime.segment(plan(0, learners, examples=11 * MINIBATCH + 5))
        return runtime.rows().clone()


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
def test_averaging_models_every_step_is_averaging_gradients(learners: int) -> None:
    torch.testing.assert_close(end("bsp period=1", learners), end("ssgd", learners))


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
@pytest.mark.parametrize("period", [1, 4, 50])
@pytest.mark.parametrize("nesterov", ["true", "false"])
def test_bmuf_without_block_momentum_is_model_averaging(learners: int, period: int, nesterov: str) -> None:
    bmuf = f"bmuf period={period} momentum=0.0 nesterov={nesterov}"
    torch.testing.assert_close(end(bmuf, learners, 0.9), end(f"bsp period={period}", learners, 0.9))


@pytest.mark.parametrize("name", ["bsp period=4", "bmuf period=4", "bmuf period=4 nesterov=true"])
def test_a_segment_of_averaging_ends_in_consensus(name: str) -> None:
    rows = end(name, 3)
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


@pytest.mark.parametrize("learners", [2, 3, 8])
def test_delay_by_one_is_one_step_of_gradient_noise_from_consensus(learners: int) -> None:
    """x_l - mean(x) = -lr (g_l - mean(g)) exactly, with g taken at the rows before the step."""
    task = Quadratic(parameters=37)
    with SimRuntime(cluster("delay-by-one", learners, task)) as runtime:
        runtime.segment(plan(5, learners))
        before = runtime.rows().clone()
        segment = plan(1, learners, epoch=1)
        runtime.segment(segment)
        after = runtime.rows().clone()
    learner, gradients = task.build(), torch.empty(learners, 37)
    for rank in range(learners):
        learner.gradient(before[rank], segment.epoch.piece(rank), segment.epoch, gradients[rank])
    torch.testing.assert_close(after - after.mean(0), -0.1 * (gradients - gradients.mean(0)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(after.mean(0), before.mean(0) - 0.1 * gradients.mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_staleness_never_exceeds_the_declared_bound(name: str) -> None:
    learners = 1 if name == "sgd" else 5
    with SimRuntime(cluster(name, learners, stragglers=(Straggler(0, 5.0),)), JITTER) as runtime:
        outcome = runtime.segment(plan(40, learners))
    histogram, largest, mean = staleness_summary(outcome.counts)
    bound = make_strategy(name).traits.staleness_bound
    period = getattr(make_strategy(name), "period", 1) if make_strategy(name).traits.ages == "centre" else 1
    assert outcome.counts.steps.sum() / period <= sum(histogram) <= outcome.counts.steps.sum()
    assert mean == pytest.approx(sum(s * n for s, n in enumerate(histogram)) / sum(histogram))
    if bound is None:
        assert largest > (3 if name.startswith("hadpsgd") else 5), (
            "a learner five times as slow must have stale gradients"
        )
    else:
        assert largest <= bound


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("learners", [2, 5])
def test_every_strategy_finds_the_optimum(name: str, learners: int) -> None:
    task = Quadratic(parameters=10, noise=0.0)
    # The centre of asgd takes every learner's step in full, some of them late: it bears 1 / L of the rate.
    rate, rounds = (0.03, 1500) if make_strategy(name).traits.ages == "centre" else (0.3, 400)
    with SimRuntime(cluster(name, learners, task), JITTER) as runtime:
        runtime.segment(plan(rounds, learners, rate=rate))
        assert task.build().evaluate(runtime.consensus(), "held out").mean_loss < 1e-5
        assert runtime.consensus_distance() < 1e-2


def consensus_after(name: str, learners: int, rounds: int) -> float:
    with SimRuntime(cluster(name, learners), CostModel(exchange=0.0)) as runtime:
        state = runtime.state()
        state.vectors["row"][:] = torch.randn(learners, 37, generator=torch.Generator().manual_seed(0))
        runtime.load(state)
        start = runtime.consensus_distance()
        runtime.segment(plan(rounds, learners, rate=0.0))
        return runtime.consensus_distance() / start


@pytest.mark.parametrize("learners", [4, 5, 16])
def test_without_gradients_rows_agree_at_least_as_fast_as_the_ring_matrix_says(learners: int) -> None:
    """A round of AD-PSGD on the ring is L pair averages, which mix faster than one application of the 1/3 matrix."""
    rounds = 12
    bound = second_eigenvalue(ring_matrix(learners)) ** rounds
    assert consensus_after("adpsgd:fixed-ring", learners, rounds) <= bound


def test_a_random_ring_mixes_faster_than_a_fixed_one_when_there_are_many() -> None:
    assert consensus_after("adpsgd:random-ring", 32, 6) < 0.5 * consensus_after("adpsgd:fixed-ring", 32, 6)


def seconds(name: str, learners: int, slow: tuple[Straggler, ...]) -> float:
    with SimRuntime(cluster(name, learners, stragglers=slow)) as runtime:
        outcome = runtime.segment(plan(60, learners))
    assert outcome.virtual_seconds is not None
    return outcome.virtual_seconds


@pytest.mark.parametrize("name", MANY)
def test_a_straggler_holds_up_whom_it_should(name: str) -> None:
    """One of 8 learners is 10 times slower, so 7.1 of 8 are left: the ideal is 8 / 7.1 = 1.13 times the time."""
    ratio = seconds(name, 8, (Straggler(3, 10.0),)) / seconds(name, 8, ())
    if make_strategy(name).traits.synchronous:
        assert ratio > 6
    else:
        assert ratio < (1.4 if name == "hadpsgd" else 1.3)  # a node of two is lost with its slow half: 8 / 6.2


def test_under_adpsgd_the_others_keep_their_speed() -> None:
    with SimRuntime(cluster("adpsgd", 4, stragglers=(Straggler(0, 10.0),))) as runtime:
        outcome = runtime.segment(plan(100, 4))
    assert outcome.virtual_seconds is not None
    others = outcome.counts.steps[1:] / outcome.virtual_seconds
    assert (others > 0.95 / CostModel().gradient).all()
    assert outcome.counts.steps[0] < 0.12 * outcome.counts.steps[1:].mean()


@pytest.mark.parametrize("name", EVERY)
def test_a_run_cut_in_two_is_the_whole_run(name: str) -> None:
    """State, handed to a new runtime between two segments, is complete. Bitwise where timing decides nothing."""
    learners = 1 if name == "sgd" else 4
    with SimRuntime(cluster(name, learners, momentum=0.9)) as runtime:
        runtime.segment(plan(10, learners))
        middle = runtime.state()
        runtime.segment(plan(10, learners, epoch=1))
        whole = runtime.state()
    with SimRuntime(cluster(name, learners, momentum=0.9)) as runtime:
        runtime.load(middle)
        runtime.segment(plan(10, learners, epoch=1))
        again = runtime.state()
    assert again.integers == whole.integers
    assert again.virtual_ns == whole.virtual_ns
    for vector, value in whole.vectors.items():
        assert torch.equal(value, again.vectors[vector])
