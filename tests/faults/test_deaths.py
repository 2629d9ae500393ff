"""Learners that die while they train, by kill -9, whenever the kernel gets round to it."""

import os
import signal

import pytest

from roundelay.runtime.base import Glance, Straggler, Watch
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths
from support.clusters import MINIBATCH, cluster, plan

SLOW = tuple(Straggler(rank, seconds=0.02) for rank in range(3))
"""Sleeping learners: 100 rounds take at least 2 s, the first look comes after 0.2 s."""


def killer(runtime: ProcsRuntime, rank: int) -> Watch:
    """Kills one learner at the first look."""
    killed = False

    def look(_: Glance) -> bool:
        nonlocal killed
        if not killed:
            killed = True
            os.kill(runtime.process_ids()[rank], signal.SIGKILL)
        return False

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
        outcome = runtime.segment(plan(60, 3), killer(runtime, victim))
        assert [(lost.rank, lost.replaced) for lost in outcome.lost] == [(victim, False)]
        assert "SIGKILL" in outcome.lost[0].reason
        assert outcome.finished
        assert outcome.counts.frames.sum() == 60 * MINIBATCH
        living = tuple(rank for rank in range(3) if rank != victim)
        assert len(runtime.rows()) == len(runtime.cluster.strategy.holders(living))
        after = runtime.segment(plan(10, 3, epoch=1))
        assert (after.lost, after.joined) == ((), ())
        assert after.counts.frames.sum() == 10 * MINIBATCH
        assert after.counts.steps[victim] == 0
        assert len(runtime.state().vectors["row"]) == 3
