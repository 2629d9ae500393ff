"""A learner whose parent is gone ends, without a word; so does all that was started with it, stopped or not."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LEARNER = """
import multiprocessing, os, sys
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.worker import WorkerSpec, main
from support.clusters import cluster

found = cluster("adpsgd", 2, Quadratic(parameters=37))
layout = Layout(2, 37, found.memory, found.centre)
path = f"/proc/{os.getpid()}/fd/{create_file(layout)}" if sys.argv[1] == "well" else "/nowhere"
parent, commands = multiprocessing.Pipe()
lifeline, held = multiprocessing.Pipe(duplex=False)
parent.close()
main(WorkerSpec(0, found, layout, path, 1.0, 1), commands, lifeline)
"""


@pytest.mark.parametrize("built", ["well", "badly"])
def test_a_learner_that_nobody_hears_ends_quietly(tmp_path: Path, built: str) -> None:
    script = tmp_path / "learner.py"
    script.write_text(LEARNER)
    paths = [str(Path(__file__).parents[1]), *sys.path]
    done = subprocess.run(
        [sys.executable, str(script), built],
        env={"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


RUN = """
import os, sys, threading
from multiprocessing import forkserver
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.procs.driver import ProcsRuntime
from support.clusters import cluster

def run():
    with ProcsRuntime(cluster("adpsgd", 2, Quadratic(parameters=37)), threads=1) as runtime:
        print(*runtime.process_ids(), vars(forkserver)["_forkserver"]._forkserver_pid, flush=True)
        sys.stdin.read()

if __name__ == "__main__":
    if sys.argv[1] == "main":
        run()
    else:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
"""


@pytest.mark.parametrize(("thread", "stopped"), [("main", {0, 1, 2}), ("another", {1})])
def test_nothing_outlives_a_parent_that_is_killed_while_learners_are_stopped(
    tmp_path: Path, thread: str, stopped: set[int]
) -> None:
    """Learners 0 and 1, and 2, the process that they are forks of. That one can be stopped only where the main thread
    has started it."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    with subprocess.Popen(
        [sys.executable, str(script), thread],
        env={"PYTHONPATH": ":".join([str(Path(__file__).parents[1]), *sys.path]), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        numbers = [int(word) for word in parent.stdout.readline().split()]
        watched = [os.pidfd_open(number) for number in numbers]
        try:
            for place in stopped:
                os.kill(numbers[place], signal.SIGSTOP)
            parent.kill()
            living = watched
            while living:
                ended, _, _ = select.select(living, [], [], 30.0)
                assert ended, "somebody outlives the run"
                living = [one for one in living if one not in ended]
        finally:
            for number, descriptor in zip(numbers, watched, strict=True):
                if not select.select([descriptor], [], [], 0.0)[0]:
                    os.kill(number, signal.SIGKILL)
                os.close(descriptor)


def test_a_process_whose_parent_died_before_it_asked_ends_at_once() -> None:
    script = "from roundelay.core.parent import die_with_parent; die_with_parent(1 << 22); print('lives')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
