"""Laws that every strategy must obey, in the simulator, where nothing depends on timing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roundelay.core.errors import UserError
from roundelay.core.state import Gradient
from roundelay.runtime.base import SegmentPlan, Straggler, staleness_summary
from roundelay.runtime.learner_state import LearnerState
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import STRATEGIES
from roundelay.strategies.base import Strategy
from roundelay.strategies.hadpsgd import HAdPsgd
from roundelay.testing import (
    JITTER,
    check_alone,
    check_frames,
    check_model,
    check_optimum,
    check_rows,
    check_segments,
    check_speed,
    check_staleness,
    check_sum,
    check_waits,
    scatter,
    total,
)
from support.clusters import (
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


def test_the_table_of_tests_knows_every_strategy() -> None:
    differ = set(STRATEGIES) ^ {make_strategy(name).name for name in EVERY}
    assert not differ, f"no line in MANY, tests/support/clusters.py, for {differ}: so no law holds them"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_learner_is_plain_sgd(name: str, momentum: float) -> None:
    check_alone(make_strategy(name), momentum)


@given(st.sampled_from(EVERY), st.integers(1, 7), st.integers(1, 400), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_every_frame_is_trained_exactly_once(name: str, learners: int, examples: int, seed: int) -> None:
    check_frames(make_strategy(name), 1 if name == "sgd" else learners, examples, seed)


@given(st.sampled_from([n for n in EVERY if keeps_sum(make_strategy(n))]), st.integers(1, 7), st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_at_rate_zero_the_sum_of_rows_stays(name: str, learners: int, seed: int) -> None:
    check_sum(make_strategy(name), 1 if name == "sgd" else learners, seed)


@pytest.mark.parametrize("name", [n for n in MANY if not keeps_sum(make_strategy(n))])
def test_those_that_declare_nothing_conserved_do_not_conserve(name: str) -> None:
    """The control of the law above: were conservation a matter of course, declaring it would say nothing."""
    with SimRuntime(cluster(name, 4), JITTER) as runtime:
        scatter(runtime, 0)
        before = total(runtime)
        runtime.segment(plan(15, 4, rate=0.1))
        runtime.segment(SegmentPlan(plan(15, 4, epoch=1, examples=15 * MINIBATCH - 50).epoch, 0.0))
        assert not torch.allclose(total(runtime), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_results_depend_on_speed_unless_synchronous(name: str) -> None:
    check_speed(make_strategy(name), 1 if name == "sgd" else 3)


# Traits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_staleness_never_exceeds_the_declared_bound(name: str) -> None:
    few = name.startswith(("hadpsgd", "async-gasloc"))  # fewer meet its row, or not every step
    check_staleness(make_strategy(name), 1 if name == "sgd" else 5, least=3 if few else 5)


@pytest.mark.parametrize("name", EVERY)
def test_every_step_has_an_age(name: str) -> None:
    learners = 1 if name == "sgd" else 5
    with SimRuntime(cluster(name, learners)) as runtime:
        counts = runtime.segment(plan(8, learners)).counts
    histogram, _, mean = staleness_summary(counts)
    traits = make_strategy(name).traits
    period = getattr(make_strategy(name), "period", 1) if traits.ages == "centre" else 1
    assert counts.steps.sum() / period <= sum(histogram) <= counts.steps.sum()
    assert mean == pytest.approx(sum(s * n for s, n in enumerate(histogram)) / sum(histogram))


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


@pytest.mark.parametrize("name", EVERY)
def test_the_model_to_evaluate_is_the_declared_one(name: str) -> None:
    check_model(make_strategy(name), 1 if name == "sgd" else 4)


@pytest.mark.parametrize("name", [n for n in MANY if make_strategy(n).traits.model == "mean"])
def test_learners_go_on_from_one_model_or_from_rows_of_their_own_as_declared(name: str) -> None:
    check_rows(make_strategy(name))


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
    check_segments(make_strategy(name), 1 if name == "sgd" else 3)


@pytest.mark.parametrize(
    ("name", "learners"), [*((name, 5) for name in MANY), *((name, 2) for name in one_of_each(MANY))]
)
def test_every_strategy_finds_the_optimum(name: str, learners: int) -> None:
    check_optimum(make_strategy(name), learners)


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


@pytest.mark.parametrize("name", MANY)
def test_who_waits_is_as_declared(name: str) -> None:
    """All are held up, for neighbours have neighbours; or the slow one's node; or none but itself."""
    strategy = make_strategy(name)
    nodes = strategy.nodes(tuple(range(8))) if isinstance(strategy, HAdPsgd) else ()
    check_waits(strategy, next((node for node in nodes if 3 in node), ()))


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
