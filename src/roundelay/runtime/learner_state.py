"""The learner's own state, the same in all runtimes: its public row, its private snapshot, its optimizer.

Legend: P parameters, L learners.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from roundelay.algorithms.local_update import Sgd
from roundelay.core.effects import Rule
from roundelay.core.flat import chunks
from roundelay.core.state import Gradient, Me, Snapshot, Statistics
from roundelay.runtime.base import STALENESS_BINS, Counts


class Lock(Protocol):
    """Mutual exclusion for one row."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...


class NoLock:
    """For runtimes in which only one thing happens at a time."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...


class Row:
    """A learner's public parameters (P,) with a version that every mutation raises.

    The version lives in `versions[rank]` as a count of half mutations: odd while one is under way, so that a writer
    killed in the middle leaves a trace.
    """

    def __init__(self, rank: int, vector: Tensor, versions: NDArray[np.int64], lock: Lock) -> None:
        self.rank, self.vector, self.lock = rank, vector, lock
        self._versions = versions

    @property
    def version(self) -> int:
        """Mutations so far."""
        return int(self._versions[self.rank]) // 2

    @property
    def torn(self) -> bool:
        """True, when nobody holds the lock, if a writer died in the middle of a mutation."""
        return bool(self._versions[self.rank] % 2)

    def begin(self) -> None:
        """Under the lock: a mutation starts. After a torn one the version is made even first."""
        self._versions[self.rank] += 1 + self._versions[self.rank] % 2

    def end(self) -> None:
        """Under the lock: the mutation is complete."""
        self._versions[self.rank] += 1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock for one mutation."""
        self.lock.acquire()
        try:
            self.begin()
            yield
            self.end()
        finally:
            self.lock.release()


def exchange(mine: Row, theirs: Row, rule: Rule) -> None:
    """Apply `rule` to both rows as they are now, atomically.

    Locks are taken in rank order, so no circle of learners can wait for each other.
    """
    first, second = sorted((mine, theirs), key=lambda row: row.rank)
    with first.writing(), second.writing():
        for part in chunks(mine.vector.numel()):
            rule(mine.vector[part], theirs.vector[part])


class LearnerState(Me):
    """Implements `core.state.Me` over a row, wherever the row lives."""

    def __init__(
        self,
        rank: int,
        learners: int,
        seed: int,
        row: Row,
        snapshot: Tensor,
        gradient: Tensor,
        optimizer: Sgd,
        memory: Mapping[str, Tensor],
        steps: NDArray[np.int64],
        counts: Counts,
    ) -> None:
        self.rank, self.learners, self.seed = rank, learners, seed
        self.row, self.gradient_buffer, self.counts = row, gradient, counts
        self.learning_rate = 0.0
        self._snapshot, self._snapshot_version = snapshot, -1
        self._optimizer, self._memory, self._steps = optimizer, memory, steps

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.learners))

    @property
    def steps(self) -> int:
        return int(self._steps[self.rank])

    @property
    def x(self) -> Tensor:
        return self.row.vector

    def begin_segment(self, learning_rate: float) -> None:
        """Forget the snapshot: between segments the row may have been replaced from outside."""
        self.learning_rate, self._snapshot_version = learning_rate, -1

    def snapshot(self) -> Snapshot:
        if self._snapshot_version != self.row.version:
            self.row.lock.acquire()
            try:
                for part in chunks(self.row.vector.numel()):
                    self._snapshot[part].copy_(self.row.vector[part])
                self._snapshot_version = self.row.version
            finally:
                self.row.lock.release()
        return Snapshot(self._snapshot, self._snapshot_version)

    def step(self, gradient: Gradient) -> None:
        x, g, rate = self.row.vector, gradient.vector, self.learning_rate
        with self.row.writing():
            stale = self.row.version - gradient.version
            # Update and the snapshot for the next gradient in one pass: each chunk is still in cache when it is copied.
            for part in chunks(x.numel()):
                memory = {name: vector[part] for name, vector in self._memory.items()}
                self._optimizer.update_(x[part], g[part], memory, rate)
                self._snapshot[part].copy_(x[part])
            self._snapshot_version = self.row.version + 1
        self._steps[self.rank] += 1
        self.counts.steps[self.rank] += 1
        self.counts.staleness[self.rank, min(stale, STALENESS_BINS - 1)] += 1
        self.counts.stalest[self.rank] = max(stale, int(self.counts.stalest[self.rank]))
        self.counts.stale_sum[self.rank] += stale

    def replace(self, vector: Tensor) -> None:
        with self.row.writing():
            for part in chunks(vector.numel()):
                self.row.vector[part].copy_(vector[part])

    def count(self, statistics: Statistics) -> None:
        """Add a trained minibatch to this learner's counts."""
        self.counts.frames[self.rank] += statistics.frames
        self.counts.loss[self.rank] += statistics.loss
        self.counts.correct[self.rank] += statistics.correct
