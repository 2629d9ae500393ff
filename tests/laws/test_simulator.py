"""The promises of the simulator: exact repetition, times on paper, and lives that lose nothing."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.local_update import Sgd
from roundelay.core.effects import Draw, Exchange, Grad
from roundelay.core.errors import UserError
from roundelay.core.state import Me
from roundelay.learner.base import Learner, Task, TimingOnly
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, LearnerDied, Outcome, Straggler
from roundelay.runtime.sim.cluster import (
    Allreduce,
    Compute,
    Handicap,
    Moment,
    Node,
    VirtualCluster,
    VirtualLink,
    VirtualLinks,
)
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies.base import Strategy, Traits
from support.blobs import BlobTask
from support.clusters import (
    ASYNCHRONOUS,
    EVERY,
    MANY,
    MINIBATCH,
    SYNCHRONOUS,
    cluster,
    flat,
    make_strategy,
    one_of_each,
    plan,
)

TASK = Quadratic(parameters=37)
NOTHING = TimingOnly()
ALONE = tuple(n for n in ASYNCHRONOUS if make_strategy(n).holders((0, 1, 2, 3)) == (0, 1, 2, 3))
"""Asynchronous strategies whose learners do not work in groups."""


def simulate(
    strategy: str | Strategy, virtual: VirtualCluster, rounds: int = 20, task: Task = TASK, rate: float = 0.1
) -> tuple[SimRuntime, Outcome]:
    made = make_strategy(strategy) if isinstance(strategy, str) else strategy
    work = Cluster(made, task, Sgd(), virtual.learners, seed=1)
    runtime = SimRuntime(work, CostModel(cluster=virtual))
    return runtime, runtime.segment(plan(rounds, virtual.learners, rate))


def seconds(strategy: str, virtual: VirtualCluster, rounds: int = 20) -> float:
    return simulate(strategy, virtual, rounds, NOTHING)[1].virtual_seconds or 0.0


# Without vectors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("learners", [1, 4])
def test_without_vectors_everything_takes_as_long_and_is_as_stale(name: str, learners: int) -> None:
    learners = 1 if make_strategy(name).name == "sgd" else learners
    virtual = flat(learners, compute=Compute(seconds=0.1, sigma=0.4))
    (full, real), (empty, timed) = (simulate(name, virtual, 30, task) for task in (TASK, NOTHING))
    assert timed.virtual_seconds == real.virtual_seconds
    assert empty.events == full.events
    assert timed.lost == real.lost == ()
    for counted in ("steps", "frames", "staleness", "stalest", "stale_sum", "exchanges"):
        assert getattr(timed.counts, counted).tolist() == getattr(real.counts, counted).tolist()
    assert empty.state().integers == full.state().integers


@pytest.mark.parametrize("name", EVERY)
def test_without_vectors_a_run_cut_in_two_is_the_whole_run(name: str) -> None:
    learners = 1 if make_strategy(name).name == "sgd" else 4

    def runtime() -> SimRuntime:
        return SimRuntime(cluster(name, learners, NOTHING), CostModel(jitter=0.3))

    one, two = runtime(), runtime()
    one.segment(plan(10, learners))
    middle = one.state()
    first = one.segment(plan(10, learners, epoch=1))
    two.load(middle)
    second = two.segment(plan(10, learners, epoch=1))
    assert first.virtual_seconds == second.virtual_seconds
    assert one.state().integers == two.state().integers


def test_events_are_effects_answered_and_ticks() -> None:
    """Of a lone learner and minibatch: a draw, a gradient, the gradient's tick; and the draw at the end."""
    runtime, _ = simulate("sgd", flat(1), 25, NOTHING)
    assert runtime.events == 3 * 25 + 1


# Times on paper ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ssgd", 20 * (0.1 + 0.02)),
        ("bsp period=5", 20 * 0.1 + 4 * 0.02),
        ("delay-by-one", 20 * 0.1),  # the mean is hidden behind the gradient
        ("dpsgd", 20 * (0.1 + 2 * 0.01)),  # two neighbours' rows
    ],
)
def test_synchronous_learners_take_what_the_sum_says(name: str, expected: float) -> None:
    assert seconds(name, flat(4)) == pytest.approx(expected)


def test_where_nothing_goes_on_in_the_background_a_learner_pays_for_what_it_begins() -> None:
    here = flat(4, background=False)
    assert seconds("delay-by-one", here) == pytest.approx(20 * (0.1 + 0.02))
    assert seconds("delay-by-one", flat(4)) == pytest.approx(20 * 0.1)
    assert seconds("adpsgd:fixed-ring", here) > 20 * (0.1 + 0.01) * 0.999
    assert seconds("adpsgd:fixed-ring", flat(4)) < 20 * 0.1 * 1.02


@pytest.mark.parametrize("name", EVERY)
def test_where_nothing_goes_on_in_the_background_results_of_synchronous_learners_are_the_same(name: str) -> None:
    learners = 1 if make_strategy(name).name == "sgd" else 4
    ends = [simulate(name, flat(learners, background=there)) for there in (True, False)]
    assert all(outcome.finished for _, outcome in ends)
    if name in SYNCHRONOUS:
        assert torch.equal(*(runtime.rows() for runtime, _ in ends))


@pytest.mark.parametrize("learners", [4, 16])
def test_a_busy_centre_serves_one_after_another(learners: int) -> None:
    """Learners compute 0.1 s and then need the server for 0.02 s: four of them hardly meet there, sixteen queue up for
    it, and the server alone decides."""
    virtual = flat(learners, exchange=0.02)
    expected = 50 * max(0.12, learners * 0.02)
    assert seconds("asgd period=1", virtual, 50) == pytest.approx(expected, rel=0.05)


def test_a_straggler_holds_synchronous_learners_up_in_its_window() -> None:
    """Ten steps of 1 s, until 20 s as many as fit of 3 s, then 1 s again; means cost nothing."""
    virtual = flat(
        2,
        compute=Compute(seconds=1.0),
        allreduce=Allreduce(seconds={"2": 0.0}),
        stragglers=(Handicap(1, factor=3.0, window=(10.0, 20.0)),),
    )
    assert seconds("ssgd", virtual, 20) == pytest.approx(10 + 4 * 3 + 6)


def test_a_measured_mix_costs_what_was_measured() -> None:
    assert seconds("dpsgd", flat(4, mix=0.05)) == pytest.approx(20 * 0.15)


def test_the_slowest_link_decides_where_the_ring_crosses_it() -> None:
    inside, between = VirtualLink(0.0, 1e9), VirtualLink(0.0, 1e8)
    base = VirtualCluster(nodes=(Node(4),), links=VirtualLinks(inside, between), model_bytes=1e6)
    near, far = seconds("ssgd", base), seconds("ssgd", replace(base, nodes=(Node(2, count=2),)))
    assert near == pytest.approx(20 * (0.1 + 6 / 4 * 1e6 / 1e9))
    assert far == pytest.approx(20 * (0.1 + 6 / 4 * 1e6 / 1e8))


@dataclass(frozen=True)
class MeetOnce(Strategy):
    """Every learner exchanges once with the one beside it, learners 0 and 2 begin."""

    name: ClassVar[str] = "meet-once"
    traits: ClassVar[Traits] = Traits(synchronous=False, conserves=True, staleness_bound=None, waits="none")

    async def learn(self, me: Me) -> None:
        while batch := await Draw():
            if me.rank % 2 == 0:
                await Exchange(me.rank + 1, pair_average_)
            me.step(await Grad(me.snapshot(), batch))


@pytest.mark.parametrize(("shared", "expected"), [(False, 0.2), (True, 0.4)])
def test_on_a_bus_two_pairs_exchange_one_after_another(shared: bool, expected: float) -> None:
    """0.1 s a message, two messages an exchange."""
    link = VirtualLink(0.0, 1e7, shared)
    virtual = VirtualCluster(
        nodes=(Node(4),), compute=Compute(seconds=0.0), links=VirtualLinks(link, link), model_bytes=1e6
    )
    _, outcome = simulate(MeetOnce(), virtual, 1, NOTHING)
    assert outcome.virtual_seconds == pytest.approx(expected)


# Life and death ---------------------------------------------------------------------------------------------------


def dying(learners: int, *deaths: tuple[int, float], joins: tuple[tuple[int, float], ...] = ()) -> VirtualCluster:
    return flat(
        learners,
        compute=Compute(seconds=0.1, sigma=0.2),
        deaths=tuple(Moment(*m) for m in deaths),
        joins=tuple(Moment(*m) for m in joins),
    )


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("task", [TASK, NOTHING], ids=["real", "timed"])
def test_after_a_death_the_others_train_every_frame_once(name: str, task: Task) -> None:
    runtime, outcome = simulate(name, dying(4, (1, 0.55), (2, 1.03)), 20, task)
    assert outcome.finished
    assert outcome.counts.frames.sum() == 20 * MINIBATCH
    assert [lost.rank for lost in outcome.lost] == [1, 2]
    assert 0 < outcome.counts.steps[1] <= outcome.counts.steps[2] < outcome.counts.steps[0]
    assert len(runtime.rows()) == 2


@pytest.mark.parametrize("name", [n for n in SYNCHRONOUS if n in MANY])
def test_a_death_ends_a_synchronous_run_and_names_the_learner(name: str) -> None:
    with pytest.raises(LearnerDied, match=r"learner 2 died: cluster 'flat' says so, at 0\.55 s"):
        simulate(name, dying(4, (2, 0.55)))


@pytest.mark.parametrize("name", sorted(set(ASYNCHRONOUS) - set(ALONE)))
@pytest.mark.parametrize("task", [TASK, NOTHING], ids=["real", "timed"])
@pytest.mark.parametrize("at", [0.05, 0.55, 0.7, 1.91])
def test_a_group_goes_on_without_a_member_that_died(name: str, task: Task, at: float) -> None:
    """Its other members stop where they need it, and begin again with whoever lives when all others have finished."""
    runtime, outcome = simulate(name, dying(4, (1, at), (2, at + 0.3)), 20, task)
    assert outcome.finished
    assert outcome.counts.frames.sum() == 20 * MINIBATCH
    assert [lost.rank for lost in outcome.lost] == [1, 2]
    assert runtime.segment(plan(5, 4, epoch=1)).counts.frames.sum() == 5 * MINIBATCH


def test_a_member_that_died_and_came_back_is_not_waited_for_before_all_begin_again() -> None:
    """Learner 3 computes while 2 dies and is back; the group is whole again, but 2 is not in it yet."""
    slow = (Handicap(3, seconds=1.0),)
    virtual = replace(dying(4, (2, 0.35), joins=((2, 0.5),)), stragglers=slow)
    _, outcome = simulate("hadpsgd", virtual, 20)
    assert outcome.counts.frames.sum() == 20 * MINIBATCH
    assert [lost.rank for lost in outcome.lost] == [2]


def test_when_all_are_dead_the_run_ends() -> None:
    with pytest.raises(LearnerDied):
        simulate("adpsgd", dying(2, (0, 0.5), (1, 0.7)))


def test_a_minibatch_whose_learner_dies_last_is_trained_by_those_that_had_finished() -> None:
    slow = Handicap(3, factor=1000.0)
    virtual = replace(dying(4, (3, 50.0)), stragglers=(slow,))
    _, outcome = simulate("adpsgd", virtual)
    assert outcome.counts.frames.sum() == 20 * MINIBATCH
    assert outcome.counts.steps[3] == 0
    assert outcome.virtual_seconds == pytest.approx(50.1, abs=0.3)


def test_an_exchange_with_the_dead_does_not_happen() -> None:
    _, outcome = simulate("adpsgd:fixed-ring", dying(4, (1, 0.0 + 1e-9)))
    assert outcome.counts.exchanges[:, 1].sum() == 0
    assert outcome.counts.exchanges[2].sum() > 0


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("task", [TASK, NOTHING], ids=["real", "timed"])
def test_who_joins_takes_part_in_the_work(name: str, task: Task) -> None:
    virtual = dying(4, (1, 0.35), joins=((1, 0.85), (3, 0.6)))
    runtime, outcome = simulate(name, virtual, 20, task)
    assert outcome.counts.frames.sum() == 20 * MINIBATCH
    assert 0 < outcome.counts.steps[3] < outcome.counts.steps[0]
    assert [lost.rank for lost in outcome.lost] == [1]
    assert len(runtime.rows()) == 4
    full, fewer = (
        simulate(name, dying(4, *deaths), rounds, task)[1].virtual_seconds or 0.0
        for deaths, rounds in (((), 20), (((1, 0.35),), 30))
    )
    assert full < (outcome.virtual_seconds or 0.0) < fewer


def test_who_joins_begins_with_the_row_of_its_neighbour() -> None:
    """At rate 0 rows change by exchanges only; MeetOnce makes pairs equal, so 2 and 3 end equal to each other."""
    work = Cluster(MeetOnce(), TASK, Sgd(), 4, seed=1)
    runtime = SimRuntime(work, CostModel(cluster=dying(4, joins=((3, 0.6),))))
    state = runtime.state()
    state.vectors["row"][:] = torch.arange(4.0)[:, None]
    runtime.load(state)
    runtime.segment(plan(20, 4, rate=0.0))
    rows = runtime.rows()
    assert torch.equal(rows[2], rows[3])
    assert torch.equal(rows[3], torch.full_like(rows[3], 2.0))


@pytest.mark.parametrize("name", [n for n in SYNCHRONOUS if n in MANY])
def test_synchronous_learners_cannot_wait_for_one_that_joins_later(name: str) -> None:
    with pytest.raises(UserError, match="learner 3 joins later"):
        simulate(name, dying(4, joins=((3, 0.6),)))


def test_in_the_next_segment_the_dead_stay_dead_and_a_late_joiner_is_there() -> None:
    virtual = dying(4, (0, 0.3), joins=((2, 1.9), (0, 3.05)))
    runtime, _ = simulate("adpsgd", virtual, 10)
    assert len(runtime.rows()) == 2
    outcome = runtime.segment(plan(10, 4, epoch=1))
    assert outcome.counts.steps[2] > 0
    assert outcome.counts.frames.sum() == 10 * MINIBATCH


# Gradients computed together ----------------------------------------------------------------------------------------


def rows_after(name: str, task: Task, together: bool | None) -> torch.Tensor:
    learners = 1 if make_strategy(name).name == "sgd" else 4
    with SimRuntime(cluster(name, learners, task, 0.5), CostModel(jitter=0.2, together=together)) as runtime:
        runtime.segment(plan(12, learners, examples=9 * MINIBATCH + 5))
        return runtime.rows().clone()


@pytest.mark.parametrize("name", EVERY)
def test_quadratic_gradients_computed_together_are_the_same_to_the_bit(name: str) -> None:
    alone, together, left_to_choose = (rows_after(name, TASK, choice) for choice in (False, True, None))
    assert torch.equal(alone, together)
    assert torch.equal(alone, left_to_choose)


@pytest.mark.parametrize("name", ["sgd", *one_of_each(EVERY)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_module_gradients_computed_together_are_the_same_to_rounding(name: str, dropout: float) -> None:
    alone, *together = (rows_after(name, BlobTask(dropout=dropout), choice) for choice in (False, True, True))
    torch.testing.assert_close(together[0], alone, rtol=1e-4, atol=1e-6)
    assert torch.equal(*together)


def test_they_are_indeed_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the two tests above."""
    sizes: list[int] = []
    original: Callable[..., object] = type(TASK.build()).gradients

    def counted(self: Learner, x: torch.Tensor, *others: object) -> object:
        sizes.append(len(x))
        return original(self, x, *others)

    monkeypatch.setattr(type(TASK.build()), "gradients", counted)
    rows_after("ssgd", TASK, True)
    assert max(sizes) == 4
    sizes.clear()
    rows_after("ssgd", TASK, False)
    assert not sizes


def test_stragglers_of_the_cluster_and_of_the_run_add_up() -> None:
    virtual = flat(2, stragglers=(Handicap(1, factor=2.0),), allreduce=Allreduce(seconds={"2": 0.0}))
    work = Cluster(make_strategy("ssgd"), NOTHING, Sgd(), 2, 1, (Straggler(1, 3.0),))
    outcome = SimRuntime(work, CostModel(cluster=virtual)).segment(plan(10, 2))
    assert outcome.virtual_seconds == pytest.approx(10 * 0.6)
