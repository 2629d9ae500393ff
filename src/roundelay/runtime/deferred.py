"""A deferred exchange: begun by the strategy, done in the same pass over the row as the learner's next step.

Each chunk is in cache then, and nobody waits for the exchange before that. The engine puts it here (`engine.py`), the
step of the learner's state takes it (`learner_state.py`), or the engine withdraws it when the strategy waits for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from roundelay.core.effects import Exchange, Handle
from roundelay.runtime.rows import Row
from roundelay.runtime.trace import Kind


@dataclass(frozen=True)
class DeferredExchange:
    """One of them: the row of the peer, and whether the peer `lives`, asked when the exchange could be done."""

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
        """Let it wait for the next step; only where none is waiting."""
        assert self._waiting is None
        self._waiting = exchange

    def clear(self) -> None:
        """Drop it: a segment begins."""
        self._waiting = None

    def withdraw(self, handle: Handle[int | None] | None = None) -> DeferredExchange | None:
        """Return the waiting exchange, which is not to be done in a step any more; with `handle`, only if it is that
        one."""
        found = self._waiting
        if found is None or (handle is not None and found.handle is not handle):
            return None
        self._waiting = None
        return found

    def take(self, mine: Row) -> DeferredExchange | None:
        """Return the exchange, if it can be done now, with the other row's lock held; the caller holds its own row's.

        That lock is only tried: a learner that holds its own row waits for no other, so there is no lock order to keep
        and no deadlock.
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
