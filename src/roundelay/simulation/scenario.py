"""`roundelay simulate`: strategies side by side on a virtual cluster, in seconds, before a real one is bought.

The objective is a noisy quadratic, on which the right course of a strategy is known, or none at all (timing only); the
time model is runtime/sim/cost.py.

Costs may be those that a recorded run on one host measured. Every learner of a real run counts where its seconds go
(core/records.py, Segment). Waits are part of them: learners that share a host wait for each other's processors, locks
and messages, and no finer model is needed for that.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from roundelay.algorithms.local_update import Sgd
from roundelay.core.configure import plain, read_yaml
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write
from roundelay.core.minibatch import MinibatchSize
from roundelay.core.progress import Silent
from roundelay.core.records import Exchanges, RunStarted, Segment, Staleness, of_kind, read_events
from roundelay.job import Interrupt, Job
from roundelay.learner.base import Task, TimingOnly
from roundelay.learner.quadratic import Quadratic
from roundelay.runtime.base import Cluster, LearnerDied, Outcome, Runtime, SegmentPlan, Straggler, staleness_summary
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.schedule import Newbob
from roundelay.strategies import make_strategy
from roundelay.strategies.base import Strategy
from roundelay.training import train

QUADRATIC_PARAMETERS = 100


@dataclass(frozen=True)
class Scenario:
    """A virtual cluster and how much work it gets: `epochs` of `rounds` minibatches of `frames` for every learner.

    timing_only  compute no gradients; find out how long training takes, who waits, and how stale gradients are
    model_bytes  bytes of a row on the wire, if the cluster does not say
    """

    learners: int = 4
    rounds: int = 200
    frames: int = 32
    epochs: int = 1
    learning_rate: float = 0.1
    seed: int = 0
    stragglers: tuple[Straggler, ...] = ()
    cost: CostModel = CostModel()
    timing_only: bool = False
    model_bytes: float | None = None

    def __post_init__(self) -> None:
        if min(self.learners, self.rounds, self.frames, self.epochs) < 1:
            raise UserError("simulate needs at least one learner, one round, one frame a minibatch and one epoch.")
        if beyond := [s.rank for s in self.stragglers if not 0 <= s.rank < self.learners]:
            raise UserError(f"stragglers {beyond} do not exist: learners are 0 to {self.learners - 1}.")
        if not (self.model_bytes or self.virtual.model_bytes or self.virtual.flat) and self.timing_only:
            raise UserError(
                f"cluster {self.virtual.name!r} does not say how large a model is: add model_bytes to it, or give "
                "--model-bytes (4 for every parameter)."
            )

    @property
    def virtual(self) -> VirtualCluster:
        """The virtual cluster of the scenario."""
        return self.cost.virtual(self.learners)

    @property
    def minibatch(self) -> int:
        """Number of frames a round."""
        return self.frames * self.learners

    def task(self) -> Task:
        """Return the task to train; only the noise of its gradients depends on frames."""
        examples = self.minibatch * self.rounds
        return TimingOnly(examples) if self.timing_only else Quadratic(QUADRATIC_PARAMETERS, examples, seed=self.seed)

    def cluster(self, strategy: Strategy) -> Cluster:
        """Return the scenario's learners under a strategy."""
        return Cluster(strategy, self.task(), Sgd(), self.learners, self.seed, self.stragglers)

    def runtime(self, cluster: Cluster) -> SimRuntime:
        """Return a simulator of `cluster` in this scenario."""
        return SimRuntime(cluster, self.cost, model_bytes=self.model_bytes)


@dataclass(frozen=True)
class Simulated:
    """Result of one strategy in a scenario."""

    label: str
    virtual_seconds: float
    speedup: float  # over one undisturbed learner doing all minibatches alone
    fewest: int  # minibatches of the learner that did fewest, and most
    most: int
    staleness_mean: float
    staleness_largest: int
    consensus_distance: float
    loss: float  # of the consensus model, above the optimum
    lost: int = 0  # learners that died
    died: str = ""  # why it ended early
    events: int = 0  # effects answered, and ticks of the clock that apply one; 0: not counted
    wall_seconds: float = 0.0


def simulate(scenario: Scenario, strategies: Sequence[str], exp: Path | None = None) -> list[Simulated]:
    """Simulate each of `strategies` on the same minibatches. With `exp` each is a training with a run directory of its
    own: `exp`, or, for several strategies, a folder in it."""
    made = [make_strategy(text) for text in strategies]
    if exp is None:
        return [_simulate(scenario, strategy) for strategy in made]
    folders = [exp] if len(made) == 1 else [exp / _slug(strategy.label) for strategy in made]
    return [_train(scenario, strategy, folder) for strategy, folder in zip(made, folders, strict=True)]


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")


def _simulate(scenario: Scenario, strategy: Strategy) -> Simulated:
    cluster = scenario.cluster(strategy)
    total: Simulated | None = None
    with scenario.runtime(cluster) as runtime:
        for epoch in range(scenario.epochs):
            plan = EpochPlan(epoch, cluster.task.build().examples, scenario.minibatch, scenario.learners, scenario.seed)
            try:
                outcome = runtime.segment(SegmentPlan(plan, scenario.learning_rate))
            except LearnerDied as error:
                return _ended(strategy.label, runtime, error)
            part = _summary(scenario, strategy, runtime, outcome)
            total = part if total is None else _together(total, part)
    assert total is not None
    alone = scenario.epochs * plan.pieces * scenario.virtual.alone(scenario.frames)
    return replace(total, speedup=alone / total.virtual_seconds if total.virtual_seconds else float("nan"))


def _summary(scenario: Scenario, strategy: Strategy, runtime: SimRuntime, outcome: Outcome) -> Simulated:
    _, largest, mean = staleness_summary(outcome.counts)
    steps = outcome.counts.steps
    return Simulated(
        label=strategy.label,
        virtual_seconds=outcome.virtual_seconds or 0.0,
        speedup=float("nan"),
        fewest=int(steps.min()),
        most=int(steps.max()),
        staleness_mean=mean,
        staleness_largest=largest,
        consensus_distance=runtime.consensus_distance(),
        loss=scenario.task().build().evaluate(runtime.consensus(), "held out").mean_loss,
        lost=len(outcome.lost),
        events=runtime.events,
        wall_seconds=outcome.wall_seconds,
    )


def _together(before: Simulated, after: Simulated) -> Simulated:
    """Combine the results of two successive epochs; minibatches are counted up to the later one."""
    return replace(
        after,
        virtual_seconds=before.virtual_seconds + after.virtual_seconds,
        lost=before.lost + after.lost,
        staleness_largest=max(before.staleness_largest, after.staleness_largest),
        wall_seconds=before.wall_seconds + after.wall_seconds,
    )


def _ended(label: str, runtime: SimRuntime, error: LearnerDied) -> Simulated:
    """Return the numbers of a simulation that a learner's death ended."""
    nothing = float("nan")
    return Simulated(
        label,
        runtime.now,
        nothing,
        0,
        0,
        nothing,
        0,
        nothing,
        nothing,
        lost=1,
        died=f"{label} cannot go on: {error}",
        events=runtime.events,
    )


def _train(scenario: Scenario, strategy: Strategy, exp: Path) -> Simulated:
    """Simulate one strategy by the training loop, which leaves a run directory in `exp`."""
    cluster = scenario.cluster(strategy)

    def make_runtime(cluster: Cluster) -> Runtime:
        return scenario.runtime(cluster)

    job = Job(
        cluster=cluster,
        make_runtime=make_runtime,
        runtime_name="sim",
        minibatch=MinibatchSize(scenario.minibatch),
        schedule=Newbob(scenario.learning_rate, stop_below=None, max_epochs=scenario.epochs, reject_worse=False),
        corpus="none: timing only" if scenario.timing_only else "noisy quadratic",
        held_out="dev",
        final_splits=("dev",),
        recipe=_recipe(scenario, strategy),
        save_model=_save,
    )
    results = train(job, exp, Silent(), Interrupt())
    assert results is not None  # no stop was asked for
    records = read_events(exp / "events.jsonl")
    steps = [sum(of_rank) for of_rank in zip(*(s.learner_steps for s in of_kind(records, Segment)), strict=True)]
    seconds = results.virtual_seconds or 0.0
    alone = scenario.epochs * scenario.rounds * scenario.learners * scenario.virtual.alone(scenario.frames)
    return Simulated(
        label=results.label,
        virtual_seconds=seconds,
        speedup=alone / seconds if seconds else float("nan"),
        fewest=min(steps),
        most=max(steps),
        staleness_mean=results.staleness["mean"],
        staleness_largest=max(s.largest for s in of_kind(records, Staleness)),
        consensus_distance=results.consensus_distance,
        loss=results.frame_cross_entropy["dev"],
    )


def _recipe(scenario: Scenario, strategy: Strategy) -> dict[str, Any]:
    """Return the recipe for the run directory of a simulation."""
    return {
        "name": "simulate",
        "training": {
            "strategy": strategy.name,
            "options": plain(strategy),
            "learners": scenario.learners,
            "runtime": "sim",
            "minibatch": scenario.minibatch,
            "seed": scenario.seed,
            "stragglers": [plain(straggler) for straggler in scenario.stragglers],
        },
        "simulate": {
            "rounds": scenario.rounds,
            "frames": scenario.frames,
            "epochs": scenario.epochs,
            "learning_rate": scenario.learning_rate,
            "timing_only": scenario.timing_only,
            "model_bytes": scenario.model_bytes,
        },
        "cost": plain(scenario.cost),
    }


def _save(x: Tensor, path: Path) -> None:
    with atomic_write(path) as file:
        file.write(save({"x": x.contiguous()}))


@dataclass(frozen=True)
class Timed:
    """Result of a timing-only simulation.

    drained  virtual seconds until the last learner found nothing more to draw, without the end of the segment, which
             may wait long for exchanges
    """

    outcome: Outcome
    events: int
    drained: float = 0.0

    @property
    def seconds(self) -> float:
        """Virtual seconds of the whole segment."""
        return self.outcome.virtual_seconds or 0.0

    @property
    def frames_per_second(self) -> float:
        """Frames per virtual second of all learners together."""
        return float(self.outcome.counts.frames.sum()) / self.seconds

    @property
    def frames_per_training_second(self) -> float:
        """Frames per virtual second without the end of the segment: the speed of a long segment."""
        return float(self.outcome.counts.frames.sum()) / self.drained


def time_strategy(
    strategy: Strategy, cluster: VirtualCluster, frames: int, rounds: int, seed: int = 0, model_bytes: float = 0.0
) -> Timed:
    """Simulate the time of a strategy over `rounds` minibatches of `frames` frames for each learner of `cluster`, on
    average."""
    learners = cluster.learners
    task = TimingOnly(rounds * frames * learners)
    plan = EpochPlan(0, task.examples, frames * learners, learners, seed)
    work = Cluster(strategy, task, Sgd(), learners, seed)
    with SimRuntime(work, CostModel(cluster=cluster), model_bytes=model_bytes) as runtime:
        return Timed(runtime.segment(SegmentPlan(plan, 0.0)), runtime.events, runtime.drained)


@dataclass(frozen=True)
class Measured:
    """The measured costs of a run: mean seconds in its fastest segment, since other work of a host only slows a run
    down."""

    name: str
    strategy: Strategy
    learners: int
    cores: int
    frames: float  # of a learner's minibatch
    frames_per_second: float  # of all learners
    gradient: float  # a minibatch
    update: float  # a minibatch
    exchange: float | None  # each; None: it had none to speak of
    mean: float | None  # each
    steps_a_mean: float = 1.0  # of a learner

    @property
    def core_seconds(self) -> float:
        """Processor seconds of one minibatch's gradient, on however many cores it ran."""
        return self.gradient * cores_used(self.learners, self.cores) / self.learners


def cores_used(learners: int, cores: int) -> int:
    """Return the number of cores that compute gradients: each learner has as many threads as fit."""
    return min(cores, learners * max(1, cores // learners))


def read_run(exp: Path) -> Measured:
    """Read the costs that a run directory records.

    Raises:
        UserError: `exp` is no run of real learners, or lacks records; names it.
    """
    records = read_events(exp / "events.jsonl")
    started, segments = of_kind(records, RunStarted), of_kind(records, Segment)
    if not started or not segments:
        raise UserError(f"{exp}: nothing was trained there yet.")
    run = started[-1]
    training = read_yaml(exp / "recipe.yaml").get("training", {})
    if run.runtime != "procs" or training.get("stragglers"):
        raise UserError(f"{exp}: costs are taken from real learners without stragglers (--runtime procs).")
    fastest = max(segments, key=lambda segment: segment.frames_per_second)
    if not fastest.learner_gradient_s:
        raise UserError(f"{exp}: its log does not say where the seconds went. Train again with this version.")
    of_it = of_kind(records, Exchanges)[segments.index(fastest)]
    exchanges = sum(map(sum, of_it.matrix))
    steps, means = sum(fastest.learner_steps), sum(fastest.learner_means)
    spent = {name: sum(getattr(fastest, f"learner_{name}_s")) for name in ("gradient", "update", "exchange", "mean")}
    return Measured(
        name=exp.resolve().name,
        strategy=make_strategy(training["strategy"], training.get("options")),
        learners=run.learners,
        cores=_cores(exp, run.machine),
        frames=sum(fastest.learner_frames) / steps,
        frames_per_second=fastest.frames_per_second,
        gradient=spent["gradient"] / steps,
        update=spent["update"] / steps,
        exchange=spent["exchange"] / exchanges if exchanges > steps / 100 else None,
        mean=spent["mean"] / means if means else None,
        steps_a_mean=steps / means if means else 1.0,
    )


def _cores(exp: Path, machine: str) -> int:
    found = re.search(r"(\d+) cores", machine)
    if found is None:
        raise UserError(f"{exp}: its log does not say how many cores the machine has ({machine!r}).")
    return int(found[1])
