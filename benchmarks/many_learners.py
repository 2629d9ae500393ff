"""Ten thousand learners in the simulator, with real gradients of a small network, stragglers and deaths.

    nice -n 19 python benchmarks/many_learners.py                       # 10,000 learners, 200 steps each, in turn
    python benchmarks/many_learners.py --learners 1000 --strategy adpsgd

A learner in a hundred is three times as slow as the others. Under an asynchronous strategy one in a hundred dies, at
times spread over the run, and the others go on. A synchronous one is stopped by a death, and goes on without the dead
from the last end of a segment, as `after_death: shrink` does; two learners die.

Prints, of each strategy, processor and wall seconds, the largest memory of the process, virtual seconds, minibatches
trained (repeated ones included) and accuracy on held-out points before and after.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from roundelay.runtime.base import Cluster, LearnerDied, SegmentPlan
from roundelay.runtime.resize import resized
from roundelay.runtime.sim.cluster import Compute, Handicap, Moment, Node, VirtualCluster, VirtualLink, VirtualLinks
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import make_strategy

STRATEGIES = ("adpsgd", "dpsgd", "diloco,period=50")
FRAMES, STEPS, SEGMENT = 8, 200, 50
"""Examples of a learner's minibatch, minibatches of each learner, and those of a segment."""
POINTS, DIMENSIONS, CLASSES, WIDTH = 50_000, 40, 30, 16
GRADIENT_SECONDS, RATE = 0.1, 0.5


class Clouds:
    """Points around centres, seen again and again under many numbers."""

    def __init__(self, examples: int) -> None:
        drawn = np.random.default_rng(0)
        self._examples = examples
        centres = drawn.standard_normal((CLASSES, DIMENSIONS), dtype=np.float32)
        classes = drawn.integers(0, CLASSES, POINTS)
        points = 0.6 * centres[classes] + drawn.standard_normal((POINTS, DIMENSIONS), dtype=np.float32)
        self._points, self._classes = torch.from_numpy(points), torch.from_numpy(classes)

    def count(self, split: str) -> int:
        return self._examples if split == "train" else 2_000

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[tuple[Tensor], Tensor]:
        chosen = torch.from_numpy(2_000 + numbers % (POINTS - 2_000))
        return (self._points[chosen],), self._classes[chosen]

    def in_order(self, split: str, size: int) -> Iterator[tuple[tuple[Tensor], Tensor]]:
        yield (self._points[:2_000],), self._classes[:2_000]


@dataclass(frozen=True)
class SmallNetwork(Task):
    """1,166 parameters."""

    examples: int

    def build(self) -> Learner:
        torch.manual_seed(0)
        layers = nn.Linear(DIMENSIONS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
        return ModuleLearner(nn.Sequential(*layers), Clouds(self.examples))


def virtual_cluster(learners: int, synchronous: bool) -> VirtualCluster:
    """A machine each, 1 Gbit/s between them; some slow, some dying."""
    dying = [learners // 3, 2 * learners // 3] if synchronous else range(7, learners, 100)
    last = GRADIENT_SECONDS * STEPS
    return VirtualCluster(
        name="many",
        nodes=(Node(1, learners),),
        compute=Compute(seconds=GRADIENT_SECONDS, sigma=0.1),
        links=VirtualLinks(between=VirtualLink(latency=1e-3, bandwidth=1.25e8)),
        stragglers=tuple(Handicap(rank, 3.0) for rank in range(0, learners, 100)),
        deaths=tuple(Moment(rank, last * (n + 0.5) / len(dying)) for n, rank in enumerate(dying)),
    )


def measure(text: str, learners: int) -> str:
    """One row of the table."""
    strategy = make_strategy(text)
    virtual = virtual_cluster(learners, strategy.traits.synchronous)
    wall, busy = time.perf_counter(), time.process_time()
    segment, state, trained, clock, before = 0, None, 0, 0.0, 0.0
    while segment < STEPS:
        task = SmallNetwork(learners * STEPS * FRAMES)
        cluster = Cluster(strategy, task, Sgd(), learners, shared_minibatch=False)
        plan = EpochPlan(0, task.examples, learners * FRAMES, learners, 0)
        with SimRuntime(cluster, CostModel(cluster=virtual, together=True)) as runtime:
            if state is not None:
                runtime.load(resized(state, cluster.strategy.holders(tuple(range(learners))), learners))
            scored = task.build()
            before = before or scored.evaluate(runtime.consensus(), "held out").accuracy
            try:
                while segment < STEPS:
                    end = segment + SEGMENT
                    outcome = runtime.segment(SegmentPlan(plan, RATE, segment * learners, end))
                    trained, segment = trained + int(outcome.counts.steps.sum()), end
                    clock += outcome.virtual_seconds or 0.0
                    state = runtime.state()
            except LearnerDied:
                clock = runtime.now
                if state is not None:
                    state = replace(state, virtual_ns=round(clock * 1e9))
                learners -= 1
                virtual = without_one(virtual, learners, clock)
                continue
            after = scored.evaluate(runtime.consensus(), "held out").accuracy
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = f"{time.process_time() - busy:10.0f}{time.perf_counter() - wall:10.0f}"
    return (
        f"{text:18}{learners:10,}{seconds}{memory:8.2f}{clock:10.1f}{trained:12,}{100 * before:9.1f}{100 * after:9.1f}"
    )


def without_one(virtual: VirtualCluster, learners: int, now: float) -> VirtualCluster:
    """The cluster with one learner less, and without the deaths that have been."""
    left = tuple(replace(moment, rank=moment.rank - 1) for moment in virtual.deaths if moment.at > now)
    return replace(virtual, nodes=(Node(1, learners),), deaths=left).first(learners)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=10_000)
    parser.add_argument("--strategy", nargs="+", default=STRATEGIES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if len(options.strategy) == 1:
        print(measure(options.strategy[0], options.learners), flush=True)
        return
    print(f"{STEPS} minibatches of {FRAMES} a learner, one thread")
    print(
        f"{'strategy':18}{'learners':>10}{'cpu s':>10}{'wall s':>10}{'GiB':>8}{'virtual s':>10}{'minibatches':>12}"
        f"{'% before':>9}{'% after':>9}",
        flush=True,
    )
    for text in options.strategy:  # each in a process of its own, whose memory is then its own
        subprocess.run([sys.executable, __file__, "--learners", str(options.learners), "--strategy", text], check=True)


if __name__ == "__main__":
    main()
