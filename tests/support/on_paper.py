"""For laws that hold a strategy against its equation written out by hand: the same gradients, without the package's
strategies and runtimes.

Legend: P parameters, L learners.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.state import Minibatch, Statistics
from roundelay.learner.base import Learner, Task
from roundelay.learner.quadratic import Quadratic, QuadraticLearner
from roundelay.runtime.base import Cluster, Outcome, SegmentPlan, Straggler
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from support.clusters import make_strategy

MINIBATCH = 60
"""Frames of a round: as many for each of up to six learners."""


_built = lru_cache(maxsize=64)(QuadraticLearner)


@dataclass(frozen=True)
class Paper:
    """A noisy quadratic and the minibatches of one epoch."""

    learners: int
    rounds: int = 12
    rate: float = 0.2
    seed: int = 0
    cut: int = 0  # examples missing in the last round
    parameters: int = 7

    @property
    def task(self) -> Quadratic:
        """The task: the function that is minimised."""
        return Quadratic(self.parameters, seed=self.seed)

    @property
    def epoch(self) -> EpochPlan:
        """The plan of the epoch, which has the minibatches."""
        return EpochPlan(0, self.rounds * MINIBATCH - self.cut, MINIBATCH, self.learners, 1)

    @property
    def start(self) -> Tensor:
        """The rows before the first step, (L, P)."""
        return torch.zeros(self.learners, self.parameters)

    def gradient(self, x: Tensor, index: int) -> Tensor:
        """Return the gradient (P,) at `x` (P,) over minibatch number `index`."""
        out = torch.empty(self.parameters)
        _built(self.task).gradient(x, self.epoch.piece(index), self.epoch, out)
        return out

    def gradients(self, rows: Tensor, round_: int) -> Tensor:
        """Return the gradients (L, P) of every learner at its own row, over its minibatch of the round."""
        return torch.stack([self.gradient(row, round_ * self.learners + rank) for rank, row in enumerate(rows)])

    def frames(self, round_: int) -> Tensor:
        """Return the number of frames, (L, 1), of every learner's minibatch of the round."""
        return torch.tensor(
            [[float(self.epoch.piece(round_ * self.learners + r).frames)] for r in range(self.learners)]
        )


@dataclass(frozen=True)
class Ended:
    """Result of a strategy in the simulator."""

    rows: Tensor  # (holders, P)
    centre: Tensor  # (P,); of zeros where there is none
    memory: dict[str, Tensor]  # (L, P) each
    outcome: Outcome

    def vector(self, name: str) -> Tensor:
        """Return the rows, the centre, or other vectors, by name."""
        return {"rows": self.rows, "centre": self.centre, **self.memory}[name]


def same(found: Tensor, expected: Tensor) -> None:
    """Check that two tensors are the same except for the order of additions."""
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-4, atol=1e-5)


def simulated(
    name: str,
    paper: Paper,
    optimizer: Sgd | None = None,
    cost: CostModel | None = None,
    task: Task | None = None,
    stragglers: tuple[Straggler, ...] = (),
    scattered: Tensor | None = None,
) -> Ended:
    """Simulate the epoch of `paper` by strategy `name` (support.clusters); learners are equally fast unless told
    otherwise.

    `scattered` (L, P) are rows to begin with.
    """
    cluster = Cluster(
        make_strategy(name), task or paper.task, optimizer or Sgd(), paper.learners, paper.seed, stragglers
    )
    with SimRuntime(cluster, cost) as runtime:
        if scattered is not None:
            state = runtime.state()
            state.vectors["row"].copy_(scattered)
            runtime.load(state)
        outcome = runtime.segment(SegmentPlan(paper.epoch, paper.rate))
        memory = runtime.state().vectors
        centre = runtime.centre().clone() if cluster.centre else torch.zeros(paper.parameters)
        return Ended(runtime.rows().clone(), centre, memory, outcome)


@dataclass(frozen=True)
class Watched(Task):
    """A quadratic that remembers where which gradient was taken: (point (P,), minibatch, gradient (P,))."""

    of: Quadratic
    log: list[tuple[Tensor, Minibatch, Tensor]] = field(default_factory=list)

    def build(self) -> Learner:
        return _WatchedLearner(self)


class _WatchedLearner(QuadraticLearner):
    def __init__(self, task: Watched) -> None:
        super().__init__(task.of)
        self._log = task.log

    def gradient(self, x: Tensor, batch: Minibatch, plan: EpochPlan, out: Tensor, **how: Any) -> Statistics:
        statistics = super().gradient(x, batch, plan, out, **how)
        self._log.append((x.clone(), batch, out.clone()))
        return statistics


def in_turn(paper: Paper) -> Iterator[tuple[int, int, int]]:
    """Yield (round, learner, minibatch) in the order in which equally fast asynchronous learners take them."""
    for round_ in range(paper.rounds):
        for rank in range(paper.learners):
            yield round_, rank, round_ * paper.learners + rank
