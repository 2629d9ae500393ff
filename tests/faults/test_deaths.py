"""Learners that die while they train, by kill -9, whenever the kernel gets round to it."""

import os
import signal

import pytest

from roundelay.runtime.base import Glance, SegmentPlan, Straggler, Watch
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths
from support.clusters import ENDLESS, MINIBATCH, cluster, plan

SLOW = tuple(Straggler(rank, seconds=0.02) for rank in range(3))


def killer(runtime: ProcsRuntime, rank: int) -> Watch:
    """Kills one learner at the first look, and stops when its death is known."""
    killed = False

    def look(glance: Glance) -> bool:
        nonlocal killed
        if not killed:
            killed = True
            os.kill(runtime.process_ids()[rank], signal.SIGKILL)
        return bool(glance.lost)

    return look


@pytest.mark.parametrize(
    ("name", "victim"),
    [
        ("asgd", 0),
        ("adpsgd:random-ring", 2),
        ("hadpsgd", 0),
        ("hadpsgd:fixed-ring node_size=1", 2),
        ("diloco period=3 quorum=3", 1),
    ],
)
def test_asynchronous_strategies_can_go_on_without_the_dead_and_train_every_frame(name: str, victim: int) -> None:
    with ProcsRuntime(cluster(name, 3, stragglers=SLOW), threads=1, deaths=Deaths("go-on")) as runtime:
        outcome = runtime.segment(plan(ENDLESS, 3), killer(runtime, victim))
        assert [(lost.rank, lost.replaced) for lost in outcome.lost] == [(victim, False)]
        assert "SIGKILL" in outcome.lost[0].reason
        assert outcome.counts.frames.sum() == outcome.next // 3 * MINIBATCH
        rest = SegmentPlan(plan(outcome.next // 3 + 20, 3).epoch, 0.1, first=outcome.next)
        finished = runtime.segment(rest)
        assert (finished.finished, finished.lost) == (True, ())
        assert finished.counts.frames.sum() == 20 * MINIBATCH
        living = tuple(rank for rank in range(3) if rank != victim)
        assert len(runtime.rows()) == len(runtime.cluster.strategy.holders(living))
        after = runtime.segment(plan(10, 3, epoch=1))
        assert (after.lost, after.joined) == ((), ())
        assert after.counts.frames.sum() == 10 * MINIBATCH
        assert after.counts.steps[victim] == 0
        assert len(runtime.state().vectors["row"]) == 3
