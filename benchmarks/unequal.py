"""Learners of unequal speed in the simulator: virtual seconds to a loss, beside one learner alone.

    python benchmarks/unequal.py                                        # a noisy quadratic
    python benchmarks/unequal.py --task text --text FILE                # the next character of a text

Each line is a way to train with some learners, of which one takes so many times as long for a minibatch: with equal
weights, by progress (docs/strategies/gossip.md#adpsgd), or by progress under the default rate of `attach`, `fastest`
(docs/stability.md), each at its own best learning rate of a grid of factors 1.4. Prints
the rate, the seconds to the loss (mean and range over seeds; a fast learner takes 0.1 s a minibatch), and how many
times sooner that is than one fast learner alone; the same at the best rate of that one. A rate at the edge of the grid
is marked: the grid is too narrow.
"""

import argparse
import gzip
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from roundelay.algorithms.local_update import LocalOptimizer, Sgd
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.epochs import EpochPlan
from roundelay.core.rates import LearnersRate
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task
from roundelay.learner.module import ModuleLearner
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, SegmentPlan
from roundelay.runtime.sim.cluster import Compute, Handicap, Node, VirtualCluster
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import make_strategy

GRADIENT_SECONDS = 0.1
TEAMS: dict[str, tuple[float, ...]] = {
    "two equal": (1, 1),
    "two, one 3 times slower": (1, 3),
    "two, one 10 times slower": (1, 10),
    "two equal and one 3 times slower": (1, 1, 3),
    "two equal and one 10 times slower": (1, 1, 10),
    "16, one 10 times slower": (*(1,) * 15, 10),
}
"""Times that learners take for a minibatch, by what they are called."""


class Reached(Exception):
    """Raised where the loss is reached."""


class Watched(Learner):
    """A learner that has somebody look whenever a gradient is computed."""

    def __init__(self, inner: Learner) -> None:
        self._inner = inner
        self.look: Callable[[], None] = lambda: None
        self.parameters, self.examples, self.shapes = inner.parameters, inner.examples, inner.shapes

    def initial(self) -> Tensor:
        return self._inner.initial()

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **_: Any) -> Statistics:
        self.look()
        return self._inner.gradient(x, batch, plan, out)

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        return self._inner.evaluate(x, split)


@dataclass(frozen=True)
class WatchedTask(Task):
    learner: Watched

    def build(self) -> Learner:
        return self.learner


class Characters:
    """Eight characters of a text, and the next. The last twentieth is held out."""

    CONTEXT = 8

    def __init__(self, path: Path) -> None:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as file:
            known, coded = np.unique(np.frombuffer(file.read(2_000_000), np.uint8), return_inverse=True)
        self.characters, self._coded, self._edge = len(known), coded.astype(np.int64), len(coded) * 19 // 20
        self._judged = np.linspace(self._edge, len(coded) - self.CONTEXT - 1, 4096).astype(np.int64)

    def count(self, split: str) -> int:
        return 1 << 40 if split == "train" else len(self._judged)

    def batch(self, split: str, numbers: NDArray[np.int64]) -> tuple[tuple[Tensor], Tensor]:
        begins = numbers % (self._edge - self.CONTEXT) if split == "train" else self._judged[numbers]
        pieces = torch.from_numpy(self._coded[begins[:, None] + np.arange(self.CONTEXT + 1)])
        return (pieces[:, :-1],), pieces[:, -1]

    def in_order(self, split: str, size: int) -> Iterator[tuple[tuple[Tensor], Tensor]]:
        yield self.batch(split, np.arange(len(self._judged)))


class Hashed(ModuleLearner):
    """Draws examples by a hash of their numbers: no order of so many fits in memory."""

    def _drawn(self, batch: Minibatch, plan: EpochPlan) -> NDArray[np.int64]:
        return np.random.default_rng((plan.seed, batch.index)).integers(0, 1 << 40, batch.frames)


def character_network(characters: int) -> nn.Module:
    torch.manual_seed(0)
    width = 16 * Characters.CONTEXT
    layers = nn.Linear(width, 128), nn.Tanh(), nn.Linear(128, characters)
    return nn.Sequential(nn.Embedding(characters, 16), nn.Flatten(), *layers)


@dataclass(frozen=True)
class Problem:
    """A task and its optimizer: `rates` are tried, `loss` is to be reached within so many `steps` of a fast learner."""

    make: Callable[[int], Learner]
    optimizer: LocalOptimizer
    frames: int
    loss: float
    rates: Sequence[float]
    steps: int
    looked_at: int = 4


def problem(options: argparse.Namespace) -> Problem:
    """Return the problem that was asked for."""
    if options.task == "quadratic":

        def make(seed: int) -> Learner:
            return Quadratic(parameters=100, curvature=(0.05, 1.0), noise=options.noise, seed=seed).build()

        return Problem(make, Sgd(), 1, options.loss or 0.12, [0.0125 * 2 ** (n / 2) for n in range(16)], 2000)
    examples = Characters(options.text)
    learner = Hashed(character_network(examples.characters), examples)
    rates = [1e-3 * 2 ** (n / 2) for n in range(12)]
    return Problem(lambda _: learner, TorchOptimizer("adamw"), 32, options.loss or 1.9, rates, 6000, 50)


@dataclass(frozen=True)
class Way:
    """A way to train: `factors` are the times that learners take for a minibatch."""

    name: str
    factors: Sequence[float]
    strategy: str
    weights: str = ""
    factor: LearnersRate = "as-is"


WAYS: tuple[tuple[str, str, LearnersRate], ...] = (
    ("equal", "adpsgd,weights=equal", "as-is"),
    ("progress", "adpsgd,weights=progress", "as-is"),
    ("fastest", "adpsgd", "fastest"),
)
"""Weights in words, strategy, and factor on the learning rate."""


def seconds_to_loss(of: Problem, way: Way, rate: float, exchange: float, seed: int, patience: float) -> float:
    """Virtual seconds until the model has the loss; infinity: it has not before `patience` is over."""
    factors = way.factors
    learner = Watched(of.make(seed))
    slow = tuple(Handicap(rank, factor) for rank, factor in enumerate(factors) if factor > 1)
    nodes, compute = (Node(1, len(factors)),), Compute(seconds=GRADIENT_SECONDS, sigma=0.1)
    cost = CostModel(cluster=VirtualCluster("unequal", nodes, compute, exchange=exchange, stragglers=slow))
    known = make_strategy(way.strategy), WatchedTask(learner), of.optimizer, len(factors), seed
    made = Cluster(*known, shared_minibatch=False, rate=way.factor)
    pieces = math.ceil(of.steps * sum(1 / factor for factor in factors) / len(factors)) * len(factors)
    with SimRuntime(made, cost) as runtime:
        every, following = of.looked_at * GRADIENT_SECONDS, 0.0

        def look() -> None:
            nonlocal following
            if runtime.now >= following:
                following = runtime.now + every
                loss = learner.evaluate(runtime.consensus(), "dev").mean_loss
                if loss <= of.loss:
                    raise Reached
                if not math.isfinite(loss) or runtime.now > patience:
                    raise TimeoutError

        learner.look = look
        plan = EpochPlan(0, pieces * of.frames, of.frames * len(factors), len(factors), seed)
        try:
            runtime.segment(SegmentPlan(plan, rate))
        except Reached:
            return runtime.now
        except TimeoutError:
            pass
    return math.inf


def best(of: Problem, way: Way, rates: Sequence[float], exchange: float, seeds: int) -> dict[float, list[float]]:
    """Return seconds by seed, of rates up to one that is far beyond the best."""
    found: dict[float, list[float]] = {}
    least = math.inf
    for rate in rates:
        found[rate] = []
        for seed in range(1, seeds + 1):
            found[rate].append(seconds_to_loss(of, way, rate, exchange, seed, 3 * least))
        least = min(least, float(np.mean(found[rate])))
        if least < np.mean(found[rate]) / 1.5:
            break
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("quadratic", "text"), default="quadratic")
    parser.add_argument("--text", type=Path, help="a text, compressed by gzip or not")
    parser.add_argument("--noise", type=float, default=0.3, help="of the quadratic's gradients (default: 0.3)")
    parser.add_argument("--loss", type=float, help="to be reached (default: 0.12; of the text 1.9 nats a character)")
    parser.add_argument("--teams", nargs="+", default=list(TEAMS), metavar="NAME", help="some of those of the table")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=[name for name, *_ in WAYS], metavar="WEIGHTS")
    parser.add_argument("--rate", type=float, help="the only learning rate that is tried (default: a grid)")
    parser.add_argument("--exchange", type=float, default=0.02, help="seconds of an exchange (default: 0.02)")
    options = parser.parse_args()
    if options.task == "text" and options.text is None:
        parser.error("--task text: give --text FILE.")
    of, reference, own = problem(options), math.nan, math.nan
    rates = of.rates if options.rate is None else [options.rate]
    print("| learners | weights | best rate | seconds to the loss | times sooner | at the rate of one alone |")
    print("|---|---|---|---|---|---|")
    lines = [Way("one alone", (1,), "sgd")]
    lines += [
        Way(name, TEAMS[name], how[1], *how[::2]) for name in options.teams for how in WAYS if how[0] in options.ways
    ]
    for way in lines:
        found = best(of, way, rates, options.exchange, options.seeds)
        rate = min(found, key=lambda one: float(np.mean(found[one])))
        mean = float(np.mean(found[rate]))
        if way.strategy == "sgd":
            reference, own = mean, rate
        at = f"{rate:.3g}" + " (edge)" * (len(rates) > 1 and rate in (rates[0], rates[-1]))
        spread = f"{mean:.1f} ({min(found[rate]):.1f}-{max(found[rate]):.1f})"
        there = reference / float(np.mean(found[own])) if own in found else math.nan
        print(f"| {way.name} | {way.weights} | {at} | {spread} | {reference / mean:.2f} | {there:.2f} |", flush=True)


if __name__ == "__main__":
    main()
