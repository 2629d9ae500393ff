"""Train on the nodes of a Ray cluster: one actor a node, which starts that node's learners.

    pip install ray
    python examples/launch/ray_hosts.py --hosts 2 --learners 4 -- train an4 --exp exp/an4 --strategy hadpsgd

The corpus and the run directory must be where all nodes see them. Under an asynchronous strategy a node that fails is
left out; its actor is not started again. Ray is only the launcher: nothing of the training goes through it.
"""

import argparse
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence

import ray
from ray.util import get_node_ip_address
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(max_restarts=0)
class Host:
    """One node of the cluster."""

    def address(self) -> str:
        """Address at which others reach it."""
        return str(get_node_ip_address())

    def train(self, words: Sequence[str], variables: dict[str, str], folder: str) -> int:
        """Run the command under torchrun's variables; return its exit status."""
        command = [sys.executable, "-m", "roundelay.cli", *words]
        return subprocess.run(command, env={**os.environ, **variables}, cwd=folder, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--learners", type=int, default=1, help="on each host, with a core each (default: 1)")
    parser.add_argument("--port", type=int, default=29500, help="where hosts meet, on the first (default: 29500)")
    parser.add_argument("--packed", action="store_true", help="several hosts may be on one node: to try it out")
    parser.add_argument("words", nargs="+", metavar="train ...", help="the command, as after `roundelay`")
    options = parser.parse_args()
    ray.init(address=os.environ.get("RAY_ADDRESS"), logging_level="WARNING")
    strategy = "PACK" if options.packed else "STRICT_SPREAD"
    group = placement_group([{"CPU": options.learners}] * options.hosts, strategy=strategy)
    ray.get(group.ready())
    hosts = [
        Host.options(
            num_cpus=options.learners, scheduling_strategy=PlacementGroupSchedulingStrategy(group, host)
        ).remote()
        for host in range(options.hosts)
    ]
    shared = {
        "WORLD_SIZE": f"{options.hosts * options.learners}",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": f"{options.learners}",
        "MASTER_ADDR": ray.get(hosts[0].address.remote()),
        "MASTER_PORT": f"{options.port}",
        "ROUNDELAY_SECRET": secrets.token_urlsafe(32),
        "OMP_NUM_THREADS": "1",
    }
    running = [
        host.train.remote(options.words, {**shared, "RANK": f"{number * options.learners}"}, os.getcwd())
        for number, host in enumerate(hosts)
    ]
    sys.exit(ray.get(running[0]))  # the first host leads; the run ends with it


if __name__ == "__main__":
    main()
