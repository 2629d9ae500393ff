"""The learner's own state, the same in all runtimes: its public row, its private snapshot, its optimizer.

A step is one mutation: an update of the row, the deferred exchange before it and the snapshot after it.

Legend: P parameters, L learners.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.linalg import vector_norm

from roundelay.algorithms.local_update import CopyingUpdate, LocalOptimizer, RowUpdate
from roundelay.core.effects import Exchange
from roundelay.core.flat import shaped, slices
from roundelay.core.state import Gradient, Me, Minibatch, Snapshot, Statistics
from roundelay.runtime.base import STALENESS_BINS, Counts, SegmentPlan
from roundelay.runtime.learners_rate import RateFactor
from roundelay.runtime.rows import Deferred, DeferredExchange, Row, RowOperation
from roundelay.runtime.trace import NO_TRACE, Kind


class SnapshotBuffer:
    """Memory for a learner's snapshots of its row, (P,).

    If `vector` is None, the row is its own snapshot: for strategies under which no other learner writes a row, and its
    own learner not before the gradient is complete.
    """

    def __init__(self, row: Row, vector: Tensor | None) -> None:
        self._row, self.vector = row, row.vector if vector is None else vector
        self._parts = [] if vector is None else slices(vector)
        self._apart = self.vector.device != row.vector.device

    def copy(self) -> None:
        """Copy the row into the buffer, under the row's lock."""
        if self._apart:
            self.vector.copy_(self._row.vector)
            return
        for copy, x in zip(self._parts, self._row.parts, strict=False):
            copy.copy_(x)

    def copy_chunk(self, number: int) -> None:
        """Copy one chunk of the row into the buffer, under the row's lock."""
        if self._parts:
            self._parts[number].copy_(self._row.parts[number])


class LocalStep(ABC):
    """A way to update a learner's own row by a gradient."""

    def begin(self) -> None:  # noqa: B027 most keep nothing between segments
        """Begin a segment: drop what is kept of row and memory, which may have been replaced since the last one."""

    @abstractmethod
    def take(self, gradient: Gradient, rate: float, mixing: RowOperation | None) -> float:
        """Do, under the row's lock, the exchange `mixing`, if given, update the row, and copy it into the snapshot
        buffer; return the seconds that the exchange took."""

    def end(self) -> None:  # noqa: B027
        """Note that the row has had its whole update."""


def _exchange(mixing: RowOperation | None) -> float:
    """Perform an exchange on all its chunks, if one is given; return the seconds that it took."""
    if mixing is None:
        return 0.0
    started = time.perf_counter()
    mixing.all_chunks()
    return time.perf_counter() - started


class ChunkedStep(LocalStep):
    """A step that does exchange, update and snapshot chunk by chunk, each in cache for all three."""

    def __init__(self, snapshot: SnapshotBuffer, update: RowUpdate) -> None:
        self._snapshot, self._update = snapshot, update

    def begin(self) -> None:
        self._update.begin()

    def take(self, gradient: Gradient, rate: float, mixing: RowOperation | None) -> float:
        exchanging = 0.0
        for number, part in enumerate(slices(gradient.vector)):
            if mixing is not None:
                started = time.perf_counter()
                mixing.chunk(number)
                exchanging += time.perf_counter() - started
            self._update.update_(number, part, rate)
            self._snapshot.copy_chunk(number)
        return exchanging

    def end(self) -> None:
        self._update.end()


class OnePassStep(LocalStep):
    """A step that does the exchange, then update and snapshot in one pass, on a device with a kernel for it."""

    def __init__(self, update: CopyingUpdate) -> None:
        self._update = update

    def take(self, gradient: Gradient, rate: float, mixing: RowOperation | None) -> float:
        exchanging = _exchange(mixing)
        self._update.update_(gradient.vector, rate)
        return exchanging


class StepByParameters(LocalStep):
    """A step that does the exchange, the update of each parameter in its shape, and then the snapshot."""

    def __init__(self, snapshot: SnapshotBuffer, update: RowUpdate, shapes: Sequence[Sequence[int]]) -> None:
        self._snapshot, self._update, self._shapes = snapshot, update, shapes

    def begin(self) -> None:
        self._update.begin()

    def take(self, gradient: Gradient, rate: float, mixing: RowOperation | None) -> float:
        exchanging = _exchange(mixing)
        for number, part in enumerate(shaped(gradient.vector, self._shapes)):
            self._update.update_(number, part, rate)
        self._snapshot.copy()
        return exchanging

    def end(self) -> None:
        self._update.end()


class WholeStep(LocalStep):
    """A step that updates the whole row by the user's optimizer.

    Args:
        update: `update(gradient)` changes the row; it returns True if the snapshot buffer holds the new row already.
    """

    def __init__(self, snapshot: SnapshotBuffer, update: Callable[[Gradient], bool]) -> None:
        self._snapshot, self._update = snapshot, update

    def take(self, gradient: Gradient, rate: float, mixing: RowOperation | None) -> float:
        exchanging = _exchange(mixing)
        if not self._update(gradient):
            self._snapshot.copy()
        return exchanging


MEASURED = 50
"""One gradient in this many has its norm measured, which costs a pass over its elements; a step makes several."""


@final
@dataclass(frozen=True)
class LearnerPlace:
    """The place of a learner in its run."""

    rank: int
    learners: int
    seed: int
    minibatches_a_round: int = 1


@final
@dataclass(frozen=True)
class LearnerVectors:
    """The vectors of a learner, (P,) each, wherever they lie."""

    row: Row
    gradient: Tensor
    snapshot: Tensor | None  # where snapshots are copied to; None: they are the row itself (`SnapshotBuffer`)
    memory: Mapping[str, Tensor]  # by name, of its strategy and its optimizer
    shapes: tuple[tuple[int, ...], ...] = ()  # of the parameters that lie one after another in the row; none: it is one


@final
@dataclass(frozen=True)
class LearnerTables:
    """Counters and scalars that a learner writes beside its vectors, as views of its runtime's tables."""

    steps: NDArray[np.int64]  # of all learners, (L,)
    counts: Counts  # of the segment, of all learners
    # of this learner's optimizer, of its rate factor, and then its row's mass, if rows are weighed.
    scalars: NDArray[np.float64]


@cache
def everyone(learners: int) -> tuple[int, ...]:
    """Return the ranks of all learners, always the same tuple, since ten thousand lists of ten thousand fill 3 GB."""
    return tuple(range(learners))


def _local_step(
    snapshot: SnapshotBuffer, vectors: LearnerVectors, optimizer: LocalOptimizer, scalars: NDArray[np.float64]
) -> LocalStep:
    """Return the kind of step that suits optimizer and device: by chunks, by parameters, or over the whole row."""
    copy = None if vectors.snapshot is None else snapshot.vector
    if (one_pass := optimizer.attach_copying(vectors.row.vector, vectors.memory, copy)) is not None:
        return OnePassStep(one_pass)
    shapes = vectors.shapes or ((len(vectors.row.vector),),)
    cut = partial(shaped, shapes=shapes) if optimizer.by_parameters else slices
    kept, x = {name: cut(vectors.memory[name]) for name in optimizer.memory}, cut(vectors.row.vector)
    own = scalars[: len(optimizer.scalars)]
    update = optimizer.attach(x, [{name: kept[name][number] for name in kept} for number in range(len(x))], own)
    return StepByParameters(snapshot, update, shapes) if optimizer.by_parameters else ChunkedStep(snapshot, update)


class LearnerState(Me):
    """Implements `core.state.Me` over a row, wherever the row lives.

    Args:
        update: updates the row as a whole in place of the optimizer (`WholeStep`).
        deferred: the exchange that the next step is to do along with its update, if there is one.
        rate: factor on the learning rate; None: 1, or left to `update`.
    """

    everyone: tuple[int, ...] = ()
    living: tuple[int, ...] = ()
    centre: int = 0
    learning_rate: float = 0.0
    minibatches_a_round: int = 1
    memory: Mapping[str, Tensor] = MappingProxyType({})

    def __init__(
        self,
        place: LearnerPlace,
        vectors: LearnerVectors,
        optimizer: LocalOptimizer,
        tables: LearnerTables,
        update: Callable[[Gradient], bool] | None = None,
        deferred: Deferred | None = None,
        rate: RateFactor | None = None,
    ) -> None:
        row, memory = vectors.row, vectors.memory
        self.rank, self.learners, self.seed = place.rank, place.learners, place.seed
        self.everyone, self.centre = everyone(place.learners), place.learners
        self._optimizer, self.minibatches_a_round = optimizer, place.minibatches_a_round
        self.row, self.gradient_buffer, self.counts = row, vectors.gradient, tables.counts
        self.living, self._count_steps = self.everyone, True
        self._snapshot = SnapshotBuffer(row, vectors.snapshot)
        self.snapshot_version = -1
        """Version of the row that the last snapshot is of; negative: there is none that is still like it."""
        self._step: LocalStep = (
            WholeStep(self._snapshot, update)
            if update is not None
            else _local_step(self._snapshot, vectors, optimizer, tables.scalars)
        )
        self._steps, self.memory, self._deferred = tables.steps, memory, deferred or Deferred()
        self._rate = rate

    @property
    def steps(self) -> int:
        return int(self._steps[self.rank])

    @property
    def x(self) -> Tensor:
        return self.row.vector

    @property
    def momentum(self) -> Mapping[str, Tensor]:
        return {name: self.memory[name] for name in self._optimizer.momentum_vectors}

    def reset_momentum(self) -> None:
        self._optimizer.reset_momentum(self.memory)

    def share_after_reset(self, steps: int) -> float:
        return self._optimizer.share_after_reset(steps)

    def begin_segment(self, plan: SegmentPlan | None, living: tuple[int, ...], ages: str) -> None:
        """Forget the snapshot: between segments the row, and the optimizer's memory, may have been replaced from
        outside. Without a plan the user's schedule sets the learning rate."""
        self._plan, self.learning_rate = plan, 0.0 if plan is None else plan.rate(plan.first_round)
        self.living, self._count_steps, self.snapshot_version = living, ages == "row", -1
        self._deferred.clear()
        self._step.begin()
        if self._rate is not None:
            self._rate.live(living)
        if self.row.others is not None:
            with self.row.lock:
                self.row.forget_others()

    def drawn(self, batch: Minibatch) -> None:
        """Set the learning rate of steps to that of the round of `batch`, drawn last. A minibatch without number, which
        only completes the draw of a group, has no round."""
        if batch.index >= 0 and self._plan is not None:
            self.learning_rate = self._plan.rate(batch.index // self.learners)

    def snapshot(self) -> Snapshot:
        if self.snapshot_version != self.row.version:
            with self.row.lock:
                self._snapshot.copy()
                self.snapshot_version = self.row.version
        if self.row.trace is not NO_TRACE:
            self.row.trace.note(Kind.READ, mine=self.snapshot_version)
        return Snapshot(self._snapshot.vector, self.snapshot_version)

    @property
    def snapshot_is_row(self) -> bool:
        """True if the row was not written since the last snapshot; read under the row's lock, also in an update."""
        return self.snapshot_version == self.row.version

    def step(self, gradient: Gradient) -> None:
        row = self.row
        if self._plan is not None and not self.counts.steps[self.rank] % MEASURED:
            self.counts.gradient_norm[self.rank] += float(vector_norm(gradient.vector))
            self.counts.gradient_norms[self.rank] += 1
        with row.lock:
            deferred = self._deferred.take(row)
            try:
                stale = self._update_row(gradient, deferred)
            finally:
                if deferred is not None:
                    deferred.theirs.lock.release()
        self._steps[self.rank] += 1
        self.counts.steps[self.rank] += 1
        if self._count_steps:
            self.count_age(stale)

    def _own_factor(self, rate: RateFactor, gradient: Gradient) -> float:
        """Return the factor on the learning rate of a step by `gradient`, and count it."""
        factor = rate.factor(self.steps, lambda: gradient.vector, not gradient.weight, self.row.others)
        self.row.steep = rate.steep
        self.counts.rate_factors[self.rank] += factor
        return factor

    def _update_row(self, gradient: Gradient, deferred: DeferredExchange | None) -> int:
        """Do, under the row's lock, the exchange, the update and the next snapshot; return how many versions old the
        gradient was."""
        row = self.row
        mixing = RowOperation(row, deferred.theirs, deferred.request) if deferred is not None else None
        if mixing is None:
            row.begin()
        else:
            self.snapshot_version = -1
        factor = 1.0 if self._rate is None else self._own_factor(self._rate, gradient)  # which the exchange may change
        exchanging = self._step.take(gradient, self.learning_rate * factor, mixing)
        if mixing is not None and deferred is not None:
            version = mixing.end()
            self.count_exchange(deferred.request, version)
            deferred.handle.finish(version)
            row.begin()
        version = row.version
        if row.trace is not NO_TRACE:
            row.trace.note(Kind.STEP, mine=version)
        self._step.end()
        row.worked()
        self.snapshot_version = version + 1
        row.end()
        if exchanging:
            self.counts.exchange_s[self.rank] += exchanging  # the runtime counts the whole step as an update
            self.counts.update_s[self.rank] -= exchanging
        return version - gradient.version

    def count_age(self, stale: int) -> None:
        """Count one more gradient, or report to the centre, that was `stale` versions old when it was applied."""
        self.counts.staleness[self.rank, min(stale, STALENESS_BINS - 1)] += 1
        self.counts.stalest[self.rank] = max(stale, int(self.counts.stalest[self.rank]))
        self.counts.stale_sum[self.rank] += stale

    def count_exchange(self, request: Exchange, version: int) -> None:
        """Count an exchange that left the peer's row at `version`."""
        self.counts.exchanges[self.rank, request.peer] += 1
        if request.since is not None and not self._count_steps:
            self.count_age(version - 1 - request.since)

    def replace(self, vector: Tensor) -> None:
        with self.row.writing():
            self.row.trace.note(Kind.REPLACE, mine=self.row.version)
            self.row.forget_work()
            for mine, part in zip(self.row.parts, slices(vector), strict=True):
                mine.copy_(part)

    def change(self, change: Callable[[Tensor], None]) -> None:
        """Let `change` change the row (P,), as one mutation."""
        with self.row.writing():
            self.row.trace.note(Kind.REPLACE, mine=self.row.version)
            change(self.row.vector)

    def count(self, statistics: Statistics) -> None:
        """Add a trained minibatch to this learner's counts."""
        self.counts.frames[self.rank] += statistics.frames
        self.counts.loss[self.rank] += statistics.loss
        self.counts.correct[self.rank] += statistics.correct
