"""Learners on two nodes of a Ray cluster, where Ray is installed."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TOO_LONG = 300.0
"""Seconds: the machine may be busy with other things."""
pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray (pip install ray)"),
    pytest.mark.timeout(2 * TOO_LONG),
]


def on_two_nodes(*command: str) -> str:
    """All that a script prints beside such a cluster."""
    paths = [str(ROOT / "src"), str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    cluster = str(ROOT / "tests" / "support" / "on_ray.py")
    done = subprocess.run(
        [sys.executable, cluster, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOO_LONG,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_workers_go_on_without_one_that_is_killed() -> None:
    said = on_two_nodes(str(EXAMPLES / "ray_trainer.py"), "--workers", "3", "--kill", "2")
    assert "worker 2 is lost" in said
    found = dict(re.findall(r"worker (\d) took \d+ steps; losses (.*)", said))
    assert found.keys() == {"0", "1"}
    assert found["0"] == found["1"]
    losses = [float(loss) for loss in found["0"].split()]
    assert losses[-1] < losses[0] / 2


def test_a_worker_that_is_killed_comes_back() -> None:
    """Three workers are on both nodes, each of which has room for two. Ray starts the one that was lost again, and it
    ends with the others' model."""
    said = on_two_nodes(str(EXAMPLES / "ray_trainer.py"), "--workers", "3", "--kill", "2", "--restarts", "1")
    assert re.findall(r"worker (\d) has come back", said) == ["2"]
    assert sorted(re.findall(r"worker (\d) was never lost", said)) == ["0", "1"]
    found = dict(re.findall(r"worker (\d) took \d+ steps; losses (.*)", said))
    losses = {rank: [float(loss) for loss in text.split()] for rank, text in found.items()}
    assert losses.keys() == {"0", "1", "2"}
    assert losses["0"] == losses["1"]
    assert losses["2"] == losses["0"][-len(losses["2"]) :]
    assert losses["0"][-1] < losses["0"][0] / 2


def test_a_script_on_each_node() -> None:
    """`ray_hosts.py` starts `roundelay launch` on each, as it is."""
    command = ("launch", "-n", "1", str(EXAMPLES / "classifier.py"))
    said = on_two_nodes(str(EXAMPLES / "launch" / "ray_hosts.py"), "--hosts", "2", "--", *command)
    losses = [re.findall(rf"learner {rank} epoch \d loss ([\d.]+)", said) for rank in range(2)]
    assert losses[0] == losses[1]
    assert float(losses[0][-1]) < float(losses[0][0])


@pytest.mark.parametrize(("workers", "strategy", "fail"), [(2, "ssgd", ""), (2, "ssgd", "fail"), (3, "adpsgd", "")])
def test_workers_of_ray_train_are_learners(workers: int, strategy: str, fail: str, tmp_path: Path) -> None:
    """Three are on two nodes, so that each is a host. After a failure Ray starts all again, and they resume."""
    pytest.importorskip("ray.train.torch")
    script = str(ROOT / "tests" / "support" / "ray_train_script.py")
    on_two_nodes(script, str(workers), strategy, str(tmp_path), fail)
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(workers)]
    assert all(one["learners"] == workers and one["losses"] == told[0]["losses"] for one in told)
    assert {one["first"] for one in told} == ({1} if fail else {0})
    assert told[0]["losses"][-1] < 0.05
