"""Scripts that train: with the guard that learner processes need, without it, and from standard input."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BODY = """
from roundelay.core.progress import Silent
from roundelay.learner.quadratic import Quadratic
from roundelay.schedule import Newbob
from roundelay.training import Interrupt, train
from support.clusters import MINIBATCH
from support.runs import job

def main():
    made = job("adpsgd", Quadratic(examples=4 * MINIBATCH), runtime="RUNTIME", schedule=Newbob(0.05, max_epochs=1))
    print(train(made, Path(sys.argv[1]), Silent(), Interrupt()).epochs, "epochs", flush=True)
"""
HEAD = "import sys\nfrom pathlib import Path\n"
GUARD = 'if __name__ == "__main__":\n    main()\n'


def script(runtime: str, guard: bool) -> str:
    return HEAD + BODY.replace("RUNTIME", runtime) + (GUARD if guard else "main()\n")


def run(exp: Path, command: list[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.run(
        [sys.executable, *command, str(exp)],
        input=text,
        text=True,
        capture_output=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )


@pytest.mark.parametrize("runtime", ["procs", "sim"])
def test_without_the_guard_learners_do_not_start_and_the_error_names_it(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(script(runtime, guard=False))
    done = run(tmp_path / "exp", [str(path)])
    if runtime == "sim":  # which has no other processes
        assert (done.stdout, done.returncode) == ("1 epochs\n", 0), done.stderr
        return
    assert done.returncode == 1
    assert 'Put what it does under `if __name__ == "__main__":`' in done.stderr
    assert "memory" not in done.stderr
    assert done.stderr.count("Traceback") <= 2, "the parent's, and what it was raised from"


@pytest.mark.parametrize("runtime", ["procs", "sim"])
@pytest.mark.parametrize("guard", [True, False])
def test_a_script_from_standard_input_trains(runtime: str, guard: bool, tmp_path: Path) -> None:
    done = run(tmp_path / "exp", ["-"], script(runtime, guard))
    assert (done.stdout, done.returncode) == ("1 epochs\n", 0), done.stderr
