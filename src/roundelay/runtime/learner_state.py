"""The learner's own state, the same in all runtimes: its public row, its private snapshot, its optimizer.

Legend: P parameters, L learners.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from roundelay.algorithms.local_update import LocalOptimizer
from roundelay.core.effects import Exchange, Handle
from roundelay.core.flat import slices
from roundelay.core.state import Gradient, Me, Minibatch, Snapshot, Statistics
from roundelay.runtime.base import STALENESS_BINS, Counts, SegmentPlan
from roundelay.runtime.trace import Kind, NoTrace


class Lock(Protocol):
    """Mutual exclusion for one row."""

    def acquire(self) -> None: ...
    def try_acquire(self) -> bool: ...
    def release(self) -> None: ...


class NoLock:
    """For runtimes in which only one thing happens at a time."""

    def acquire(self) -> None: ...

    def try_acquire(self) -> bool:
        return True

    def release(self) -> None: ...


class Row:
    """A learner's public parameters (P,) with a version that every mutation raises.

    The version lives in `versions[rank]` as a count of half mutations: odd while one is under way, so that a writer
    killed in the middle leaves a trace. `away[rank]`, where there are several hosts, is the number of the exchange with
    another host that it is just in, or 0: then it takes part in no other (runtime/hosts/exchange/row_leases.py).
    """

    def __init__(
        self,
        rank: int,
        vector: Tensor,
        versions: NDArray[np.int64],
        lock: Lock,
        away: NDArray[np.int64] | None = None,
    ) -> None:
        self.rank, self.vector, self.lock = rank, vector, lock
        self.parts = slices(vector)
        self._versions, self._away = versions, away
        self.trace = NoTrace()  # its own learner may take notes

    @property
    def version(self) -> int:
        """Mutations so far."""
        return int(self._versions[self.rank]) // 2

    @property
    def torn(self) -> bool:
        """True, when nobody holds the lock, if a writer died in the middle of a mutation."""
        return bool(self._versions[self.rank] % 2)

    @property
    def away(self) -> bool:
        """Under the lock: is it in the middle of an exchange with another host?"""
        return self._away is not None and bool(self._away[self.rank])

    def check_out(self, lease: int) -> None:
        """Under the lock: from now on it is in flight, under the lease of that number."""
        assert self._away is not None
        self._away[self.rank] = lease

    def check_in(self, lease: int) -> bool:
        """Its flight under that lease is over; under the lock, if the row is then changed. False if it was over
        before: the row has become another learner's meanwhile, or its peer is dead."""
        assert self._away is not None
        if self._away[self.rank] != lease:
            return False
        self._away[self.rank] = 0
        return True

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


def exchange(mine: Row, theirs: Row, request: Exchange) -> int | None:
    """Apply the request's rule to both rows as they are now, atomically; the version of theirs afterwards. None if one
    of the two is under way to another host.

    Locks are taken in rank order, so no circle of learners can wait for each other.
    """
    first, second = _in_order(mine, theirs)
    first.lock.acquire()
    try:
        second.lock.acquire()
        try:
            return None if mine.away or theirs.away else _mix(mine, theirs, request)
        finally:
            second.lock.release()
    finally:
        first.lock.release()


def fetch(mine: Row, theirs: Row, into: Tensor) -> int:
    """Copy row `theirs` as it is now, atomically, into `into` (P,); the version read."""
    theirs.lock.acquire()
    try:
        mine.trace.note(Kind.FETCH, theirs.rank, theirs=theirs.version)
        for part, x in zip(slices(into), theirs.parts, strict=True):
            part.copy_(x)
        return theirs.version
    finally:
        theirs.lock.release()


def adopt(mine: Row, theirs: Row, memory: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
    """Overwrite row `mine`, atomically, by row `theirs`, and each first vector of `memory` by the second; what is
    remembered of a row changes only with it."""
    first, second = _in_order(mine, theirs)
    first.lock.acquire()
    try:
        second.lock.acquire()
        try:
            mine.trace.note(Kind.JOIN, theirs.rank, mine.version, theirs.version)
            mine.begin()
            for x, y in ((mine.vector, theirs.vector), *memory):
                x.copy_(y)
            mine.end()
        finally:
            second.lock.release()
    finally:
        first.lock.release()


def mend(rows: Iterable[Row]) -> tuple[int, ...]:
    """Make the versions of rows even that a writer has left half written; which these are.

    Rows being written just now are not looked at: a writer mends what it finds.
    """
    torn = []
    for row in rows:
        if row.lock.try_acquire():
            try:
                if row.torn:
                    row.end()
                    torn.append(row.rank)
            finally:
                row.lock.release()
    return tuple(torn)


def _in_order(mine: Row, theirs: Row) -> tuple[Row, Row]:
    return (mine, theirs) if mine.rank < theirs.rank else (theirs, mine)


def _mix(mine: Row, theirs: Row, request: Exchange) -> int:
    """Under both locks."""
    mixing = RowExchange(mine, theirs, request)
    for number in range(len(mine.parts)):
        mixing.chunk(number)
    return mixing.end()


class RowExchange:
    """An exchange under way, under both locks, from here to `end`: every chunk in its turn."""

    def __init__(self, mine: Row, theirs: Row, request: Exchange) -> None:
        mine.trace.note(Kind.EXCHANGE, theirs.rank, mine.version, theirs.version)
        self.mine, self.theirs, self.request = mine, theirs, request
        self._rule: Callable[..., None] = request.rule
        if request.since is not None:
            self._rule = partial(self._rule, age=theirs.version - request.since)
        private = [slices(vector) for vector in request.private]
        self._slices = list(zip(mine.parts, theirs.parts, *private, strict=True))
        # Then theirs is brought to the device of mine, and back.
        self._apart = mine.vector.device != theirs.vector.device
        mine.begin()
        theirs.begin()

    def chunk(self, number: int) -> None:
        """Apply the rule to one chunk of both rows."""
        if self._apart:
            mine, there, *private = self._slices[number]
            theirs = there.to(mine.device)
            self._rule(mine, theirs, *private)
            there.copy_(theirs)
        else:
            self._rule(*self._slices[number])

    def end(self) -> int:
        """All chunks are done; the version of their row."""
        self.mine.end()
        self.theirs.end()
        return self.theirs.version


@dataclass(frozen=True)
class DeferredExchange:
    """An exchange that was begun, to be done in the same pass over the row as the next step."""

    request: Exchange
    theirs: Row
    there: Callable[[], bool]  # does the peer live?
    handle: Handle[int | None]


class LearnerState(Me):
    """Implements `core.state.Me` over a row, wherever the row lives.

    Snapshots are copies into `snapshot` (P,), or, where that is None, the row itself: for strategies under which nobody
    else writes a learner's row, and it does not itself before the gradient is there.
    """

    update_row: Callable[[Gradient], bool] | None = None
    """Updates the row as a whole, under its lock, in place of the optimizer. True: the snapshot is it, too."""
    deferred: DeferredExchange | None = None

    def __init__(
        self,
        rank: int,
        learners: int,
        seed: int,
        row: Row,
        snapshot: Tensor | None,
        gradient: Tensor,
        optimizer: LocalOptimizer,
        memory: Mapping[str, Tensor],
        steps: NDArray[np.int64],
        counts: Counts,
        scalars: NDArray[np.float64],
        minibatches_a_round: int = 1,
    ) -> None:
        self.rank, self.learners, self.seed = rank, learners, seed
        self._optimizer, self._minibatches_a_round = optimizer, minibatches_a_round
        self.row, self.gradient_buffer, self.counts = row, gradient, counts
        self._learning_rate, self._living, self._count_steps = 0.0, self.everyone, True
        self._snapshot, self._snapshot_version = row.vector if snapshot is None else snapshot, -1
        self._snapshot_parts = [] if snapshot is None else slices(snapshot)
        kept = {name: slices(memory[name]) for name in optimizer.memory}
        memory_parts = [{name: kept[name][number] for name in kept} for number in range(len(row.parts))]
        self._update = optimizer.attach(row.parts, memory_parts, scalars)
        self._steps, self._memory = steps, memory

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.learners))

    @property
    def steps(self) -> int:
        return int(self._steps[self.rank])

    @property
    def x(self) -> Tensor:
        return self.row.vector

    @property
    def memory(self) -> Mapping[str, Tensor]:
        return self._memory

    @property
    def minibatches_a_round(self) -> int:
        return self._minibatches_a_round

    @property
    def momentum(self) -> Mapping[str, Tensor]:
        return {name: self._memory[name] for name in self._optimizer.momentum_vectors}

    def reset_momentum(self) -> None:
        self._optimizer.reset_momentum(self._memory)

    def share_after_reset(self, steps: int) -> float:
        return self._optimizer.share_after_reset(steps)

    @property
    def living(self) -> tuple[int, ...]:
        return self._living

    @property
    def centre(self) -> int:
        return self.learners

    @property
    def learning_rate(self) -> float:
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        """Where somebody else's schedule says it."""
        self._learning_rate = rate

    def begin_segment(self, plan: SegmentPlan, living: tuple[int, ...], ages: str) -> None:
        """Forget the snapshot: between segments the row, and what the optimizer remembers, may have been replaced from
        outside."""
        self._plan, self._learning_rate = plan, plan.rate(plan.first_round)
        self._living, self._count_steps, self._snapshot_version, self.deferred = living, ages == "row", -1, None
        self._update.begin()

    def drawn(self, batch: Minibatch) -> None:
        """Steps are taken at the learning rate of the round that `batch`, drawn last, belongs to.

        A minibatch without number, which only completes the draw of a group, belongs to none.
        """
        if batch.index >= 0:
            self._learning_rate = self._plan.rate(batch.index // self.learners)

    def snapshot(self) -> Snapshot:
        if self._snapshot_version != self.row.version:
            self.row.lock.acquire()
            try:
                self._take_snapshot()
                self._snapshot_version = self.row.version
            finally:
                self.row.lock.release()
        self.row.trace.note(Kind.READ, mine=self._snapshot_version)
        return Snapshot(self._snapshot, self._snapshot_version)

    def _take_snapshot(self) -> None:
        if self._snapshot.device != self.row.vector.device:
            self._snapshot.copy_(self.row.vector)
            return
        for copy, x in zip(self._snapshot_parts, self.row.parts, strict=False):
            copy.copy_(x)

    def step(self, gradient: Gradient) -> None:
        row = self.row
        row.lock.acquire()
        try:
            deferred = self._meet()
            try:
                stale = self._update_row(gradient, deferred)
            finally:
                if deferred is not None:
                    deferred.theirs.lock.release()
        finally:
            row.lock.release()
        self._steps[self.rank] += 1
        self.counts.steps[self.rank] += 1
        if self._count_steps:
            self.count_age(stale)

    def _meet(self) -> DeferredExchange | None:
        """Under the row's lock: the exchange that was put off, if it can be done now, with the other row's lock.

        That lock is only tried: learners who hold their own row wait for nobody.
        """
        found = self.deferred
        if found is None:
            return None
        if not found.there():
            self.row.trace.note(Kind.GONE, found.theirs.rank)
            found.handle.finish(None)
            self.deferred = None
            return None
        if not found.theirs.lock.try_acquire():
            return None
        self.deferred = None
        if self.row.away or found.theirs.away:  # for longer than a step perhaps: the next exchange is with another
            found.theirs.lock.release()
            found.handle.finish(None)
            return None
        return found

    def _update_row(self, gradient: Gradient, deferred: DeferredExchange | None) -> int:
        """Under the lock: exchange, update and snapshot for the next gradient, in one pass over the row, since each
        chunk is in cache still; how many versions old the gradient was."""
        row, g, rate, exchanging = self.row, gradient.vector, self._learning_rate, 0.0
        mixing = RowExchange(row, deferred.theirs, deferred.request) if deferred is not None else None
        if mixing is None:
            row.begin()
        if self.update_row is not None:
            if mixing is not None:
                for number in range(len(row.parts)):
                    mixing.chunk(number)
            if not self.update_row(gradient):
                self._take_snapshot()
        for number, part in enumerate(slices(g) if self.update_row is None else ()):
            if mixing is not None:
                started = time.perf_counter()
                mixing.chunk(number)
                exchanging += time.perf_counter() - started
            self._update.update_(number, part, rate)
            if self._snapshot_parts:
                self._snapshot_parts[number].copy_(row.parts[number])
        if mixing is not None and deferred is not None:
            version = mixing.end()
            self.count_exchange(deferred.request, version)
            deferred.handle.finish(version)
            row.begin()
        row.trace.note(Kind.STEP, mine=row.version)
        self._update.end()
        stale = row.version - gradient.version
        self._snapshot_version = row.version + 1
        row.end()
        self.counts.exchange_s[self.rank] += exchanging  # the runtime counts the whole step as an update
        self.counts.update_s[self.rank] -= exchanging
        return stale

    def count_age(self, stale: int) -> None:
        """One more gradient, or report to the centre, that was `stale` versions old when it was applied."""
        self.counts.staleness[self.rank, min(stale, STALENESS_BINS - 1)] += 1
        self.counts.stalest[self.rank] = max(stale, int(self.counts.stalest[self.rank]))
        self.counts.stale_sum[self.rank] += stale

    def count_exchange(self, request: Exchange, version: int) -> None:
        """An exchange that left the peer's row at `version`."""
        self.counts.exchanges[self.rank, request.peer] += 1
        if request.since is not None and not self._count_steps:
            self.count_age(version - 1 - request.since)

    def replace(self, vector: Tensor) -> None:
        with self.row.writing():
            self.row.trace.note(Kind.REPLACE, mine=self.row.version)
            for mine, part in zip(self.row.parts, slices(vector), strict=True):
                mine.copy_(part)

    def count(self, statistics: Statistics) -> None:
        """Add a trained minibatch to this learner's counts."""
        self.counts.frames[self.rank] += statistics.frames
        self.counts.loss[self.rank] += statistics.loss
        self.counts.correct[self.rank] += statistics.correct
