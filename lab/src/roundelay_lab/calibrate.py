"""Costs from recorded runs on one host, and the throughput they predict.

Every learner of a real run counts where its seconds go (core/records.py, Segment). From those follow, for the number
of learners of that run, the seconds of a gradient, a local update, an exchange and a mean. Waits are part of them:
learners that share a host wait for each other's processors, locks and messages, and no finer model is needed for that.

For a number of learners that was not measured: the processor seconds of a gradient are affine in its frames, and all
learners share the cores (a learner alone uses several threads); learners' other work takes longer as they crowd the
cores.

Legend: L learners.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roundelay.core.errors import UserError
from roundelay.runtime.sim.cluster import Allreduce, Compute, Node, VirtualCluster
from roundelay.simulation.scenario import Measured, cores_used, read_run, time_strategy
from roundelay.strategies.base import Strategy

ROUNDS = 240
"""Minibatches a learner that are simulated for a prediction: many blocks of the usual periods."""
SAME_PERIOD = 1.7
"""Numbers of steps between two means that differ by less than this factor count as equal."""


@dataclass(frozen=True)
class Costs:
    """Costs measured by several runs on one host."""

    runs: tuple[Measured, ...]

    @property
    def cores(self) -> int:
        """Number of cores of the host."""
        return self.runs[0].cores

    def gradient(self, learners: int, frames: float) -> float:
        """Return the seconds of a gradient over `frames` frames while `learners` learners compute."""
        same = [run.gradient for run in self.runs if run.learners == learners and abs(run.frames - frames) < 1]
        if same:
            return float(np.mean(same))
        fixed, per_frame = self._work()
        return (fixed + per_frame * frames) * learners / cores_used(learners, self.cores)

    def _work(self) -> tuple[float, float]:
        """Return the core seconds of a gradient: (fixed, per frame), by least squares; neither below 0."""
        frames, seconds = (np.array([getattr(run, n) for run in self.runs]) for n in ("frames", "core_seconds"))
        through_zero = float(frames @ seconds / (frames @ frames))
        if np.ptp(frames) < 1:
            return 0.0, through_zero
        per_frame, fixed = (float(value) for value in np.polyfit(frames, seconds, 1))
        if per_frame <= 0:
            return float(seconds.mean()), 0.0
        return (fixed, per_frame) if fixed >= 0 else (0.0, through_zero)

    def other(self, of: Callable[[Measured], float | None], learners: int) -> float | None:
        """Return the seconds of an effect that learners perform themselves, read by `of`, from the runs with the
        nearest number of learners; None: no run has any."""
        known = [(run.learners, value) for run in self.runs if (value := of(run)) is not None]
        if not known:
            return None
        nearest = min({number for number, _ in known}, key=lambda number: (abs(np.log(number / learners)), number))
        return float(np.mean([v for n, v in known if n == nearest])) * self._crowd(learners) / self._crowd(nearest)

    def mean(self, learners: int, steps: float) -> float:
        """Return the seconds of a mean that a learner takes part in every `steps` steps.

        Waiting is most of it: the longer learners go without meeting, the farther apart they come. So the seconds are
        taken from the runs nearest in that number.
        """
        apart = [abs(np.log(run.steps_a_mean / steps)) for run in self.runs if run.mean is not None]
        close = max(min(apart, default=0.0), float(np.log(SAME_PERIOD)))

        def of(run: Measured) -> float | None:
            return run.mean if abs(np.log(run.steps_a_mean / steps)) <= close else None

        return self.other(of, learners) or 0.0

    def _crowd(self, learners: int) -> float:
        return max(1.0, learners / self.cores)

    def host(self, learners: int, frames: float, steps_a_mean: float) -> VirtualCluster:
        """Return the host with `learners` learners as a virtual cluster; effects that no run measured cost nothing."""
        update = self.other(lambda run: run.update, learners) or 0.0
        mean = self.mean(learners, steps_a_mean)  # of a group of any size, or a mix with neighbours
        return VirtualCluster(
            name=f"calibrated, {learners} learners",
            nodes=(Node(learners),),
            compute=Compute(seconds=self.gradient(learners, frames), update=update),
            exchange=self.other(lambda run: run.exchange, learners) or 0.0,
            allreduce=Allreduce(seconds={"2": mean, str(max(2, learners)): mean}),
            mix=mean,
            background=False,
        )

    def knows(self, run: Measured) -> bool:
        """Return True if the costs of all effects of `run` were measured."""
        exchanges = run.exchange is None or any(other.exchange is not None for other in self.runs)
        alone = run.mean is None or run.learners == 1  # a mean of one costs nothing
        return bool(self.runs) and exchanges and (alone or any(other.mean is not None for other in self.runs))


@dataclass(frozen=True)
class Predicted:
    """A prediction: frames per second of all learners, for one strategy and number of learners."""

    label: str
    learners: int
    frames_per_second: float | None  # from all *other* runs; None: none of them had this one's work
    measured: float | None = None
    own: float | None = None  # from the costs of this very run: the error of the model, not of the calibration

    @property
    def error(self) -> float | None:
        """Relative error of the prediction from other runs; None: nothing to compare with."""
        return _relative(self.frames_per_second, self.measured)

    @property
    def own_error(self) -> float | None:
        """Relative error of the prediction from the run's own costs."""
        return _relative(self.own, self.measured)


def _relative(found: float | None, measured: float | None) -> float | None:
    return None if found is None or measured is None else found / measured - 1


def calibrate(exps: Sequence[Path], learners: Sequence[int] = (1, 2, 4)) -> tuple[Costs, list[Predicted]]:
    """Return the costs measured by all runs, and predictions: of every run from the others, and of the same strategies
    for other numbers of `learners`.

    Raises:
        UserError: a run cannot be used, or they are from different hosts.
    """
    runs = [read_run(exp) for exp in exps]
    if len(found := {run.cores for run in runs}) > 1:
        raise UserError(
            f"the runs are from hosts with {' and '.join(map(str, sorted(found)))} cores: calibrate each host."
        )
    costs, lines = Costs(tuple(runs)), []
    for run in runs:
        others = Costs(tuple(other for other in runs if other is not run))
        speed, own = (
            _speed(known, run.strategy, run.learners, run.frames, run.steps_a_mean) if known.knows(run) else None
            for known in (others, Costs((run,)))
        )
        lines.append(Predicted(run.strategy.label, run.learners, speed, run.frames_per_second, own))
    total = runs[0].frames * runs[0].learners
    for strategy in {run.strategy: None for run in runs}:
        there = {run.learners: run.steps_a_mean for run in runs if run.strategy == strategy}
        apart = max(there.values())
        for number in sorted(set(learners) - set(there)):
            try:
                strategy.check(number)
            except UserError:
                continue
            lines.append(Predicted(strategy.label, number, _speed(costs, strategy, number, total / number, apart)))
    return costs, sorted(lines, key=lambda line: (line.learners, line.label))


def _speed(costs: Costs, strategy: Strategy, learners: int, frames: float, steps_a_mean: float) -> float:
    cluster = costs.host(learners, frames, steps_a_mean)
    return time_strategy(strategy, cluster, max(1, round(frames)), ROUNDS).frames_per_second
