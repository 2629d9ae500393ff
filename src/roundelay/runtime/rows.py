"""Rows: public parameters with a version, and the operations on one or two of them that are atomic.

The rule of every effect on another's row is here once (`REACH_RULES`), and every runtime goes by it: which rows it
reads and writes, under which locks, its work on a chunk, the vectors it carries there and back, and how it is recorded.

A deferred exchange, begun by the strategy, is done in the same pass over the row as the learner's next step: each chunk
is in cache then, and no learner waits for the exchange before that. The engine puts it here (`engine.py`), the step of
the learner's state takes it (`learner_state.py`), or the engine withdraws it when the strategy waits for it.

Legend: P parameters.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from roundelay.algorithms.averaging import shares_of
from roundelay.core.codec import FP32, Codec
from roundelay.core.effects import Exchange, Fetch, Handle, Reach
from roundelay.core.flat import WHOLE, slices
from roundelay.runtime.coding import CodedRule, memory_of
from roundelay.runtime.trace import NO_TRACE, Access, Kind, Trace, Use

MOST_KNOWN = 64
"""Most other learners whose shares a row keeps. Of more, those with the same remainder share a place, in which the last
one met stands for all."""


def others_known(learners: int) -> int:
    """Return the length of `Row.others` among `learners` learners."""
    return min(learners, MOST_KNOWN)


class Lock(ABC):
    """Mutual exclusion, for a row or the work queue; held in the body of a `with`."""

    @abstractmethod
    def try_acquire(self) -> bool:
        """Take the lock if it is free; return True if so."""

    @abstractmethod
    def acquire(self) -> None:
        """Wait for the lock, and take it.

        Raises:
            TimeoutError: the lock's holder does not release it.
        """

    @abstractmethod
    def release(self) -> None:
        """Release the lock, which the caller holds."""

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class NoLock(Lock):
    """A lock that does nothing, for runtimes in which only one thing happens at a time."""

    def try_acquire(self) -> bool:
        return True

    def acquire(self) -> None: ...

    def release(self) -> None: ...


class Row:
    """A learner's public parameters (P,) with a version that every mutation raises.

    The version lives in `versions[rank]` as a count of half mutations: odd while one is under way, so that a writer
    killed in the middle leaves a trace. `away[rank]`, with several hosts, is the number of the exchange with another
    host that the row is just in, or 0; meanwhile the row takes part in no other exchange
    (runtime/hosts/exchange/carrier.py). `trace` takes the notes of the row's own learner.
    """

    memory: Mapping[str, Tensor] = MappingProxyType({})
    """Vectors (P,) that the row's learner keeps for its strategy, by name."""
    mass: NDArray[np.float64] | None = None
    """One number, the row's mass, also guarded by its lock: it gives the row's weight in exchanges that weigh rows
    (`Exchange.decay`), below 0 where it has a mark (algorithms/averaging.py); None: the strategy weighs no rows."""
    others: NDArray[np.float64] | None = None
    """(`others_known`,), beside the mass: of each learner, by rank, its share in the pair with this row when this row's
    learner last asked it for an exchange; 0: it has not asked since the segment began, or that row follows this one; 1:
    this row follows that one."""
    steep: bool = False
    """True: the next step marks the row's mass."""

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
        self._versions, self._away = versions, away

    def at(self, vector: Tensor) -> "Row":
        """Return the same row whose parameters are in `vector` (P,), for one thread that has its lock."""
        found = Row(self.rank, vector, self._versions, NoLock(), self._away, self.trace)
        found.memory, found.mass, found.others, found.steep = self.memory, self.mass, self.others, self.steep
        return found

    @cached_property
    def parts(self) -> list[Tensor]:
        """Views of the row's chunks, made when asked for: most rows of a process are used whole, or never."""
        return slices(self.vector)

    @property
    def version(self) -> int:
        """Number of mutations so far."""
        return int(self._versions[self.rank]) // 2

    @property
    def weight(self) -> float:
        """The row's mass; read it under the lock.

        Raises:
            ValueError: the row has no mass.
        """
        if self.mass is None:
            raise ValueError(f"an exchange weighs row {self.rank}, which has no mass: its strategy must be `weighed`")
        return float(self.mass[0])

    def worked(self) -> None:
        """Note, under the lock, that the row's learner has taken a step."""
        if self.mass is not None:
            steps = abs(self.mass[0]) + 1
            self.mass[0] = -steps if self.steep else steps

    def meets(self, peer: int, share: float) -> None:
        """Note, under the lock, this row's `share` of the two in an exchange that its learner asked row `peer` for."""
        if self.others is not None:
            self.others[peer % len(self.others)] = 1 - share

    def forget_others(self) -> None:
        """Forget, under the lock, the shares of other learners, as a segment begins."""
        if self.others is not None:
            self.others[:] = 0

    def forget_work(self) -> None:
        """Set the row's mass to 0, under the lock, as it becomes a copy of a model on which its learner has not
        worked."""
        if self.mass is not None:
            self.mass[0] = 0

    def fade(self, weight: float, factor: float) -> None:
        """Multiply by `factor`, under the lock, the part `weight` of the row's mass that took part in an exchange.
        Steps since then count in full, so the order of steps and exchange does not matter."""
        if self.mass is not None:
            left = abs(self.mass[0]) - abs(weight) * (1 - factor)
            self.mass[0] = math.copysign(left, self.mass[0])

    @property
    def torn(self) -> bool:
        """True, while the lock is free, if a writer died in the middle of a mutation."""
        return bool(self._versions[self.rank] % 2)

    @property
    def away(self) -> bool:
        """True, read under the lock, if the row is in the middle of an exchange with another host."""
        return self._away is not None and bool(self._away[self.rank])

    def check_out(self, lease: int) -> None:
        """Note, under the lock, that the row is in flight from now on, under the lease of that number."""
        assert self._away is not None
        self._away[self.rank] = lease

    def check_in(self, lease: int) -> bool:
        """Note that the row is no longer in flight under that lease; hold the lock if the row is then changed. Return
        False if that had ended before: the row has become another learner's, or its peer is dead."""
        assert self._away is not None
        if self._away[self.rank] != lease:
            return False
        self._away[self.rank] = 0
        return True

    def begin(self) -> None:
        """Begin a mutation, under the lock; after one that was cut short, first make the version even."""
        self._versions[self.rank] += 1 + self._versions[self.rank] % 2

    def end(self) -> None:
        """End a complete mutation, under the lock."""
        self._versions[self.rank] += 1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the row's lock for one mutation."""
        with self.lock:
            self.begin()
            yield
            self.end()


def adopt(mine: Row, theirs: Row, memory: Sequence[tuple[Tensor, Tensor]] = (), trace: Trace = NO_TRACE) -> None:
    """Overwrite row `mine`, atomically, by row `theirs`, and each first vector of `memory` by the second; the memory of
    a row changes only with the row. `trace` records this."""
    with _locked(mine, theirs):
        trace.note(Kind.JOIN, theirs.rank, mine.version, theirs.version)
        mine.begin()
        for x, y in ((mine.vector, theirs.vector), *memory):
            x.copy_(y)
        mine.forget_work()
        mine.end()


def mend(rows: Iterable[Row]) -> tuple[int, ...]:
    """Make even the versions of rows that a dead writer has left half written; return their ranks.

    Rows being written now are skipped, since a writer mends its row.
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


@contextmanager
def _locked(*rows: Row) -> Iterator[None]:
    """Hold the locks of all rows.

    Lock order: the lower rank first, for any caller, so that no circle of learners can wait for each other: there is no
    deadlock.
    """
    held: list[Row] = []
    try:
        for row in sorted(rows, key=lambda row: row.rank):
            row.lock.acquire()
            held.append(row)
        yield
    finally:
        for row in reversed(held):
            row.lock.release()


# Effects on the row of another ----------------------------------------------------------------------------------------

ChunkWork = Callable[[int], object]
"""Function that performs an effect on one chunk of the rows, given its number."""


@final
@dataclass(frozen=True)
class ReachRule:
    """The rule of one kind of `Reach`: all that runtimes must know to perform such an effect."""

    # the rows it reads or writes. Their locks are held, and their versions recorded; written ones have a version more
    # afterwards, and must not be away.
    access: Access
    # `prepare(mine, theirs, effect)`, under the locks and before anything is changed: a function that does the effect
    # to one chunk. It may be called for one chunk after the other, between other work on them.
    prepare: Callable[[Row, Row, Any], ChunkWork]
    # `carried(effect)`: the codecs of the vectors (P,) that go to the peer, and that come back; None: no vector, as in
    # a mere request. The simulator prices them.
    carried: Callable[[Any], tuple[Codec | None, Codec | None]]
    kind: Kind = Kind.REACH  # the kind of its record in a trace


def _prepare_exchange(mine: Row, theirs: Row, request: Exchange) -> ChunkWork:
    rule: Callable[..., None] = request.rule
    if request.since is not None:
        rule = partial(rule, age=theirs.version - request.since)
    if request.decay is not None:
        rule = partial(rule, share=_weighed(mine, theirs, request.decay))
    given = [*request.private, *(_remembered(theirs, name) for name in request.theirs)]
    private: list[Sequence[Tensor | None]] = [slices(vector) for vector in given]
    if not request.codec.exact:
        rule = CodedRule(request, rule).apply
        for row in (mine, theirs):
            error = memory_of(request.codec, row.memory)
            private.append([None] * len(row.parts) if error is None else slices(error))
    elif any(vector.device != mine.vector.device for vector in (theirs.vector, *given)):
        rule = partial(_brought, rule)
    chunks: list[Any] = list(zip(mine.parts, theirs.parts, *private, strict=True))
    if request.fragment != WHOLE:
        return _within(request.fragment.within(len(mine.vector)), rule, chunks)
    return lambda number: rule(*chunks[number])


def _weighed(mine: Row, theirs: Row, decay: tuple[float, float]) -> float:
    """Return the share of `mine` in the two rows, and let their masses fade by `decay`."""
    weights = mine.weight, theirs.weight
    for row, weight, factor in zip((mine, theirs), weights, decay, strict=True):
        row.fade(weight, factor)
    share = shares_of(weights)[0]
    mine.meets(theirs.rank, share)
    return share


def _within(fragment: slice, rule: Callable[..., None], chunks: Sequence[Sequence[Tensor]]) -> ChunkWork:
    """Return a function that applies `rule` to those elements of a chunk, given by number, that are in `fragment`."""
    met, first = list[list[Tensor]](), 0
    for vectors in chunks:
        size = len(vectors[0])
        start, stop = max(fragment.start - first, 0), min(fragment.stop - first, size)
        met.append([vector[start:stop] for vector in vectors] if start < stop else [])
        first += size
    return lambda number: rule(*met[number]) if met[number] else None


def _remembered(row: Row, name: str) -> Tensor:
    """Return the vector (P,) named `name` in a row's memory.

    Raises:
        ValueError: the row has no such vector.
    """
    if name not in row.memory:
        raise ValueError(f"an exchange asks for {name!r} of row {row.rank}, which remembers {', '.join(row.memory)}")
    return row.memory[name]


def _brought(rule: Callable[..., None], mine: Tensor, *others: Tensor) -> None:
    """Apply the rule on the device of `mine`: the other vectors are copied there, and back."""
    here = [other.to(mine.device) for other in others]
    rule(mine, *here)
    for other, vector in zip(others, here, strict=True):
        if vector is not other:
            other.copy_(vector)


def _prepare_fetch(mine: Row, theirs: Row, request: Fetch) -> ChunkWork:
    chunks = list(zip(slices(request.into), theirs.parts, strict=True))

    def copy(number: int) -> None:
        into, x = chunks[number]
        into.copy_(x)

    return copy


REACH_RULES: dict[type[Reach], ReachRule] = {
    Exchange: ReachRule(
        Access(Use.WRITTEN, Use.WRITTEN), _prepare_exchange, lambda effect: (effect.codec, effect.codec), Kind.EXCHANGE
    ),
    Fetch: ReachRule(Access(theirs=Use.READ), _prepare_fetch, lambda effect: (None, FP32), Kind.FETCH),
}
"""The rule of every kind of `Reach`, whose rows are those of `Row` wherever they live. The engine and all runtimes of
one host go by it; another host can be asked for effects that its messages can express
(procs/coordination/outbox.py)."""


def reach(mine: Row, theirs: Row, effect: Reach) -> int | None:
    """Perform an effect atomically on two rows; return the version of `theirs` afterwards. Do nothing and return None
    if a row that the effect writes is in flight."""
    access = REACH_RULES[type(effect)].access
    met = [row for row, use in ((mine, access.mine), (theirs, access.theirs)) if use]
    with _locked(*met):
        if (access.mine is Use.WRITTEN and mine.away) or (access.theirs is Use.WRITTEN and theirs.away):
            mine.trace.note(Kind.AWAY, theirs.rank)
            return None
        under_way = RowOperation(mine, theirs, effect)
        under_way.all_chunks()
        return under_way.end()


@final
class RowOperation:
    """An effect on two rows that is done chunk by chunk, with the rows' locks held from its creation to `end`."""

    def __init__(self, mine: Row, theirs: Row, effect: Reach) -> None:
        rule = REACH_RULES[type(effect)]
        my_use, their_use = rule.access
        mine.trace.note(
            rule.kind,
            theirs.rank,
            mine.version if my_use else -1,
            theirs.version if their_use else -1,
            rule.access.number if rule.kind is Kind.REACH else 0.0,
        )
        self._theirs = theirs
        self._written = [row for row, use in ((mine, my_use), (theirs, their_use)) if use is Use.WRITTEN]
        self.chunk = rule.prepare(mine, theirs, effect)
        """Does the effect to one chunk of both rows, by its number."""
        for row in self._written:
            row.begin()

    def all_chunks(self) -> None:
        """Perform the effect on all chunks of both rows."""
        for number in range(len(self._theirs.parts)):
            self.chunk(number)

    def end(self) -> int:
        """End the operation after all its chunks; return the version of the peer's row."""
        for row in self._written:
            row.end()
        return self._theirs.version


@dataclass(frozen=True)
class DeferredExchange:
    """A deferred exchange: the request, the row of the peer, a function `lives` that says if the peer is alive when the
    exchange could be done, and the strategy's handle."""

    request: Exchange
    theirs: Row
    lives: Callable[[], bool]
    handle: Handle[int | None]


class Deferred:
    """A place for one deferred exchange at a time."""

    def __init__(self) -> None:
        self._waiting: DeferredExchange | None = None

    @property
    def occupied(self) -> bool:
        """True if an exchange is waiting here."""
        return self._waiting is not None

    def put(self, exchange: DeferredExchange) -> None:
        """Let an exchange wait here for the next step; the place must be free."""
        assert self._waiting is None
        self._waiting = exchange

    def clear(self) -> None:
        """Drop the waiting exchange, as a segment begins."""
        self._waiting = None

    def withdraw(self, handle: Handle[int | None] | None = None) -> DeferredExchange | None:
        """Remove the waiting exchange, so that no step does it, and return it (None: there is none); with `handle`,
        only if the exchange is that of the handle."""
        found = self._waiting
        if found is None or (handle is not None and found.handle is not handle):
            return None
        self._waiting = None
        return found

    def take(self, mine: Row) -> DeferredExchange | None:
        """Take the waiting exchange out of this place, if it can be done now, with the peer row's lock taken; the
        caller holds the lock of its own row, `mine`. None: there is no exchange to do.

        The peer's lock is only tried: a learner that holds its own row waits for no other, so there is no lock order to
        keep and no deadlock.
        """
        found = self._waiting
        if found is None:
            return None
        if not found.lives():
            mine.trace.note(Kind.GONE, found.theirs.rank)
            self._void(found)
            return None
        if not found.theirs.lock.try_acquire():
            return None
        if mine.away or found.theirs.away:  # for longer than a step perhaps: the next exchange is with another
            found.theirs.lock.release()
            mine.trace.note(Kind.AWAY, found.theirs.rank)
            self._void(found)
            return None
        self._waiting = None
        return found

    def _void(self, found: DeferredExchange) -> None:
        self._waiting = None
        found.handle.finish(None)
