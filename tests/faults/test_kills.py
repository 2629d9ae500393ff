"""A few of the random kills of benchmarks/kills.py."""

import subprocess
import sys
from pathlib import Path

from support.preloaded import environment

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def test_runs_under_random_kills_train_every_minibatch_once_and_leave_nothing_behind() -> None:
    command = [sys.executable, str(PROGRAM), "--kills", "6", "--rounds", "100"]
    names = ["adpsgd:random-ring", "hadpsgd", "asgd"]
    run = subprocess.run(
        [*command, "--strategies", *names],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
        env=environment(),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    total = run.stdout.splitlines()[-1].split()
    assert total[0] == "all"
    assert total[2] == "6", run.stdout
