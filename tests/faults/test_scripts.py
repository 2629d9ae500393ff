"""Scripts that train: with the guard `__main__`, without it, and from standard input."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.preloaded import environment, run_preloaded

OWN = """
class Quadratic(Quadratic):
    "A task that only this script defines."
"""
BODY = """
from roundelay.core.progress import Silent
from roundelay.learner.quadratic import Quadratic
from roundelay.schedule import Newbob
from roundelay.training import Interrupt, train
from support.clusters import MINIBATCH
from support.runs import job
OWN
def main():
    made = job("adpsgd", Quadratic(examples=4 * MINIBATCH), runtime="RUNTIME", schedule=Newbob(0.05, max_epochs=1))
    print(train(made, Path(sys.argv[1]), Silent(), Interrupt()).epochs, "epochs", flush=True)
"""
HEAD = "import sys\nfrom pathlib import Path\n"
GUARD = 'if __name__ == "__main__":\n    main()\n'


def script(runtime: str, guard: bool, own: str = "") -> str:
    return HEAD + BODY.replace("RUNTIME", runtime).replace("OWN", own) + (GUARD if guard else "main()\n")


def run(exp: Path, command: list[str], text: str = "") -> "subprocess.CompletedProcess[str]":
    if not text:
        return run_preloaded([*command, str(exp)], environment(), timeout=220)
    return subprocess.run(
        [sys.executable, *command, str(exp)],
        input=text,
        text=True,
        capture_output=True,
        timeout=220,
        check=False,
        env=environment(),
    )


@pytest.mark.parametrize("runtime", ["procs", "sim"])
def test_without_the_guard_a_task_of_the_scripts_own_is_an_error_that_names_it(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(script(runtime, guard=False, own=OWN))
    done = run(tmp_path / "exp", [str(path)])
    if runtime == "sim":  # which has no other processes
        assert (done.stdout, done.returncode) == ("1 epochs\n", 0), done.stderr
        return
    assert done.returncode == 1
    assert 'Put what it does under `if __name__ == "__main__":`' in done.stderr
    assert "memory" not in done.stderr
    assert done.stderr.count("Traceback") <= 2, "the parent's, and what it was raised from"


@pytest.mark.parametrize(("guard", "own"), [(False, ""), (True, OWN)])
def test_learners_import_the_script_only_where_its_task_is_defined_there(guard: bool, own: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(script("procs", guard, own))
    done = run(tmp_path / "exp", [str(path)])
    assert (done.stdout, done.returncode) == ("1 epochs\n", 0), done.stderr


def test_a_script_from_standard_input_trains(tmp_path: Path) -> None:
    done = run(tmp_path / "exp", ["-"], script("procs", guard=False))
    assert (done.stdout, done.returncode) == ("1 epochs\n", 0), done.stderr
