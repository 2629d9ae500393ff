"""`roundelay simulate`: strategies side by side on a virtual cluster, in seconds, before anybody buys one.

The objective is a noisy quadratic, on which what a strategy should do is known; the time model is runtime/sim/cost.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, SegmentPlan, Straggler, staleness_summary
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies import make_strategy


@dataclass(frozen=True)
class Scenario:
    """A virtual cluster and how much work it gets: `rounds` of `learners` minibatches each."""

    learners: int = 4
    rounds: int = 200
    learning_rate: float = 0.1
    seed: int = 0
    stragglers: tuple[Straggler, ...] = ()
    cost: CostModel = CostModel()

    def __post_init__(self) -> None:
        if self.learners < 1 or self.rounds < 1:
            raise UserError("simulate needs at least one learner and one round.")
        if beyond := [s.rank for s in self.stragglers if not 0 <= s.rank < self.learners]:
            raise UserError(f"stragglers {beyond} do not exist: learners are 0 to {self.learners - 1}.")


@dataclass(frozen=True)
class Simulated:
    """What one strategy did in a scenario."""

    label: str
    virtual_seconds: float
    speedup: float  # over one undisturbed learner doing all minibatches alone
    fewest: int  # minibatches of the learner that did fewest, and most
    most: int
    staleness_mean: float
    staleness_largest: int
    consensus_distance: float
    loss: float  # of the consensus model, above the optimum


def simulate(scenario: Scenario, strategies: Sequence[str]) -> list[Simulated]:
    """Run every strategy of `strategies` through the same minibatches."""
    return [_simulate(scenario, name) for name in strategies]


def _simulate(scenario: Scenario, name: str) -> Simulated:
    frames = 32  # a learner's minibatch; only its noise depends on it
    minibatch = frames * scenario.learners
    task = Quadratic(parameters=100, examples=minibatch * scenario.rounds, seed=scenario.seed)
    cluster = Cluster(
        make_strategy(name), task, Sgd(), scenario.learners, scenario.seed, stragglers=scenario.stragglers
    )
    plan = EpochPlan(0, task.examples, minibatch, scenario.learners, scenario.seed)
    with SimRuntime(cluster, scenario.cost) as runtime:
        outcome = runtime.segment(SegmentPlan(plan, scenario.learning_rate))
        loss = task.build().evaluate(runtime.consensus(), "held out").mean_loss
        distance = runtime.consensus_distance()
    _, largest, mean = staleness_summary(outcome.counts)
    seconds = outcome.virtual_seconds or 0.0
    steps = outcome.counts.steps
    return Simulated(
        label=cluster.strategy.label, virtual_seconds=seconds,
        speedup=plan.pieces * scenario.cost.gradient / seconds if seconds else float("nan"),
        fewest=int(steps.min()), most=int(steps.max()), staleness_mean=mean, staleness_largest=largest,
        consensus_distance=distance, loss=loss,
    )  # fmt: skip
