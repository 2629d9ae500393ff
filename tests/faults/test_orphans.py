"""A learner whose parent is gone ends, without a word: whoever killed the run need not read why."""

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
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
