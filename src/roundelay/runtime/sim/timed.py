"""A learner whose row is empty: it has versions, steps and counts, and nothing to compute.

What `LearnerState` does with vectors and numpy tables is done here with Python integers, which is several times as fast
where there are no vectors. A law holds the two to the same times and the same counts.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from roundelay.core.effects import Exchange, Reach
from roundelay.core.state import Gradient, Me, Minibatch, Snapshot, Statistics
from roundelay.runtime.base import STALENESS_BINS, Counts, SegmentPlan
from roundelay.runtime.rows import REACH_RULES
from roundelay.runtime.trace import Use

NO_VECTOR = torch.empty(0)
WRITTEN = Use.WRITTEN  # a plain name is faster than a member of an enumeration


class TimedLearner(Me):
    """Implements `core.state.Me` without vectors. `versions` are those of all rows, counted once a mutation."""

    SUMS = ("frames", "counted_steps", "stale_sum")

    steps: int = 0  # a plain number is faster than a property
    learning_rate: float = 0.0
    living: tuple[int, ...] = ()
    everyone: tuple[int, ...] = ()
    centre: int = 0
    minibatches_a_round: int = 1

    def __init__(self, rank: int, everyone: tuple[int, ...], seed: int, versions: list[int], names: tuple[str, ...]):
        self.rank, self.learners, self.seed = rank, len(everyone), seed
        self.everyone, self.centre = everyone, len(everyone)
        self.gradient_buffer = NO_VECTOR
        self.versions = versions
        self._memory = dict.fromkeys(names, NO_VECTOR)
        self._count_steps = True
        self.clear()

    def clear(self) -> None:
        """Start counting again."""
        self.counted_steps, self.frames, self.stalest, self.stale_sum = 0, 0, 0, 0
        self.ages = [0] * STALENESS_BINS
        self.exchanges: dict[int, int] = {}

    @property
    def x(self) -> Tensor:
        return NO_VECTOR

    @property
    def memory(self) -> Mapping[str, Tensor]:
        return self._memory

    @property
    def momentum(self) -> Mapping[str, Tensor]:
        return {}

    def reset_momentum(self) -> None: ...

    def share_after_reset(self, steps: int) -> float:
        return 1.0

    def begin_segment(self, plan: SegmentPlan, living: tuple[int, ...], ages: str) -> None:
        """Begin as `LearnerState`."""
        self._plan, self._warms_up = plan, plan.warmup is not None
        self.learning_rate = plan.rate(plan.first_round)
        self.living, self._count_steps = living, ages == "row"

    def drawn(self, batch: Minibatch) -> None:
        """Note as `LearnerState`; only a strategy that looks at the rate depends on it."""
        if self._warms_up and batch.index >= 0:
            self.learning_rate = self._plan.rate(batch.index // self.learners)

    def snapshot(self) -> Snapshot:
        return Snapshot(NO_VECTOR, self.versions[self.rank])

    def step(self, gradient: Gradient) -> None:
        version = self.versions[self.rank]
        self.versions[self.rank] = version + 1
        self.steps += 1
        self.counted_steps += 1
        if self._count_steps:
            self.count_age(version - gradient.version)

    def count_age(self, stale: int) -> None:
        """Count as `LearnerState`, like the rest."""
        self.ages[stale if stale < STALENESS_BINS else -1] += 1
        self.stale_sum += stale
        self.stalest = max(self.stalest, stale)

    def count_exchange(self, request: Exchange, version: int) -> None:
        self.exchanges[request.peer] = self.exchanges.get(request.peer, 0) + 1
        if request.since is not None and not self._count_steps:
            self.count_age(version - 1 - request.since)

    def replace(self, vector: Tensor) -> None:
        self.versions[self.rank] += 1

    def count(self, statistics: Statistics) -> None:
        self.frames += statistics.frames

    def reach(self, effect: Reach) -> int:
        """Return the rows that it writes have changed; the version of the peer's."""
        versions, (mine, theirs) = self.versions, REACH_RULES[type(effect)].access
        if mine is WRITTEN:
            versions[self.rank] += 1
        if theirs is WRITTEN:
            versions[effect.peer] += 1
        return versions[effect.peer]

    def report(self, counts: Counts) -> None:
        """Write what was counted into the tables."""
        rank = self.rank
        counts.steps[rank], counts.frames[rank] = self.counted_steps, self.frames
        counts.staleness[rank] = self.ages
        counts.stalest[rank], counts.stale_sum[rank] = self.stalest, self.stale_sum
        for peer, number in self.exchanges.items():
            counts.exchanges[rank, peer] = number
