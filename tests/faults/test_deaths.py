"""Learners that die while they train, by kill -9, whenever the kernel gets round to it."""

import os
import signal
import time
from multiprocessing import forkserver

import pytest

from roundelay.runtime.base import Glance, SegmentPlan, Straggler, Watch
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths
from support.clusters import ENDLESS, MINIBATCH, cluster, plan
from support.until import meanwhile, until

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


def test_how_a_learner_has_died_is_known_though_the_process_that_knows_it_stands_still_for_a_while() -> None:
    """Learners are children of the fork server."""
    with ProcsRuntime(cluster("adpsgd", 3, stragglers=SLOW), threads=1, deaths=Deaths("go-on")) as runtime:
        server: int = vars(forkserver)["_forkserver"]._forkserver_pid
        os.kill(server, signal.SIGSTOP)

        def go_on() -> None:
            try:
                until(lambda: runtime.processes._members[1].reaped)
                time.sleep(1.5)
            finally:
                os.kill(server, signal.SIGCONT)

        with meanwhile(go_on):
            outcome = runtime.segment(plan(ENDLESS, 3), killer(runtime, 1))
    assert [lost.reason for lost in outcome.lost] == ["killed by signal 9 (SIGKILL)"]
