"""Networks and minibatches of benchmarks (talk.py, two_hosts.py, gpu.py, gpu_profile.py), each ready on its device."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from roundelay.learner.objectives import Inputs
from roundelay_speech.models.blstm import Blstm, BlstmConfig

RATE, MOMENTUM = 0.01, 0.9
FRAMES = 21
"""Number of frames of a subsequence."""
Batch = tuple[Inputs, Tensor]
"""A minibatch: inputs, and targets by example."""


@dataclass(frozen=True)
class Workload:
    """A network, and the minibatch that it trains on for ever: the benchmark is not about reading data.

    Attributes:
        network: makes the network, with the same parameters every time.
        batch: makes a random minibatch.
        examples: number of examples in the minibatch.
    """

    network: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    examples: int


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make()

    return made


def dnn(frames: int, inputs: int, width: int, layers: int, states: int) -> Workload:
    """Return a workload that trains a DNN, `layers` of ReLU over spliced features."""

    def network() -> nn.Module:
        parts: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU()]
        for _ in range(layers - 1):
            parts += [nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*parts, nn.Linear(width, states))

    def batch() -> Batch:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(frames, inputs, generator=generator)
        return (x,), torch.randint(0, states, (frames,), generator=generator)

    return Workload(_seeded(network), batch, frames)


def blstm(sequences: int, config: BlstmConfig, features: int, states: int) -> Workload:
    """Return a workload that trains a BLSTM on subsequences of 21 frames."""

    def batch() -> Batch:
        generator = torch.Generator().manual_seed(1)
        n = sequences
        inputs = (
            torch.randn(n, FRAMES, features, generator=generator),
            torch.zeros(n, features),
            torch.ones(n, features),
            torch.full((n,), FRAMES),
            torch.arange(n * FRAMES),
        )
        return inputs, torch.randint(0, states, (n * FRAMES,), generator=generator)

    return Workload(_seeded(lambda: Blstm(config, features, states)), batch, sequences * FRAMES)


TOY = BlstmConfig(layers=1, cells=16, dropout=0.0, chunk=FRAMES, context=0, deltas=0)
WORKLOADS: Mapping[str, Workload] = {
    "blstm": blstm(256, BlstmConfig.large(), 260, 32_000),
    "dnn": dnn(256, 1320, 1024, 6, 5723),
    "dnn-4096": dnn(4096, 1320, 1024, 6, 5723),
    "toy-blstm": blstm(8, TOY, 40, 50),
    "toy-dnn": dnn(16, 20, 32, 2, 10),
}
"""By name: 43 million parameters with 256 subsequences, 12.5 million with 256 frames, the same with as many as fill a
large GPU; and small ones that show whether a program runs."""


class Repeated:
    """Examples that are the same minibatch for ever, on the device."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        inputs, targets = workload.batch()
        self.inputs, self.targets = tuple(x.to(device) for x in inputs), targets.to(device)

    def count(self, split: str) -> int:
        return 10**9

    def batch(self, split: str, numbers: NDArray[np.int64]) -> Batch:
        return self.inputs, self.targets

    def in_order(self, split: str, size: int) -> Iterator[Batch]:
        yield self.inputs, self.targets


class TimedLearner(ModuleLearner):
    """A learner that writes the time at which each gradient begins into a file of this process's own."""

    notes: Path

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **how: Any) -> Statistics:
        with open(self.notes / str(os.getpid()), "a") as file:
            file.write(f"{time.monotonic()}\n")
        return super().gradient(x, batch, plan, out, **how)


@dataclass(frozen=True)
class Speed(Task):
    """The task of training a workload, given by name, in bfloat16 unless told otherwise."""

    name: str
    device: str
    notes: Path
    bf16: bool = True

    def build(self) -> Learner:
        device, workload = torch.device(self.device), WORKLOADS[self.name]
        learner = TimedLearner(workload.network(), Repeated(workload, device), autocast=self.bf16, device=device)
        learner.notes = self.notes
        return learner


def finish(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def described(device: torch.device) -> str:
    """Return a line on the device and the version of torch."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else "a processor: its figures say nothing"
    return f"{name}, torch {torch.__version__}"


def checked_device(name: str) -> torch.device:
    """Return the device of that name; end the program if this machine has none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here, so there is nothing to measure (--device cpu: does it run?).")
    return torch.device(name)
