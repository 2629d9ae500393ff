"""Submit a training to Slurm from Python: one task a node, which starts that node's learners.

    pip install 'roundelay[slurm]'
    python examples/launch/slurm_submitit.py --nodes 2 --learners 4 -- train an4 --exp exp/an4 --strategy hadpsgd

A job that runs out of time is queued again by submitit, one that is preempted by us, and both go on from their last
checkpoint. Hosts meet at the first node's name; where nodes do not know each other by it, set MASTER_ADDR.
`--cluster local` runs it on this machine instead, as one node.
"""

import argparse
import os
import re
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import submitit


@dataclass
class Training:
    """The work of a task; submitit pickles it, and, before a time limit, asks it what to do next."""

    words: list[str]  # of the command, after `roundelay`
    learners: int  # on each node
    secret: str

    def __call__(self) -> int:
        """On a node: say who we are as torchrun would, and train."""
        job = submitit.JobEnvironment()
        who = {
            "RANK": job.node * self.learners,
            "LOCAL_RANK": 0,
            "WORLD_SIZE": job.num_nodes * self.learners,
            "LOCAL_WORLD_SIZE": self.learners,
            "MASTER_ADDR": os.environ.get("MASTER_ADDR") or job.hostnames[0],
            "MASTER_PORT": 20000 + int(str(job.job_id).split("_")[0]) % 10000,
        }
        environment = {**os.environ, **{name: str(value) for name, value in who.items()}, "OMP_NUM_THREADS": "1"}
        environment["ROUNDELAY_SECRET"] = self.secret
        command = [sys.executable, "-m", "roundelay.cli", *self.words]
        self._process = subprocess.Popen(command, env=environment)
        status = self._process.wait()
        if job.global_rank == 0 and status == 128 + signal.SIGTERM and preempted(job):
            # It has written its checkpoint. Slurm queues only those again that it had to kill, submitit none.
            subprocess.run(["scontrol", "requeue", job.job_id], check=True)
            sys.exit(status)  # there is no result yet
        return status

    def checkpoint(self, *_: Any) -> submitit.helpers.DelayedSubmission:
        """Before its time is over: write a checkpoint, and come back."""
        self._process.send_signal(signal.SIGUSR2)  # Slurm has sent it to all; twice does no harm
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)  # `wait` is under way, below this handler
        return submitit.helpers.DelayedSubmission(Training(self.words, self.learners, self.secret))


def preempted(job: submitit.JobEnvironment) -> bool:
    """Return True if Slurm has ended it for another job; else a user has cancelled it."""
    if job.cluster != "slurm":
        return False
    found = subprocess.run(["scontrol", "show", "job", job.job_id], capture_output=True, text=True, check=True)
    return re.search(r"PreemptTime=\d", found.stdout) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--learners", type=int, default=1, help="on each node (default: 1)")
    parser.add_argument("--cpus", type=int, help="of each node (default: one for each learner)")
    parser.add_argument("--partition")
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--cluster", default="slurm", choices=["slurm", "local"])
    parser.add_argument("--logs", default="exp/slurm", help="folder of what tasks print (default: exp/slurm)")
    parser.add_argument("words", nargs="+", metavar="train ...", help="the command, as after `roundelay`")
    options = parser.parse_args()
    executor = submitit.AutoExecutor(folder=options.logs, cluster=options.cluster)
    executor.update_parameters(
        name="roundelay",
        nodes=options.nodes,
        tasks_per_node=1,
        cpus_per_task=options.cpus or options.learners,
        timeout_min=options.minutes,
        **({"slurm_partition": options.partition} if options.partition else {}),
    )
    job = executor.submit(Training(options.words, options.learners, secrets.token_urlsafe(32)))
    print(f"job {job.job_id}; what it prints goes to {job.paths.stdout}")

    def stop(_: int, __: FrameType | None) -> None:
        job.cancel()
        sys.exit(130)

    signal.signal(signal.SIGINT, stop)
    sys.exit(job.task(0).result())  # the first host leads: a run ends on all with its status


if __name__ == "__main__":
    main()
