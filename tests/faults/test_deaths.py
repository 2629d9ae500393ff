"""Learners that die while they train, by kill -9, whenever the kernel gets round to it."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from roundelay.runtime.base import Glance, LearnerDied, Straggler, Watch
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.runtime.procs.processes import Deaths
from support.clusters import MINIBATCH, cluster, plan
from support.memory import holders

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


def test_asynchronous_strategies_can_stop_at_a_death() -> None:
    with ProcsRuntime(cluster("adpsgd", 3, stragglers=SLOW), threads=1, deaths=Deaths("stop")) as runtime:
        with pytest.raises(LearnerDied, match=r"learner 1 died: killed by signal 9") as error:
            runtime.segment(plan(100_000, 3), killer(runtime, 1))
        assert 0 < error.value.frames < 100_000 * MINIBATCH


@pytest.mark.parametrize("name", ["ssgd", "delay-by-one"])
def test_synchronous_strategies_name_the_dead(name: str) -> None:
    named = pytest.raises(LearnerDied, match=r"learner 1 died: killed by signal 9 \(SIGKILL\)")
    with ProcsRuntime(cluster(name, 3, stragglers=SLOW), threads=1) as runtime, named:
        runtime.segment(plan(100, 3), killer(runtime, 1))


def test_nobody_outlives_the_runtime() -> None:
    runtime = ProcsRuntime(cluster("adpsgd", 3), threads=1)
    processes = runtime.process_ids()
    runtime.close()
    runtime.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)


PARENT = """
from support.clusters import cluster, plan
from support.memory import arenas
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.procs.driver import ProcsRuntime
if __name__ == "__main__":
    runtime = ProcsRuntime(cluster("adpsgd", 2, Quadratic(parameters=300_000)), threads=1)
    print(*arenas(), *runtime.process_ids(), flush=True)
    runtime.segment(plan(10_000_000, 2))
"""


def test_learners_and_memory_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """The lifeline pipe: nothing is left behind when the parent gets no chance to clean up."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    tests = str(Path(__file__).parents[1])
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
    )
    assert parent.stdout is not None
    inode, *processes = [int(number) for number in parent.stdout.readline().split()]
    assert len(processes) == 2
    assert len(holders(inode)) == 3
    # The learners, and the servers that started them, are in the session of their parent.
    session = [p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if in_session(p, parent.pid)]
    assert {parent.pid, *processes} < set(session)
    descriptors = [os.pidfd_open(pid) for pid in session if pid != parent.pid]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 30)[0], "a process outlived the run by 30 s"
        os.close(descriptor)
    assert holders(inode) == []


def in_session(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False
