"""Workers of a Ray cluster that train one model, each a learner with `roundelay.attach`.

    pip install ray
    python examples/ray_trainer.py --workers 2 --strategy adpsgd

Ray says where workers run; they meet by an address and a port of the first one's node, and Ray carries nothing of the
training. Every worker counts as a host with one learner, so it does not matter which of them share a node. Under an
asynchronous strategy the others go on without one that is lost, unless it is the first; with `--restarts` Ray starts it
again, and it comes back to them. (`examples/launch/ray_hosts.py` starts a script, or `roundelay train`, as it is.)
"""

import argparse
import os
import secrets
import signal
import socket
import time  # noqa: TID251  of this script

import ray
import torch
from classifier import digits, evaluate, network  # the module and data of the plain example
from ray.exceptions import RayActorError
from ray.util import get_node_ip_address
from torch import nn
from torch.utils.data import DataLoader

import roundelay


def wait_for(session: roundelay.Session, learners: int) -> None:
    """Until so many live; at most a minute. Asking who lives lets others in."""
    deadline = time.monotonic() + 60
    while len(session.living) < learners and time.monotonic() < deadline:
        time.sleep(0.1)


@ray.remote(num_cpus=1)
class Worker:
    """One learner."""

    def meeting_place(self) -> dict[str, str]:
        """A place for all to meet, if this is the first."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return {"MASTER_ADDR": get_node_ip_address(), "MASTER_PORT": str(probe.getsockname()[1])}

    def train(
        self, options: argparse.Namespace, doomed: bool, variables: dict[str, str]
    ) -> tuple[bool, int, list[float]]:
        """Has this learner come back to the others? Its steps, and the loss of the model that all have in common after
        each epoch.

        Args:
            doomed: this worker is killed in the second epoch.
            variables: those of torchrun, for a host with one learner.
        """
        os.environ.update(variables)
        train, test = digits(2000, seed=1), DataLoader(digits(1000, seed=2), batch_size=500)
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        losses: list[float] = []
        with roundelay.attach(model, optimizer, options.strategy) as session:
            sampler = session.sampler(train, batch_size=32)
            batches = DataLoader(train, batch_sampler=sampler)
            for epoch in range(sampler.epoch, options.epochs):  # who comes back begins where the others are
                for number, (images, labels) in enumerate(batches):
                    if doomed and not session.came_back and epoch == 1 and number == 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(images), labels)
                    loss.backward()
                    optimizer.step()
                    if options.restarts and epoch == options.epochs - 1 and number == 0:
                        wait_for(session, options.workers)  # else so short a training has ended before
                with session.consensus():
                    losses.append(evaluate(model, test, torch.device("cpu"))[0])
            return session.came_back, session.steps, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--strategy", default="adpsgd")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kill", type=int, help="have this worker killed, not the first, to see the others go on")
    parser.add_argument("--restarts", type=int, default=0, help="how often Ray starts a lost worker again (default: 0)")
    options = parser.parse_args()
    ray.init(address=os.environ.get("RAY_ADDRESS"), logging_level="WARNING")
    again = {"max_restarts": options.restarts, "max_task_retries": options.restarts}
    workers = [Worker.options(**again).remote() for _ in range(options.workers)]
    shared = {
        **ray.get(workers[0].meeting_place.remote()),
        "WORLD_SIZE": str(options.workers),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "ROUNDELAY_SECRET": secrets.token_urlsafe(32),
    }
    running = {
        worker.train.remote(options, rank == options.kill, {**shared, "RANK": str(rank)}): rank
        for rank, worker in enumerate(workers)
    }
    while running:
        (ended,), _ = ray.wait(list(running))
        rank = running.pop(ended)
        try:
            came_back, steps, losses = ray.get(ended)
        except RayActorError:
            print(f"worker {rank} is lost", flush=True)
        else:
            print(f"worker {rank} has come back" if came_back else f"worker {rank} was never lost", flush=True)
            print(f"worker {rank} took {steps} steps; losses {' '.join(f'{loss:.4f}' for loss in losses)}", flush=True)


if __name__ == "__main__":
    main()
