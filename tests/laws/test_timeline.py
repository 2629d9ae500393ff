"""Lanes of a timeline: in order, without overlaps, bounded; and what they show of those who wait."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from roundelay.runtime.base import Outcome, Straggler
from roundelay.runtime.lanes import LANE_SEGMENTS, MOST_SPANS, ON_EXCHANGE, ON_GRADIENT, ON_MEAN, SHORTEST, Lane, Span
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import EVERY, cluster, flat, make_strategy, plan

SLOW = (Straggler(1, factor=3.0),)


def simulated(name: str, learners: int, segments: int = 1) -> list[Outcome]:
    """Learner 1 takes three times as long as the others. A gradient takes 0.1 s, an exchange 0.01, a mean 0.02."""
    runtime = SimRuntime(
        cluster(name, learners, stragglers=SLOW if learners > 1 else ()), CostModel(cluster=flat(learners))
    )
    return [runtime.segment(plan(24, learners, epoch=epoch)) for epoch in range(segments)]


def check(lanes: Mapping[int, Sequence[Span]], seconds: float) -> None:
    """Spans of a learner follow each other, and none is longer than the segment."""
    assert min(spans[0][1] for spans in lanes.values()) == 0.0
    for spans in lanes.values():
        assert len(spans) <= MOST_SPANS
        assert all(end - start >= SHORTEST - 1e-6 for _, start, end in spans)
        assert all(one[2] <= next_[1] + 1e-6 for one, next_ in pairwise(spans))
        assert spans[-1][2] <= seconds + 1e-6


def share(spans: Sequence[Span], kind: int) -> float:
    """Of the time from the first span to the last."""
    return sum(end - start for one, start, end in spans if one == kind) / (spans[-1][2] - spans[0][1])


@pytest.mark.parametrize("name", EVERY)
def test_a_lane_is_the_learners_time(name: str) -> None:
    learners = 1 if make_strategy(name).name == "sgd" else 4
    outcome, _, third = simulated(name, learners, LANE_SEGMENTS + 1)
    assert set(outcome.lanes) == set(range(learners))
    assert outcome.virtual_seconds is not None
    check(outcome.lanes, outcome.virtual_seconds)
    assert not third.lanes
    for rank, spans in outcome.lanes.items():  # virtual learners take no time for anything but their effects
        gradients = sum(end - start for kind, start, end in spans if kind == ON_GRADIENT)
        assert gradients == pytest.approx((0.3 if rank == 1 else 0.1) * outcome.counts.steps[rank])
        assert sum(end - start for _, start, end in spans) == pytest.approx(spans[-1][2] - spans[0][1])


def test_the_fast_wait_under_ssgd_and_go_on_under_adpsgd() -> None:
    (together,), (apart,) = simulated("ssgd", 2), simulated("adpsgd", 2)
    assert together.lanes[0][:3] == [(ON_GRADIENT, 0.0, 0.1), (ON_MEAN, 0.1, 0.32), (ON_GRADIENT, 0.32, 0.42)]
    assert together.lanes[1][:3] == [(ON_GRADIENT, 0.0, 0.3), (ON_MEAN, 0.3, 0.32), (ON_GRADIENT, 0.32, 0.62)]
    assert share(together.lanes[0], ON_MEAN) > 0.65
    assert share(together.lanes[1], ON_MEAN) < 0.07
    assert all(share(spans, ON_GRADIENT) > 0.85 for spans in apart.lanes.values())
    assert not any(kind == ON_MEAN for spans in apart.lanes.values() for kind, _, _ in spans)


@pytest.mark.parametrize("name", ["ssgd", "adpsgd", "easgd period=2"])
def test_real_learners_have_lanes_too(name: str) -> None:
    with ProcsRuntime(cluster(name, 2, stragglers=(Straggler(1, seconds=0.005),)), threads=1) as runtime:
        outcomes = [runtime.segment(plan(12, 2, epoch=epoch)) for epoch in range(LANE_SEGMENTS + 1)]
    for outcome in outcomes[:-1]:
        assert set(outcome.lanes) >= {rank for rank in range(2) if outcome.counts.steps[rank]}
        check(outcome.lanes, outcome.wall_seconds)
        slow = sum(end - start for kind, start, end in outcome.lanes.get(1, ()) if kind == ON_GRADIENT)
        assert slow >= 0.005 * outcome.counts.steps[1]
        met = {kind for spans in outcome.lanes.values() for kind, _, _ in spans}
        assert (ON_MEAN in met) is (name == "ssgd")  # an asynchronous learner may find nothing left to draw
    assert not outcomes[-1].lanes


def test_a_lane_is_bounded() -> None:
    lane = Lane()
    for number in range(2 * MOST_SPANS):
        lane.note(ON_EXCHANGE, number, number + 0.5)
    lane.note(ON_EXCHANGE, -1.0, -1.0 + SHORTEST / 2)
    assert len(lane.spans) == MOST_SPANS
    assert lane.spans[-1] == (ON_EXCHANGE, MOST_SPANS - 1, MOST_SPANS - 0.5)
