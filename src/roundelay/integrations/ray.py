"""A backend for Ray Train, whose workers then are learners that `roundelay.attach` finds.

    trainer = TorchTrainer(train, torch_config=RoundelayConfig(), scaling_config=ScalingConfig(num_workers=4))

Ray starts workers, and starts all of them again after a failure, as its `FailureConfig` says; nothing of the training
goes through it. There is no process group of torch.distributed.
"""

import os
import secrets
import socket
from typing import Any, final

import ray
from ray.train.backend import Backend, BackendConfig
from ray.train.torch import TorchConfig
from ray.util import get_node_ip_address


@final
class RoundelayConfig(TorchConfig):
    """The `torch_config` of a TorchTrainer whose workers attach. No process group is made."""

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend class, which tells workers their ranks."""
        return RoundelayBackend


class RoundelayBackend(Backend):
    """A backend that makes workers learners. The workers of a node are a host if all nodes have equally many; else each
    worker is."""

    share_cuda_visible_devices = True
    """Learners of a host map each other's rows, so that all see all its GPUs."""

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Tell each worker its rank and the address where all meet."""
        nodes: list[str] = worker_group.execute(_node)
        address, port = worker_group.execute_single(0, _meeting_place)
        here = nodes.count(nodes[0])
        together = all(len(set(nodes[first : first + here])) == 1 for first in range(0, len(nodes), here))
        local = here if together and len(nodes) == here * len(set(nodes)) else 1
        shared = {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(len(nodes)),
            "LOCAL_WORLD_SIZE": str(local),
            "ROUNDELAY_SECRET": secrets.token_urlsafe(32),
        }
        told = [
            worker_group.execute_single_async(
                rank, _tell, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank % local)}
            )
            for rank in range(len(nodes))
        ]
        ray.get(told)


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _meeting_place() -> tuple[str, int]:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return get_node_ip_address(), probe.getsockname()[1]


def _tell(variables: dict[str, str]) -> None:
    os.environ.update(variables)
