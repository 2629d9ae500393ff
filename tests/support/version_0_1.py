"""Runs that version 0.1 recorded, kept in tests/data/version_0_1.

Of one of them every number is the same on every machine, to the last bit:

    gradient of minibatch i = (x - c) / 2 + ((i mod 4) - 3/2) / 8 ,   c_p = p - 2 ,   x = 0 at first

Products are by powers of two (give a learning rate, a momentum and a moving rate that are such), so they are exact, and
a processor that adds to a product at once rounds as one that rounds twice. Sums are of two numbers; those of a loss are
taken one after the other. P parameters.
"""

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.core.streams import stream
from roundelay.job import Job
from roundelay.learner.base import Learner, OnReady, Task
from roundelay.runtime.base import Cluster, Runtime
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.schedule import Newbob
from support.runs import job

FOLDER = Path(__file__).parents[1] / "data" / "version_0_1"


def exact_job(trace: Path) -> Job:
    """Return the training of the folder `exact`, to be recorded in `trace`: two epochs of two learners and a centre."""
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
    """Return a digest of a small network's gradients, by torch alone: it differs where a processor, or another torch,
    rounds its sums otherwise than the machine that recorded the run in the folder `speech`."""
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


PARAMETERS, EXAMPLES = 5, 1280


class ExactLearner(Learner):
    """A learner whose gradient is that of the module's equation."""

    parameters, examples = PARAMETERS, EXAMPLES

    def __init__(self) -> None:
        self._c = torch.arange(PARAMETERS, dtype=torch.float32) - 2.0

    def initial(self) -> Tensor:
        return torch.zeros(PARAMETERS)

    def gradient(
        self,
        x: Tensor,
        batch: Minibatch,
        plan: EpochPlan,
        out: Tensor,
        *,
        resident: bool = False,
        on_ready: OnReady | None = None,
    ) -> Statistics:
        out.copy_((x - self._c) * 0.5 + (batch.index % 4 - 1.5) / 8)
        return Statistics(batch.frames, self._loss(x) * batch.frames)

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        return Statistics(1, self._loss(x))

    def _loss(self, x: Tensor) -> float:
        away: list[float] = (x - self._c).tolist()
        return sum(0.25 * value * value for value in away)


@dataclass(frozen=True)
class Exact(Task):
    """The task of learners with the gradients of the module's equation."""

    def build(self) -> Learner:
        return ExactLearner()
