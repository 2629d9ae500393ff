"""Speed of the simulator: events a second without vectors, and gradients computed together against one by one.

    python benchmarks/simulator.py                # both tables
    python benchmarks/simulator.py --learners 64  # the first with fewer learners

An event is an effect answered, or a tick of the clock that applies one. Seconds are of this process's processor time,
so that other work on the host matters little; the best of three.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch
from roundelay.learner.base import Learner
from roundelay.learner.module import ModuleLearner
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.sim.cost import CostModel
from roundelay.simulation.timing import time_strategy
from roundelay.strategies import make_strategy

NAMES = """
ssgd bsp bmuf,period=20 asgd,period=5 easgd,period=4 dpsgd adpsgd:fixed-ring adpsgd:random-ring
adpsgd:exponential delay-by-one hadpsgd,node_size=8
"""
STRATEGIES = NAMES.split()
FRAMES = 32


def best(work: Callable[[], object], times: int = 3) -> float:
    """Processor seconds of the fastest of some calls."""
    found = []
    for _ in range(times):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return min(found)


def events(learners: int, rounds: int) -> None:
    cluster = CostModel(jitter=0.2, exchange=1e-4).virtual(learners)
    print(f"{learners} learners, {rounds} minibatches each, no vectors, one thread")
    print(f"{'strategy':24}{'events':>12}{'seconds':>10}{'events/s':>12}")
    for text in STRATEGIES:
        strategy = make_strategy(text)
        count = 0

        def run() -> None:
            nonlocal count
            count = time_strategy(strategy, cluster, FRAMES, rounds, model_bytes=1e6).events  # noqa: B023 called at once

        seconds = best(run)
        print(f"{strategy.label:24}{count:12,}{seconds:10.2f}{count / seconds:12,.0f}")


class Points:
    """Random points in 40 dimensions and 30 classes."""

    def __init__(self, examples: int) -> None:
        drawn = np.random.default_rng(0)
        self.points = torch.from_numpy(drawn.standard_normal((examples, 40), dtype=np.float32))
        self.classes = torch.from_numpy(drawn.integers(0, 30, examples))

    def count(self, split: str) -> int:
        return len(self.classes)

    def batch(self, split: str, numbers: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> tuple[tuple[Tensor], Tensor]:
        chosen = torch.from_numpy(numbers)
        return (self.points[chosen],), self.classes[chosen]

    def in_order(self, split: str, size: int) -> Iterator[tuple[tuple[Tensor], Tensor]]:
        yield (self.points,), self.classes


def network(width: int, layers: int, examples: int) -> ModuleLearner:
    sizes = [40, *[width] * layers]
    hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return ModuleLearner(nn.Sequential(*hidden, nn.Linear(width, 30)), Points(examples))


def together() -> None:
    print(
        f"\n{'gradients of':34}{'parameters':>11}{'learners':>10}{'one by one':>13}{'together':>11}   microseconds each"
    )
    quadratics = [("noisy quadratic", Quadratic(parameters=size).build()) for size in (100, 1000, 10_000)]
    for learners in (8, 64):
        networks = [
            (f"{layers} layers of {width}, {FRAMES} frames", network(width, layers, FRAMES * learners))
            for width, layers in ((16, 1), (64, 2), (96, 3), (256, 3), (512, 3))
        ]
        for name, learner in [*quadratics, *networks]:
            one, many = _seconds(learner, learners)
            print(f"{name:34}{learner.parameters:11,}{learners:10}{1e6 * one:13.0f}{1e6 * many:11.0f}")


def _seconds(learner: Learner, learners: int) -> tuple[float, float]:
    """Of one gradient: one by one, and together."""
    plan = EpochPlan(0, FRAMES * learners, FRAMES * learners, learners, 0)
    batches: list[Minibatch] = [plan.piece(index) for index in range(learners)]
    points = learner.initial() + 0.1 * torch.randn(learners, learner.parameters)
    out = torch.empty_like(points)

    def one_by_one() -> None:
        for x, batch, into in zip(points, batches, out, strict=True):
            learner.gradient(x, batch, plan, into)

    repeats = 5
    return (
        best(lambda: [one_by_one() for _ in range(repeats)]) / learners / repeats,
        best(lambda: [learner.gradients(points, batches, plan, out) for _ in range(repeats)]) / learners / repeats,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    events(options.learners, options.rounds)
    together()


if __name__ == "__main__":
    main()
