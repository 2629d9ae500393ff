"""Ctrl-C at awkward moments. It goes to every process of the terminal, so here to a whole process group."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.preloaded import environment

STARTING = """
import os, signal, sys
from support.broken import SlowToStart
from support.clusters import cluster, plan
from roundelay.runtime.procs.driver import ProcsRuntime
if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: None)
    print("starting", flush=True)
    with ProcsRuntime(cluster("adpsgd", 2, SlowToStart(parent=os.getpid(), file=sys.argv[1])), threads=1) as runtime:
        print(runtime.segment(plan(3, 2)).finished)
"""


@pytest.mark.parametrize("seconds", [0.1, 1.5])  # while the fork server, or the learners, start
def test_an_interrupt_while_learners_start_is_the_parents_to_answer(tmp_path: Path, seconds: float) -> None:
    script = tmp_path / "parent.py"
    script.write_text(STARTING)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "go")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "starting\n"
    with pytest.raises(subprocess.TimeoutExpired):
        parent.wait(seconds)
    os.killpg(parent.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    out, errors = parent.communicate(timeout=60)
    assert (out, parent.returncode) == ("True\n", 0), errors
