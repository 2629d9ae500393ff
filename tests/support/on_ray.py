"""Runs a Python script beside a Ray cluster of two nodes on this machine, which it finds by RAY_ADDRESS."""

import os
import subprocess
import sys

from ray.cluster_utils import Cluster

STORE_BYTES = 80 * 2**20
"""Of a node's object store: nothing goes through it."""


def main(command: list[str]) -> int:
    here = {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=here)
    try:
        cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
        environment = {**os.environ, "RAY_ADDRESS": cluster.address, "RAY_DEDUP_LOGS": "0"}
        return subprocess.run([sys.executable, *command], env=environment, check=False).returncode
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
