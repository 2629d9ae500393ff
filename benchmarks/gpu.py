"""Cost of training through Roundelay on a GPU, against the bare loop; all measured in this one run.

    python benchmarks/gpu.py [--rounds 3] [--steps 40] [--learners 2 4]
    python benchmarks/gpu.py --device cpu --small --steps 3        # the same program where there is no GPU: no figures

The deep bidirectional LSTM (6 layers of 512 cells a direction, bottleneck 256, softmax over 32,000 tied states; 43
million parameters), 256 subsequences of 21 frames a learner and step, bfloat16 autocast, momentum 0.9. Printed are

    sgd           steps a second through Roundelay over those of forward, backward and step of the same module alone
    attach        the same of the bare loop with `session.step()` in the place of `optimizer.step()`, for one learner
    adpsgd        steps a second of N learners that share the GPU, over N such learners that never talk
    pair average  bandwidth of averaging two rows in device memory, over that of copying one to the other

Modes take turns round by round; medians and ranges of the rounds' ratios.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from talk import NeverTalk
from torch import Tensor, nn

from roundelay import attach
from roundelay.algorithms.averaging import pair_average_
from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.flat import slices
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from roundelay.learner.objectives import Inputs
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.procs.driver import ProcsRuntime
from roundelay.speech.models.blstm import Blstm, BlstmConfig
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy

FRAMES, WARM_UP, RATE, MOMENTUM = 21, 3, 0.01, 0.9


@dataclass(frozen=True)
class Size:
    """Of network and minibatch."""

    config: BlstmConfig
    features: int
    states: int
    sequences: int

    @property
    def minibatch(self) -> int:
        """Frames."""
        return self.sequences * FRAMES

    def network(self) -> Blstm:
        """The same parameters every time."""
        torch.manual_seed(0)
        return Blstm(self.config, self.features, self.states)


LARGE = Size(BlstmConfig.large(), 260, 32_000, 256)
SMALL = Size(BlstmConfig(layers=1, cells=16, dropout=0.0, chunk=21, context=0, deltas=0), 40, 50, 8)


class RandomSequences:
    """The same random minibatch for ever, where it is to be computed: the benchmark is not about reading data."""

    def __init__(self, size: Size, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(1)
        n, f = size.sequences, size.features
        inputs = (
            torch.randn(n, FRAMES, f, generator=generator),
            torch.zeros(n, f),
            torch.ones(n, f),
            torch.full((n,), FRAMES),
            torch.arange(n * FRAMES),
        )
        self._inputs = tuple(x.to(device) for x in inputs)
        self._y = torch.randint(0, size.states, (n * FRAMES,), generator=generator).to(device)

    def count(self, split: str) -> int:
        return 10**9

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[Inputs, Tensor]:
        return self._inputs, self._y

    def in_order(self, split: str, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        yield self._inputs, self._y


class Noting(ModuleLearner):
    """Notes when each gradient begins, in a file of this process's own."""

    notes: Path

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **how: Any) -> Statistics:
        with open(self.notes / str(os.getpid()), "a") as file:
            file.write(f"{time.monotonic()}\n")
        return super().gradient(x, batch, plan, out, **how)


@dataclass(frozen=True)
class Speed(Task):
    """The network on random sequences."""

    size: Size
    device: str
    notes: Path

    def build(self) -> Learner:
        device = torch.device(self.device)
        learner = Noting(self.size.network(), RandomSequences(self.size, device), autocast=True, device=device)
        learner.notes = self.notes
        return learner


def roundelay(strategy: Strategy, learners: int, size: Size, device: str, steps: int) -> float:
    """Steps a second, summed over learners."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder)
        cluster = Cluster(strategy, Speed(size, device, notes), Sgd(momentum=MOMENTUM), learners)
        frames = size.minibatch * learners
        plan = EpochPlan(0, frames * (WARM_UP + steps), frames, learners, 0)
        with ProcsRuntime(cluster) as runtime:
            runtime.segment(SegmentPlan(plan, RATE))
            processes = runtime.process_ids()
        begun = [np.loadtxt(notes / str(process), ndmin=1)[WARM_UP:] for process in processes]
    return sum((len(times) - 1) / float(times[-1] - times[0]) for times in begun if len(times) > 1)


def bare(size: Size, device: str, steps: int, attached: bool = False) -> float:
    """Steps a second of a plain loop: forward, backward, step."""
    where = torch.device(device)
    network = size.network().to(where)
    fused = where.type == "cuda"
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, fused=fused)
    examples = RandomSequences(size, where)
    inputs, targets = examples.batch("train", np.arange(1))
    session = attach(network, optimizer, "adpsgd") if attached else None
    step_ = optimizer.step if session is None else session.step
    started = 0.0
    for step in range(-WARM_UP, steps):
        if step == 0:
            _finish(where)
            started = time.monotonic()
        optimizer.zero_grad()
        with torch.autocast(where.type, torch.bfloat16):
            scores = network(*inputs)
        nn.functional.cross_entropy(scores.float(), targets).backward()  # type: ignore[no-untyped-call]
        step_()
    _finish(where)
    seconds = time.monotonic() - started
    if session is not None:
        session.close()
    return steps / seconds


def pair_average(size: Size, device: str, rounds: int) -> float:
    """Bandwidth of averaging two rows over that of copying one: two read and two written against one and one."""
    where = torch.device(device)
    parameters = sum(p.numel() for p in size.network().parameters())
    mine, theirs = torch.randn(parameters, device=where), torch.randn(parameters, device=where)

    def average() -> None:
        for x, y in zip(slices(mine), slices(theirs), strict=True):
            pair_average_(x, y)

    ratios = [2 * _seconds(lambda: mine.copy_(theirs), where) / _seconds(average, where) for _ in range(rounds)]
    return statistics.median(ratios)


def _seconds(work: Callable[[], object], where: torch.device, repeats: int = 20) -> float:
    for _ in range(3):
        work()
    _finish(where)
    started = time.monotonic()
    for _ in range(repeats):
        work()
    _finish(where)
    return (time.monotonic() - started) / repeats


def _finish(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize(where)


def _told(name: str, ratios: list[float], asked: float) -> str:
    return f"{name:<34}{statistics.median(ratios):7.3f}  ({min(ratios):.3f} to {max(ratios):.3f})   asked: {asked}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--learners", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a toy network: whether the program runs, nothing else")
    options = parser.parse_args()
    size, device = SMALL if options.small else LARGE, options.device
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here, so there is nothing to measure.")
    name = torch.cuda.get_device_name() if device == "cuda" else "processor"
    print(f"{name}, torch {torch.__version__}, {options.rounds} rounds of {options.steps} steps")
    alone, attached = list[float](), list[float]()
    talking: dict[int, list[float]] = {learners: [] for learners in options.learners}
    for _ in range(options.rounds):
        plain = bare(size, device, options.steps)
        alone.append(roundelay(make_strategy("sgd"), 1, size, device, options.steps) / plain)
        attached.append(bare(size, device, options.steps, attached=True) / plain)
        for learners, ratios in talking.items():
            silent = roundelay(NeverTalk(), learners, size, device, options.steps)
            ratios.append(roundelay(make_strategy("adpsgd"), learners, size, device, options.steps) / silent)
    print(_told("sgd / bare loop", alone, 0.95))
    print(_told("attach, 1 learner / bare loop", attached, 0.95))
    for learners, ratios in talking.items():
        print(_told(f"adpsgd / never talking, {learners} learners", ratios, 0.95))
    print(f"{'pair average / copy bandwidth':<34}{pair_average(size, device, options.rounds):7.3f}   asked: 0.6")


if __name__ == "__main__":
    main()
