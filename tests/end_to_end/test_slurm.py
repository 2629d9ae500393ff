"""Training and attached scripts under Slurm itself, where it is installed: started, preempted, going on."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from roundelay.core.records import Interrupted, of_kind, read_events
from support.beeps import prepare_beeps
from support.slurm import Slurm, missing

TOO_LONG = 300.0
"""Seconds: the machine may be busy with other things."""
EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = str(EXAMPLES / "launch" / "slurm.sbatch")
pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


def test_an_attached_script(slurm: Slurm) -> None:
    """A learner on each of two nodes, with the same model at each evaluation."""
    job = slurm.submit("--cpus-per-task=1", SCRIPT, "launch", "-n", "1", str(EXAMPLES / "classifier.py"))
    slurm.until(lambda: slurm.state(job) == "COMPLETED", "the job has ended")
    losses = [re.findall(rf"learner {rank} epoch \d loss ([\d.]+)", slurm.said(job)) for rank in range(2)]
    assert losses[0] == losses[1]
    assert float(losses[0][-1]) < float(losses[0][0])


def test_a_preempted_script_goes_on(slurm: Slurm) -> None:
    """It saves, ends with the status of SIGTERM, is queued again, and trains the epochs that are left."""
    saves = slurm.folder / "saves"
    script = [str(EXAMPLES / "classifier.py"), "--epochs", "12", "--save", str(saves)]
    job = slurm.submit("--partition=low", "--cpus-per-task=4", SCRIPT, "launch", "-n", "1", *script)
    slurm.until(lambda: "epoch 1 loss" in slurm.said(job), "it trains")
    preempt(slurm, job)
    epochs = [[int(e) for e in re.findall(rf"learner {rank} epoch (\d+)", slurm.said(job))] for rank in range(2)]
    assert epochs[0] == epochs[1] == sorted(epochs[0])
    assert set(epochs[0]) == set(range(12))
    assert len(epochs[0]) <= 13, "at most the epoch that was broken off is there twice"


def preempt(slurm: Slurm, job: int) -> None:
    """Another job takes the nodes, and gives them back; until the first has come to its end."""
    urgent = slurm.submit("--partition=high", "--cpus-per-task=4", "--wrap", "true")
    slurm.until(lambda: slurm.state(urgent) == "COMPLETED", "the job of higher priority has run")
    go_on(slurm, job)


def run_out_of_time(slurm: Slurm, job: int) -> None:
    """The signal comes that submitit has asked for before the limit; until the job has come to its end."""
    slurm.ask("scancel", "--signal=USR2", f"{job}")
    go_on(slurm, job)


def go_on(slurm: Slurm, job: int) -> None:
    """Slurm starts it again, and it comes to its end."""
    slurm.until(lambda: slurm.state(job) == "PENDING", "it is queued again")
    # Slurm lets two minutes pass; in the second in which it killed the job it would take this one for that.
    slurm.ask("scontrol", "update", f"jobid={job}", "StartTime=now+5")
    slurm.until(lambda: slurm.state(job) == "COMPLETED", "it comes to its end")


def test_a_preempted_training_goes_on(slurm: Slurm) -> None:
    """It ends with a checkpoint within its grace time, is queued again, and comes to its end; one that is cancelled is
    not queued again."""
    folder = slurm.folder / "beeps"
    folder.mkdir()
    prepare_beeps(folder, schedule={"learning_rate": 0.02, "max_epochs": 3})

    def train(exp: str) -> int:
        slow = ("--straggler", "0:+0.2", "--straggler", "1:+0.2")
        command = (SCRIPT, "train", "recipe.yaml", "--exp", exp, "--strategy", "adpsgd", *slow)
        return slurm.submit("--partition=low", f"--chdir={folder}", "--cpus-per-task=4", *command)

    job = train("exp")
    slurm.until(lambda: any((folder / "exp").glob("checkpoints/*")), "it trains")
    preempt(slurm, job)
    assert slurm.said(job).count("The same command goes on from there") == 1
    assert len(of_kind(read_events(folder / "exp" / "events.jsonl"), Interrupted)) == 1

    cancelled = train("other")
    slurm.until((folder / "other" / "live.json").exists, "another has begun")
    slurm.ask("scancel", f"{cancelled}")
    slurm.until(lambda: slurm.state(cancelled) == "CANCELLED", "it ends")
    slurm.until(lambda: not slurm.ask("squeue", "-h", "-j", f"{cancelled}"), "nobody queues it again")


@pytest.mark.skipif(find_spec("submitit") is None, reason="needs submitit (pip install 'roundelay[slurm]')")
@pytest.mark.parametrize("why", ["preempted", "out-of-time"])
def test_a_training_that_submitit_submitted_goes_on(slurm: Slurm, why: str) -> None:
    """It is queued again as the script's are; whoever submitted it waits, and ends with its status."""
    folder, logs = slurm.folder / why, slurm.folder / why / "logs"
    folder.mkdir()
    prepare_beeps(folder, schedule={"learning_rate": 0.02, "max_epochs": 3})
    slow = ("--straggler", "0:+0.2", "--straggler", "1:+0.2")
    train = ("train", "recipe.yaml", "--exp", "exp", "--strategy", "adpsgd", *slow)
    command = [sys.executable, str(EXAMPLES / "launch" / "slurm_submitit.py"), "--partition", "low", "--cpus", "4"]
    with subprocess.Popen(
        [*command, "--logs", str(logs), "--", *train],
        env=slurm.environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as submitter:
        try:
            assert submitter.stdout is not None
            found = re.match(r"job (\d+);", submitter.stdout.readline())
            assert found is not None
            slurm.until(lambda: any((folder / "exp").glob("checkpoints/*")), "it trains")
            if why == "preempted":
                preempt(slurm, int(found[1]))
            else:
                run_out_of_time(slurm, int(found[1]))
            assert submitter.wait(TOO_LONG) == 0
        finally:
            submitter.kill()
    said = "".join(file.read_text() for file in sorted(logs.glob("*_0_log.*")))
    assert said.count("The same command goes on from there") == 1, said
    assert len(of_kind(read_events(folder / "exp" / "events.jsonl"), Interrupted)) == 1
    assert (folder / "exp" / "results.json").exists()
