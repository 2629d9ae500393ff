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
from support.clusters import ASYNCHRONOUS, MINIBATCH, cluster, plan

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


@pytest.mark.parametrize("name", ASYNCHRONOUS)
@pytest.mark.parametrize("victim", [0, 2])
def test_asynchronous_strategies_go_on_and_train_every_frame(name: str, victim: int) -> None:
    with ProcsRuntime(cluster(name, 3, stragglers=SLOW), threads=1) as runtime:
        outcome = runtime.segment(plan(100, 3), killer(runtime, victim))
        assert [lost.rank for lost in outcome.lost] == [victim]
        assert "SIGKILL" in outcome.lost[0].reason
        assert outcome.finished
        assert outcome.counts.frames.sum() == 100 * MINIBATCH
        living = tuple(rank for rank in range(3) if rank != victim)
        assert len(runtime.rows()) == len(runtime.cluster.strategy.holders(living))
        after = runtime.segment(plan(10, 3, epoch=1))
        assert after.counts.frames.sum() == 10 * MINIBATCH
        assert after.counts.steps[victim] == 0
        state = runtime.state()
        assert len(state.vectors["row"]) == 3


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


def test_learners_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """The lifeline pipe: no process is left behind when the parent gets no chance to clean up."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\n"
        "from support.clusters import cluster, plan\n"
        "from roundelay.learner.quadratic import Quadratic\n"
        "from roundelay.runtime.procs.driver import ProcsRuntime\n"
        "if __name__ == '__main__':\n"
        "    runtime = ProcsRuntime(cluster('adpsgd', 2, Quadratic(parameters=300_000)), threads=1)\n"
        "    print(*runtime.process_ids(), flush=True)\n"
        "    runtime.segment(plan(10_000_000, 2))\n"
    )
    tests = str(Path(__file__).parents[1])
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": tests}
    )
    assert parent.stdout is not None
    processes = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(processes) == 2
    descriptors = [os.pidfd_open(pid) for pid in processes]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 30)[0], "a learner outlived its parent by 30 s"
        os.close(descriptor)
