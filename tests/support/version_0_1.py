"""Runs that version 0.1 recorded, kept in tests/data/version_0_1."""

import dataclasses
import hashlib
from pathlib import Path

import torch
from torch import nn

from roundelay.algorithms.local_update import Sgd
from roundelay.core.streams import stream
from roundelay.job import Job
from roundelay.runtime.base import Cluster, Runtime
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.schedule import Newbob
from support.exact import Exact
from support.runs import job

FOLDER = Path(__file__).parents[1] / "data" / "version_0_1"


def exact_job(trace: Path) -> Job:
    """The training in the folder `exact`, recorded in `trace`: two epochs of two learners and a centre."""
    made = job(
        "easgd period=2 beta=0.5",
        Exact(),
        runtime="procs",
        learners=2,
        schedule=Newbob(0.125, stop_below=None, max_epochs=2),
        optimizer=Sgd(0.5),
    )

    def make_runtime(cluster: Cluster) -> Runtime:
        return ProcsRuntime(cluster, threads=1, trace=trace)

    return dataclasses.replace(made, make_runtime=make_runtime)


def arithmetic() -> str:
    """A digest of a small network's gradients, by torch alone: it differs where a processor, or another torch, rounds
    its sums otherwise than the machine that recorded the run in the folder `speech`."""
    rng = stream(0, "arithmetic")
    network = nn.Sequential(nn.Linear(72, 8), nn.ReLU(), nn.Linear(8, 27))
    found = hashlib.blake2b(digest_size=16)
    with torch.no_grad():
        for value in network.parameters():
            value.copy_(torch.from_numpy(rng.normal(size=tuple(value.shape)) * 0.3))
    for frames in (1, 7, 32, 200):
        x = torch.from_numpy(rng.normal(size=(frames, 72)).astype("float32"))
        loss = nn.functional.cross_entropy(network(x), torch.from_numpy(rng.integers(0, 27, frames)), reduction="sum")
        for gradient in torch.autograd.grad(loss, list(network.parameters())):
            found.update(gradient.numpy().tobytes())
        found.update(loss.detach().numpy().tobytes())
    return found.hexdigest()
