"""Time a strategy takes on a virtual cluster, when nothing is computed."""

from dataclasses import dataclass

from roundelay.algorithms.local_update import Sgd
from roundelay.core.epochs import EpochPlan
from roundelay.learner.timing import TimingOnly
from roundelay.runtime.base import Cluster, Outcome, SegmentPlan
from roundelay.runtime.sim.cluster import VirtualCluster
from roundelay.runtime.sim.cost import CostModel
from roundelay.runtime.sim.driver import SimRuntime
from roundelay.strategies.base import Strategy


@dataclass(frozen=True)
class Timed:
    """Result of a timing-only simulation.

    drained  virtual seconds until the last learner found nothing more to draw: of the end of a segment, which may wait
             for exchanges that are long on their way, it has nothing
    """

    outcome: Outcome
    events: int
    drained: float = 0.0

    @property
    def seconds(self) -> float:
        """Virtual."""
        return self.outcome.virtual_seconds or 0.0

    @property
    def frames_per_second(self) -> float:
        """Frames per virtual second of all learners together."""
        return float(self.outcome.counts.frames.sum()) / self.seconds

    @property
    def frames_per_training_second(self) -> float:
        """The same without the end of the segment: the speed of a long one."""
        return float(self.outcome.counts.frames.sum()) / self.drained


def time_strategy(
    strategy: Strategy, cluster: VirtualCluster, frames: int, rounds: int, seed: int = 0, model_bytes: float = 0.0
) -> Timed:
    """Return `rounds` minibatches of `frames` for every learner of `cluster`, on average."""
    learners = cluster.learners
    task = TimingOnly(rounds * frames * learners)
    plan = EpochPlan(0, task.examples, frames * learners, learners, seed)
    work = Cluster(strategy, task, Sgd(), learners, seed)
    with SimRuntime(work, CostModel(cluster=cluster), model_bytes=model_bytes) as runtime:
        return Timed(runtime.segment(SegmentPlan(plan, 0.0)), runtime.events, runtime.drained)
