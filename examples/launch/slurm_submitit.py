"""Submit a training to Slurm from Python: one task a node, which starts that node's learners.

    pip install 'roundelay[slurm]'
    python examples/launch/slurm_submitit.py --nodes 2 --learners 4 -- train an4 --exp exp/an4 --strategy hadpsgd

A job that is preempted, or runs out of time, is submitted again by submitit and goes on from its last checkpoint.
`--cluster local` runs it on this machine instead, as one node.
"""

import argparse
import os
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
    """The work of a task; submitit pickles it, and, after a preemption, asks it what to do next."""

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
            "MASTER_ADDR": job.hostnames[0],
            "MASTER_PORT": 20000 + int(str(job.job_id).split("_")[0]) % 10000,
        }
        environment = {**os.environ, **{name: str(value) for name, value in who.items()}, "OMP_NUM_THREADS": "1"}
        environment["ROUNDELAY_SECRET"] = self.secret
        command = [sys.executable, "-m", "roundelay.cli", *self.words]
        self._process = subprocess.Popen(command, env=environment)
        return self._process.wait()

    def checkpoint(self, *_: Any) -> submitit.helpers.DelayedSubmission:
        """Before it is preempted: write a checkpoint, and come back."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        return submitit.helpers.DelayedSubmission(Training(self.words, self.learners, self.secret))


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
    sys.exit(max(job.results()))


if __name__ == "__main__":
    main()
