"""A Slurm cluster of two nodes on this machine: its controller and node daemons, with a folder of their own."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from support.ports import free_port
from support.preloaded import environment

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
TOO_LONG = 300.0
"""Seconds: the machine may be busy with other things."""
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname={machine} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=4
NodeName=node2 NodeHostname={machine} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
PartitionName=low Nodes=node[1-2] Default=YES State=UP PriorityTier=1 GraceTime=120
PartitionName=high Nodes=node[1-2] State=UP PriorityTier=10 PreemptMode=OFF
"""
"""Jobs of `high` preempt those of `low`."""


def missing() -> str:
    """Return the reason why there can be no cluster here; "" if there can."""
    absent = [name for name in DAEMONS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if absent:
        return f"needs Slurm and munge (Debian: slurm-wlm munge): there is no {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "Slurm's node daemons start jobs as root only"


class Slurm:
    """A Slurm cluster, with its files in `folder`; a context manager that ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "state").mkdir()
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        ports = [free_port() for _ in range(3)]
        text = CONFIGURATION.format(machine=socket.gethostname(), folder=folder, port=ports[0], ports=ports[1:])
        (folder / "slurm.conf").write_text(text)
        self.environment = environment(
            PATH=f"{os.environ['PATH']}:/usr/sbin",
            SLURM_CONF=folder / "slurm.conf",
            ROUNDELAY=f"{sys.executable} -m roundelay.cli",
            MASTER_ADDR="127.0.0.1",  # the nodes' names mean nothing to this machine
        )
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        folder = self.folder
        munge = ["munged", "-F", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge"]
        files = ((name, folder / f"munge.{name}") for name in ("pid", "log", "seed"))
        self._start(munge + [f"--{name}-file={file}" for name, file in files])
        self.until((folder / "munge").exists, "munged listens")
        self._start(["slurmctld", "-D"])
        for node in (1, 2):
            self._start(["slurmd", "-D", "-N", f"node{node}"])
        self.until(lambda: self.ask("sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%D") == "2", "two nodes are idle")
        return self

    def _start(self, command: list[str]) -> None:
        said = open(self.folder / f"{len(self._daemons)}-{command[0]}.txt", "w")  # noqa: SIM115 the daemon's
        with said:
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, stdout=said, stderr=said, start_new_session=True)
            )

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if len(self._daemons) > 1:
            self.ask("scancel", "--full", "--user=root")
            self.until(lambda: not self.ask("squeue", "-h", "-t", "running,completing"), "all jobs have ended")
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait(TOO_LONG)

    def ask(self, *command: str) -> str:
        """Run one of Slurm's commands; return its standard output, "" if it failed."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def submit(self, *command: str, learners: int = 1, **variables: str) -> int:
        """Submit a job of two nodes, whose output goes to `job-NUMBER.txt`; return its number."""
        environment: Mapping[str, str] = {**self.environment, "LEARNERS": f"{learners}", **variables}
        sbatch = [
            "sbatch",
            "--parsable",
            "--nodes=2",
            f"--output={self.folder}/job-%j.txt",
            "--open-mode=append",
            *command,
        ]
        done = subprocess.run(sbatch, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def said(self, job: int) -> str:
        """Return the output of a job so far."""
        file = self.folder / f"job-{job}.txt"
        return file.read_text() if file.exists() else ""

    def state(self, job: int) -> str:
        """Return the JobState of a job: PENDING, RUNNING, COMPLETED, ..."""
        found = re.search(r"JobState=(\w+)", self.ask("scontrol", "show", "job", f"{job}"))
        return found[1] if found else ""

    def until(self, so: Callable[[], bool], what: str) -> None:
        """Wait until `so()` is true.

        Raises:
            AssertionError: it takes absurdly long; with what jobs and daemons have said.
        """
        deadline = time.monotonic() + TOO_LONG
        while not so():
            texts = [f"{file.name}:\n{file.read_text()}" for file in sorted(self.folder.glob("*.txt"))]
            assert time.monotonic() < deadline, "\n".join([f"never: {what}", *texts])
            time.sleep(0.2)
