"""Learners of unequal speed in the simulator: virtual seconds to a loss, beside one learner alone.

    python benchmarks/unequal.py                                        # a noisy quadratic
    python benchmarks/unequal.py --task text --text FILE                # the next character of a text
    python benchmarks/unequal.py --task characters --text FILE --loss 2.12 --rates 5.7e-3      # by a transformer
    python benchmarks/unequal.py --falling 50 --rates 0.1 0.14 0.2               # rates that fall to 0

Each line is a way to train with some learners, of which one takes so many times as long for a minibatch: with equal
weights, by progress (docs/strategies/gossip.md#adpsgd), or by progress under the rates `fastest` and `gain`, the
default of `attach` (docs/stability.md), each at its own best learning rate of a grid of factors 1.4. Prints
the rate, the seconds to the loss (mean and range over seeds; a fast learner takes 0.1 s a minibatch), and how many
times sooner that is than one fast learner alone; the same at the best rate of that one. A rate at the edge of the grid
is marked: the grid is too narrow.

With `--falling SECONDS` rates fall in a straight line to 0. One learner trains for so long, and the loss to reach is
its last, in the mean over seeds; others train for shorter and shorter times, and printed is the time after which they
end there (a straight line between two that were tried).
"""

import argparse
import gzip
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_hosts_tasks import TextTask

from roundelay.algorithms.local_update import LocalOptimizer, Sgd
from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.epochs import EpochPlan
from roundelay.core.flat import bind, flatten, parameter_count
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
    "four equal": (1,) * 4,
}
"""Times that learners take for a minibatch, by name."""


ROWS, WIDTH, LAYERS, CONTEXT = 8, 48, 2, 48
"""Of the transformer of `--task characters`: sequences of a minibatch, width, layers, characters."""
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Of the time of one alone, that a team is given where rates fall."""


class Reached(Exception):
    """Raised to end a simulation when the loss is reached."""


class Watched(Learner):
    """A learner that calls a function whenever a gradient is computed."""

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
    """Examples of eight characters of a text and the next one. The last twentieth is held out."""

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
    """A learner that draws examples by a hash of their numbers, since an order of them all does not fit in memory."""

    def _drawn(self, batch: Minibatch, plan: EpochPlan) -> NDArray[np.int64]:
        return np.random.default_rng((plan.seed, batch.index)).integers(0, 1 << 40, batch.frames)


@cache
def text_task(path: Path) -> TextTask:
    """Return the task of the character model on the text in the file `path`."""
    return TextTask(path, WIDTH, LAYERS, CONTEXT, ROWS, judged=256)


@dataclass(frozen=True)
class Sequences(Task):
    """The task of the character model on minibatches that are drawn by seed and number."""

    path: Path
    seed: int
    examples: int

    def build(self) -> Learner:
        return CharacterLearner(self)


class CharacterLearner(Learner):
    """A learner of the character model, whose weights are drawn by the seed."""

    def __init__(self, task: Sequences) -> None:
        self._text, self._seed, self.examples = text_task(task.path), task.seed, task.examples
        self._network = self._text.network()
        torch.manual_seed(task.seed)
        for part in self._network.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                part.reset_parameters()
        self.parameters = parameter_count(self._network)
        self._initial = flatten(self._network)

    def initial(self) -> Tensor:
        return self._initial.clone()

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **_: object) -> Statistics:
        bind(self._network, x)
        (rows,), targets = self._text.minibatch(np.random.default_rng([self._seed, batch.index]))
        loss = cross_entropy(self._network(rows).flatten(0, -2), targets.flatten())
        found = torch.autograd.grad(loss, list(self._network.parameters()))
        torch.cat([one.reshape(-1) for one in found], out=out)
        return Statistics(batch.frames, float(loss.detach()) * batch.frames)

    def evaluate(self, x: Tensor, split: str) -> Statistics:
        bind(self._network, x)
        return Statistics(1, self._text.judge(self._network))


def character_network(characters: int) -> nn.Module:
    torch.manual_seed(0)
    width = 16 * Characters.CONTEXT
    layers = nn.Linear(width, 128), nn.Tanh(), nn.Linear(128, characters)
    return nn.Sequential(nn.Embedding(characters, 16), nn.Flatten(), *layers)


@dataclass(frozen=True)
class Problem:
    """A task and its optimizer: `rates` are tried, `loss` is to be reached within `steps` steps of a fast learner."""

    make: Callable[[int], Learner]
    optimizer: LocalOptimizer
    frames: int
    loss: float
    rates: Sequence[float]
    steps: int
    looked_at: int = 4


def problem(options: argparse.Namespace) -> Problem:
    """Return the problem that the command line asks for."""
    rule: LocalOptimizer = Sgd(momentum=options.momentum) if options.momentum is not None else Sgd()
    if options.task == "quadratic":

        def make(seed: int) -> Learner:
            return Quadratic(parameters=100, curvature=(0.05, 1.0), noise=options.noise, seed=seed).build()

        return Problem(make, rule, 1, options.loss or 0.12, [0.0125 * 2 ** (n / 2) for n in range(16)], 2000)
    adam = TorchOptimizer("adamw") if options.momentum is None else rule
    rates = [1e-3 * 2 ** (n / 2) for n in range(12)]
    if options.task == "characters":

        def made(seed: int) -> Learner:
            return CharacterLearner(Sequences(options.text, seed, 1 << 30))

        return Problem(made, adam, ROWS, options.loss or 2.12, rates, 600, 25)
    examples = Characters(options.text)
    learner = Hashed(character_network(examples.characters), examples)
    return Problem(lambda _: learner, adam, 32, options.loss or 1.9, rates, 6000, 50)


@dataclass(frozen=True)
class Way:
    """A way to train: `factors` are the times that learners take for a minibatch, relative to a fast one's."""

    name: str
    factors: Sequence[float]
    strategy: str
    weights: str = ""
    factor: LearnersRate = "as-is"


WAYS: tuple[tuple[str, str, LearnersRate], ...] = (
    ("equal", "adpsgd,weights=equal", "as-is"),
    ("progress", "adpsgd,weights=progress", "as-is"),
    ("fastest", "adpsgd", "fastest"),
    ("gain", "adpsgd", "gain"),
)
"""Weights in words, strategy, and factor on the learning rate."""


@dataclass(frozen=True)
class Falling(SegmentPlan):
    """A segment of one epoch whose learning rate falls to 0."""

    def rate(self, round_: int) -> float:
        return self.learning_rate * (1 - round_ / self.epoch.rounds)


def simulation(of: Problem, way: Way, options: argparse.Namespace, seed: int, learner: Watched) -> SimRuntime:
    """Return a simulator of the learners of a way, at their costs."""
    factors, learners = way.factors, len(way.factors)
    slow = tuple(Handicap(rank, factor) for rank, factor in enumerate(factors) if factor > 1)
    compute = Compute(seconds=GRADIENT_SECONDS, sigma=0.1)
    cluster = VirtualCluster("unequal", (Node(1, learners),), compute, exchange=options.exchange, stragglers=slow)
    known = make_strategy(way.strategy), WatchedTask(learner), of.optimizer, learners, seed
    return SimRuntime(Cluster(*known, shared_minibatch=False, rate=way.factor), CostModel(cluster=cluster))


def plan_of(of: Problem, way: Way, seconds: float, seed: int) -> EpochPlan:
    """Return a plan of as many minibatches as the learners train in `seconds`."""
    learners, each = len(way.factors), sum(1 / factor for factor in way.factors) / len(way.factors)
    pieces = math.ceil(seconds / GRADIENT_SECONDS * each) * learners
    return EpochPlan(0, pieces * of.frames, of.frames * learners, learners, seed)


def seconds_to_loss(
    of: Problem, way: Way, rate: float, options: argparse.Namespace, seed: int, patience: float
) -> float:
    """Return the virtual seconds until the model has the loss; infinity if it has not within `patience` seconds."""
    learner = Watched(of.make(seed))
    with simulation(of, way, options, seed, learner) as runtime:
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
        try:
            runtime.segment(SegmentPlan(plan_of(of, way, of.steps * GRADIENT_SECONDS, seed), rate))
        except Reached:
            return runtime.now
        except TimeoutError:
            pass
    return math.inf


def loss_after(of: Problem, way: Way, rate: float, options: argparse.Namespace, share: float) -> tuple[float, float]:
    """Return the seconds of a training at a falling rate, and the loss that it ends with, in the mean over seeds.
    (Seconds in which only a slow learner is still at its last minibatch are not counted.)"""
    losses = []
    for seed in range(1, options.seeds + 1):
        learner = Watched(of.make(seed))
        with simulation(of, way, options, seed, learner) as runtime:
            runtime.segment(Falling(plan_of(of, way, options.falling * share, seed), rate))
            losses.append(learner.evaluate(runtime.consensus(), "dev").mean_loss)
    return options.falling * share, float(np.mean(losses))


def falling(of: Problem, options: argparse.Namespace, ways: Sequence[Way], rates: Sequence[float]) -> Iterator[str]:
    """Yield the lines of the table of trainings whose rates fall."""
    alone = {rate: loss_after(of, ways[0], rate, options, 1.0) for rate in rates}
    rate = min(alone, key=lambda one: alone[one][1])
    whole, wanted = alone[rate]
    at = f"{rate:.3g}" + " (edge)" * (len(rates) > 1 and rate in (rates[0], rates[-1]))
    yield f"| one alone | | {at} | {whole:.1f} | 1.00 | loss {wanted:.4f} |"
    for way in ways[1:]:
        found = []
        for share in SHARES:
            found.append(loss_after(of, way, rate, options, share))
            if found[-1][1] > wanted:
                break
        seconds = math.inf
        if len(found) > 1:
            (long, low), (short, high) = found[-2:]
            seconds = short + (long - short) * max(0.0, (high - wanted) / (high - low))
        yield f"| {way.name} | {way.weights} | {rate:.3g} | {seconds:.1f} | {whole / seconds:.2f} | {found[0][1]:.4f} |"


def best(of: Problem, way: Way, rates: Sequence[float], options: argparse.Namespace) -> dict[float, list[float]]:
    """Return the seconds to the loss by rate, for each seed, for rates up to one far beyond the best."""
    found: dict[float, list[float]] = {}
    least = math.inf
    for rate in rates:
        found[rate] = []
        for seed in range(1, options.seeds + 1):
            found[rate].append(seconds_to_loss(of, way, rate, options, seed, 3 * least))
        least = min(least, float(np.mean(found[rate])))
        if least < np.mean(found[rate]) / 1.5:
            break
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("quadratic", "text", "characters"), default="quadratic")
    parser.add_argument("--text", type=Path, help="a text, compressed by gzip or not")
    parser.add_argument("--noise", type=float, default=0.3, help="of the quadratic's gradients (default: 0.3)")
    parser.add_argument("--loss", type=float, help="to be reached (default: 0.12; of the text 1.9 nats a character)")
    parser.add_argument("--teams", nargs="+", default=list(TEAMS), metavar="NAME", help="some of those of the table")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=[name for name, *_ in WAYS], metavar="WEIGHTS")
    parser.add_argument("--rates", type=float, nargs="+", help="those that are tried (default: a grid)")
    parser.add_argument("--momentum", type=float, help="SGD with so much (default: plain SGD, and AdamW for texts)")
    parser.add_argument("--falling", type=float, metavar="SECONDS", help="of one alone, at rates that fall to 0")
    parser.add_argument("--exchange", type=float, default=0.02, help="seconds of an exchange (default: 0.02)")
    options = parser.parse_args()
    if options.task != "quadratic" and options.text is None:
        parser.error(f"--task {options.task}: give --text FILE.")
    torch.set_num_threads(1)
    of, reference, own = problem(options), math.nan, math.nan
    rates = of.rates if options.rates is None else options.rates
    print("| learners | weights | best rate | seconds to the loss | times sooner | at the rate of one alone |")
    print("|---|---|---|---|---|---|")
    lines = [Way("one alone", (1,), "sgd")]
    lines += [
        Way(name, TEAMS[name], how[1], *how[::2]) for name in options.teams for how in WAYS if how[0] in options.ways
    ]
    if options.falling is not None:
        for line in falling(of, options, lines, rates):
            print(line, flush=True)
        return
    for way in lines:
        found = best(of, way, rates, options)
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
