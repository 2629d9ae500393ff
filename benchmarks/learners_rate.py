"""Held-out loss of L learners after equally many steps of the fastest, by the factor on their learning rate.

    python benchmarks/learners_rate.py --text FILE --out FILE.jsonl [--steps 500] [--seeds 3] [--rates 1e-3 2e-3 ...]

A small character model under AdamW, each learner with a minibatch of its own, `adpsgd`, in the simulator: one learner,
two, four, and two of which the second takes three times as long. Nothing depends on the machine, and a result that the
file has already is not computed again. `--show` prints the table of a file.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_hosts_tasks import TextTask

from roundelay.algorithms.torch_optimizer import TorchOptimizer
from roundelay.core.epochs import EpochPlan
from roundelay.core.flat import bind, flatten, parameter_count
from roundelay.core.rates import LearnersRate
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task
from roundelay.runtime.base import Cluster, SegmentPlan, Straggler
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import make_strategy

ROWS, WIDTH, LAYERS, CONTEXT = 8, 48, 2, 48
CASES = {"alone": (1, 1), "2 equal": (2, 1), "4 equal": (4, 1), "2, one 3 times slower": (2, 3)}
"""Learners, and how many times as long the second one takes."""


@cache
def text_task(path: Path) -> TextTask:
    """Return the text, cut for this model."""
    return TextTask(path, WIDTH, LAYERS, CONTEXT, ROWS, judged=256)


@dataclass(frozen=True)
class Characters(Task):
    """The character model on minibatches that are drawn by seed and number."""

    path: Path
    seed: int
    examples: int

    def build(self) -> Learner:
        return CharacterLearner(self)


class CharacterLearner(Learner):
    """Gradients of the model, whose weights are drawn by the seed."""

    def __init__(self, task: Characters) -> None:
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


def trained(path: Path, case: str, how: LearnersRate, rate: float, seed: int, steps: int) -> dict[str, float]:
    """Return the held-out loss in nats after so many steps of a learner that is not slow, and its mean factor."""
    learners, slower = CASES[case]
    pieces = steps * learners if slower == 1 else steps + steps // slower
    rounds = -(-pieces // learners)
    task = Characters(path, seed, rounds * learners * ROWS)
    slow = (Straggler(1, float(slower)),) if slower > 1 else ()
    optimizer = TorchOptimizer(name="AdamW", options={"fused": True})
    strategy = make_strategy("adpsgd" if learners > 1 else "sgd")
    cluster = Cluster(strategy, task, optimizer, learners, seed, slow, shared_minibatch=False, rate=how)
    plan = EpochPlan(0, task.examples, ROWS * learners, learners, seed)
    with SimRuntime(cluster, CostModel(gradient=0.1, jitter=0.1, together=False)) as runtime:
        counts = runtime.segment(SegmentPlan(plan, rate)).counts
        factors = counts.rate_factors[0] / counts.steps[0] if counts.rate_factors.any() else 1.0
        return {"loss": loss_of(runtime), "factor": float(factors)}


def loss_of(runtime: SimRuntime) -> float:
    """Return the held-out loss of the model."""
    return runtime.cluster.task.build().evaluate(runtime.consensus(), "dev").mean_loss


def runs(rates: list[float], seeds: int) -> Iterator[tuple[str, LearnersRate, float, int]]:
    """Every training of the table."""
    for seed in range(seeds):
        for case in CASES:
            for how in get_args(LearnersRate) if case != "alone" else ("as-is",):
                for rate in rates:
                    yield case, how, rate, seed


def table(file: Path) -> str:
    """Return the means over seeds, with half the range, as text."""
    found: dict[tuple[str, str], dict[float, list[tuple[float, float]]]] = {}
    for line in file.read_text().splitlines():
        one = json.loads(line)
        by_rate = found.setdefault((one["case"], one["how"]), {})
        by_rate.setdefault(one["rate"], []).append((one["loss"], one["factor"]))
    rates = sorted({rate for by_rate in found.values() for rate in by_rate})
    lines = ["| learners | rate | " + " | ".join(f"{rate:g}" for rate in rates) + " |", "|---" * (2 + len(rates)) + "|"]
    for (case, how), by_rate in found.items():
        cells = []
        for rate in rates:
            losses = [loss for loss, _ in by_rate.get(rate, [])]
            factor = np.mean([factor for _, factor in by_rate.get(rate, [(0.0, 1.0)])])
            spread = f"{np.mean(losses):.3f} ± {(max(losses) - min(losses)) / 2:.3f} (x {factor:.2f})"
            cells.append(spread if losses else "")
        lines.append(f"| {case} | {how} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text, compressed by gzip or not")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 4e-3, 8e-3])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--show", action="store_true", help="print the table of --out, and train nothing")
    given = parser.parse_args()
    if not given.show:
        torch.set_num_threads(1)
        known = given.out.read_text().splitlines() if given.out.exists() else []
        done = {tuple(json.loads(line)[key] for key in ("case", "how", "rate", "seed")) for line in known}
        for case, how, rate, seed in runs(given.rates, given.seeds):
            if case in given.cases and (case, how, rate, seed) not in done:
                found = trained(given.text, case, how, rate, seed, given.steps)
                with given.out.open("a") as file:
                    file.write(json.dumps({"case": case, "how": how, "rate": rate, "seed": seed, **found}) + "\n")
    print(table(given.out))


if __name__ == "__main__":
    main()
