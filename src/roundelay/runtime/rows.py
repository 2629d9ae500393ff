"""Rows: public parameters with a version, and the operations on one or two of them that are atomic.

Legend: P parameters.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from roundelay.core.effects import Exchange
from roundelay.core.flat import slices
from roundelay.runtime.coding import CodedRule, memory_of
from roundelay.runtime.trace import NO_TRACE, Kind, Trace


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
    `trace` takes the notes of the row's own learner.
    """

    memory: Mapping[str, Tensor] = MappingProxyType({})
    """Vectors (P,) that its learner keeps for its strategy, by name."""

    def __init__(
        self,
        rank: int,
        vector: Tensor,
        versions: NDArray[np.int64],
        lock: Lock,
        away: NDArray[np.int64] | None = None,
        trace: Trace = NO_TRACE,
    ) -> None:
        self.rank, self.vector, self.lock, self.trace = rank, vector, lock, trace
        self.parts = slices(vector)
        self._versions, self._away = versions, away

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
        """It is no longer in flight under that lease; under the lock, if the row is then changed. False if it was over
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

    Lock order: the lower rank first, whoever asks. All learners keep to it, so no circle of them can wait for each
    other, and there is no deadlock.
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


def adopt(mine: Row, theirs: Row, memory: Sequence[tuple[Tensor, Tensor]] = (), trace: Trace = NO_TRACE) -> None:
    """Overwrite row `mine`, atomically, by row `theirs`, and each first vector of `memory` by the second; what is
    remembered of a row changes only with it. `trace` takes the note of it."""
    first, second = _in_order(mine, theirs)
    first.lock.acquire()
    try:
        second.lock.acquire()
        try:
            trace.note(Kind.JOIN, theirs.rank, mine.version, theirs.version)
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
    mixing.all_chunks()
    return mixing.end()


class RowExchange:
    """An exchange under way, under both locks, from here to `end`: every chunk in its turn."""

    def __init__(self, mine: Row, theirs: Row, request: Exchange) -> None:
        mine.trace.note(Kind.EXCHANGE, theirs.rank, mine.version, theirs.version)
        self.mine, self.theirs, self.request = mine, theirs, request
        self._rule: Callable[..., None] = request.rule
        if request.since is not None:
            self._rule = partial(self._rule, age=theirs.version - request.since)
        private: list[Sequence[Tensor | None]] = [slices(vector) for vector in request.private]
        # Then theirs is brought to the device of mine, and back.
        self._apart = mine.vector.device != theirs.vector.device
        if not request.codec.exact:
            self._rule, self._apart = CodedRule(request, self._rule).apply, False
            for row in (mine, theirs):
                error = memory_of(request.codec, row.memory)
                private.append([None] * len(row.parts) if error is None else slices(error))
        self._slices: list[Any] = list(zip(mine.parts, theirs.parts, *private, strict=True))
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

    def all_chunks(self) -> None:
        """Apply the rule to both rows from beginning to end."""
        for number in range(len(self._slices)):
            self.chunk(number)

    def end(self) -> int:
        """All chunks are done; the version of their row."""
        self.mine.end()
        self.theirs.end()
        return self.theirs.version
