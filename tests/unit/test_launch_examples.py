"""The scripts of examples/launch: every host they start takes the place that it should. Launchers are stood in for."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

LAUNCH = Path(__file__).parents[2] / "examples" / "launch"
SAY = """
import json, sys
from roundelay.runtime.launch.world import read_place
words = sys.argv[1:]
place = read_place(words[words.index("--listen") + 1] if "--listen" in words else None)
print(json.dumps([place.ranks, place.learners, place.port, place.listen[1], len(place.secret), words[0]]))
"""
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" || exit 1; done
"""
SCONTROL = """#!/bin/sh
echo 127.0.0.1
echo 127.0.0.2
"""


@pytest.fixture
def say(tmp_path: Path) -> str:
    """A script that stands for `roundelay`."""
    script = tmp_path / "say.py"
    script.write_text(SAY)
    return f"{sys.executable} {script}"


def run(command: list[str], folder: Path, environment: Mapping[str, str]) -> list[list[Any]]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ROUNDELAY_SECRET", "ROUNDELAY_SECRET_FILE")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, env={**clean, **paths, **environment}, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_by_hand(tmp_path: Path, say: str) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef0123")
    places = [
        run(
            ["sh", str(LAUNCH / "by_hand.sh"), "train", "an4"],
            tmp_path,
            {"HOST": f"{host}", "HOSTS": "3", "LEARNERS": "2", "MASTER_ADDR": "127.0.0.1", "ROUNDELAY": say},
        )[0]
        for host in range(3)
    ]
    assert places == [[[2 * h, 2 * h + 1], 6, 29500, 0 if h else 29500, 20, "train"] for h in range(3)]


def test_slurm(tmp_path: Path, say: str) -> None:
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "a[1-2]", "SLURM_JOB_ID": "12345", "SLURM_JOB_NUM_NODES": "2"}
    places = run(
        ["sh", str(LAUNCH / "slurm.sbatch"), "train", "an4"],
        tmp_path,
        {**slurm, "SLURM_CPUS_PER_TASK": "4", "ROUNDELAY": say},
    )
    assert [place[:4] for place in places] == [[[0, 1, 2, 3], 8, 22345, 22345], [[4, 5, 6, 7], 8, 22345, 0]]
    assert all(place[4] >= 32 for place in places)


@pytest.mark.parametrize(
    ("status", "preempted", "requeued"),
    [
        (0, "None", False),
        (1, "None", False),
        (130, "None", False),
        (138, "None", True),
        (143, "None", False),
        (143, "2026-01-01T00:00:00", True),
    ],
)
def test_slurm_queues_a_run_again_that_its_time_limit_or_preemption_has_ended(
    status: int, preempted: str, requeued: bool, tmp_path: Path
) -> None:
    """Nobody queues one that a user cancelled. Slurm itself queues only those that do not end in their grace time."""
    scontrol = f'#!/bin/sh\n[ "$1" = requeue ] && echo "$@" > asked\necho host\necho PreemptTime={preempted}\n'
    for name, text in (("srun", f"#!/bin/sh\nexit {status}\n"), ("scontrol", scontrol)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", str(LAUNCH / "slurm.sbatch"), "train", "an4"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "a", "SLURM_JOB_ID": "12345"},
    )
    assert done.returncode == status
    assert (tmp_path / "asked").exists() == requeued
    if requeued:
        assert (tmp_path / "asked").read_text() == "requeue 12345\n"


def variables(container: Mapping[str, Any]) -> dict[str, str]:
    """Of a pod, where Kubernetes puts in what only it knows."""
    known = {"POD_IP": "127.0.0.1", "ROUNDELAY_SECRET": "0123456789abcdef"}
    return {one["name"]: one.get("value", known.get(one["name"])) for one in container["env"]}


def test_a_kubernetes_job(tmp_path: Path, say: str) -> None:
    service, job = yaml.safe_load_all((LAUNCH / "kubernetes_job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = variables(container)
    assert given["HOSTS"] == str(job["spec"]["completions"]) == str(job["spec"]["parallelism"])
    assert given["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert given["MASTER_PORT"] == str(service["spec"]["ports"][0]["port"])
    for host in range(2):
        (place,) = run(
            container["command"],
            tmp_path,
            {**given, "MASTER_ADDR": "127.0.0.1", "JOB_COMPLETION_INDEX": f"{host}", "ROUNDELAY": say},
        )
        assert place == [[4 * host + i for i in range(4)], 8, 29500, 0 if host else 29500, 16, "train"]


def test_a_pytorchjob(tmp_path: Path, say: str) -> None:
    job = yaml.safe_load((LAUNCH / "kubernetes_pytorchjob.yaml").read_text())
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    (container,) = replicas["Master"]["template"]["spec"]["containers"]
    operator = {"MASTER_ADDR": "localhost", "MASTER_PORT": "23456", "WORLD_SIZE": "4"}
    for rank in range(4):
        (place,) = run(
            container["command"], tmp_path, {**variables(container), **operator, "RANK": f"{rank}", "ROUNDELAY": say}
        )
        assert place == [[rank], 4, 23456, 0 if rank else 23456, 16, "train"]


def test_kubernetes_knows_what_its_files_say() -> None:
    """Its own schemas: no key that means nothing, none of a wrong type. Of Kubeflow's job the pods."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs pip install kubernetes-validate")

    def check(document: Mapping[str, Any]) -> None:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)

    service, job = yaml.safe_load_all((LAUNCH / "kubernetes_job.yaml").read_text())
    check(service)
    check(job)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["enviroment"] = container.pop("env")
    with pytest.raises(kubernetes_validate.ValidationError, match="enviroment"):
        check(job)
    kubeflow = yaml.safe_load((LAUNCH / "kubernetes_pytorchjob.yaml").read_text())
    for replica in kubeflow["spec"]["pytorchReplicaSpecs"].values():
        check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **replica["template"]})
