"""Fifty random schedules of faults in the simulator, for every strategy.

Deaths, returns, stragglers, learners that stand still for a while, slow links: whatever happens, nothing hangs and
every frame is trained once, or, where a strategy needs everybody, the missing learner is named.
"""

import math

import pytest
import torch

from roundelay.core.streams import stream
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import LearnerDied, Outcome
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
from support.clusters import ASYNCHRONOUS, EVERY, MANY, MINIBATCH, SYNCHRONOUS, cluster, one_of_each, plan

SCHEDULES, ROUNDS, LATER = 50, 12, 4
TASK = Quadratic(parameters=8, curvature=(0.5, 1.0), noise=0.5)
SECONDS = 1.5
"""An undisturbed run takes 1.2 virtual seconds, so most faults fall into it."""


def schedule(seed: int, learners: int, comes_back: bool) -> VirtualCluster:
    """Learner 0 stays, or there would be runs with nobody left; with `comes_back` the dead may return."""
    drawn = stream(seed, "faults")
    deaths, joins, stragglers = [], [], []
    for rank in range(learners):
        fate = drawn.uniform()
        if fate < 0.2:
            stragglers.append(Handicap(rank, factor=float(drawn.uniform(2, 10))))
        elif fate < 0.4:  # stopped, and continued
            begin = float(drawn.uniform(0, SECONDS))
            stragglers.append(Handicap(rank, seconds=float(drawn.uniform(0.2, 3)), window=(begin, begin + 0.1)))
        elif fate < 0.8 and rank:
            deaths.append(Moment(rank, float(drawn.uniform(1e-3, SECONDS))))
            if comes_back and drawn.uniform() < 0.6:
                joins.append(Moment(rank, deaths[-1].at + float(drawn.uniform(0.01, 1))))
    latency, bandwidth = (10 ** float(drawn.uniform(*powers)) for powers in ((-5, -1.7), (6.5, 9)))
    between = VirtualLink(latency, bandwidth, shared=bool(drawn.uniform() < 0.5))
    alone = learners == 1 or drawn.uniform() < 0.3
    nodes = (Node(learners),) if alone else (Node(learners // 2), Node(learners - learners // 2))
    return VirtualCluster(
        name=f"schedule {seed}",
        nodes=nodes,
        compute=Compute(seconds=0.1, sigma=float(drawn.uniform(0, 0.5))),
        links=VirtualLinks(VirtualLink(5e-6, 12e9), between),
        allreduce=Allreduce(),
        background=bool(drawn.uniform() < 0.5),
        model_bytes=1e6,
        deaths=tuple(deaths),
        joins=tuple(joins),
        stragglers=tuple(stragglers),
    )


def runtime(name: str, seed: int) -> SimRuntime:
    learners = 4 if name in MANY else 1
    virtual = schedule(seed, learners, comes_back=name in ASYNCHRONOUS)
    return SimRuntime(cluster(name, learners, TASK, seed=seed), CostModel(cluster=virtual))


def trained(running: SimRuntime) -> tuple[int, Outcome | None]:
    """The rank that died, or -1 and the outcome of the segment."""
    try:
        return -1, running.segment(plan(ROUNDS, running.cluster.learners))
    except LearnerDied as death:
        return death.rank, None


def loss(running: SimRuntime) -> float:
    return TASK.build().evaluate(running.consensus(), "dev").mean_loss


@pytest.mark.parametrize("name", one_of_each(ASYNCHRONOUS))
def test_whatever_happens_every_frame_is_trained_once_and_the_model_learns(name: str) -> None:
    happened = 0
    for seed in range(SCHEDULES):
        with runtime(name, seed) as running:
            before = loss(running)
            for epoch, rounds in enumerate((ROUNDS, LATER)):
                outcome = running.segment(plan(rounds, 4, epoch=epoch))
                assert outcome.finished, seed
                assert outcome.counts.frames.sum() == rounds * MINIBATCH, seed
                assert {lost.rank for lost in outcome.lost} <= {m.rank for m in running.cost.cluster.deaths}  # type: ignore[union-attr]
                happened += len(outcome.lost)
            after = loss(running)
            assert math.isfinite(after), seed
            assert after < 0.7 * before, seed
    assert happened > SCHEDULES / 2, "schedules without faults say nothing"


@pytest.mark.parametrize("name", ["sgd", *one_of_each(SYNCHRONOUS)])
def test_who_is_needed_and_dies_is_named_and_else_every_frame_is_trained_once(name: str) -> None:
    named = 0
    for seed in range(SCHEDULES):
        with runtime(name, seed) as running:
            virtual = running.cost.cluster
            assert virtual is not None
            before = loss(running)
            died, outcome = trained(running)
            if outcome is None:
                named += 1
                assert Moment(died, min(m.at for m in virtual.deaths)) in virtual.deaths, seed
                continue
            assert outcome.counts.frames.sum() == ROUNDS * MINIBATCH, seed
            assert loss(running) < 0.9 * before, seed
    assert (named > SCHEDULES / 4) == (name in MANY), "schedules without faults say nothing"


@pytest.mark.parametrize("name", EVERY)
def test_a_schedule_ends_in_the_same_weights_every_time(name: str) -> None:
    found = []
    for _ in range(2):
        with runtime(name, 7) as running:
            found.append((trained(running)[0], running.rows().clone()))
    (died, rows), (again, same) = found
    assert died == again
    assert torch.equal(rows, same)
