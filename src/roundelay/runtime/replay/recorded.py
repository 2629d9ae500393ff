"""Recorded events of one learner, taken one by one by whoever repeats it; and the state of a learner that does."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor

from roundelay.algorithms.local_update import LocalOptimizer
from roundelay.core.effects import Reach
from roundelay.core.state import Gradient, Snapshot
from roundelay.runtime.learner_state import LearnerPlace, LearnerState, LearnerTables, LearnerVectors
from roundelay.runtime.learners_rate import RateFactor
from roundelay.runtime.replay.baton import Differs
from roundelay.runtime.rows import REACH_RULES
from roundelay.runtime.trace import Kind, TraceEvent

BEFORE = (Kind.BEGIN, Kind.JOIN)
"""Events that come before the first effect."""


class Recorded(ABC):
    """The events of learner `rank`, taken one by one. Also the trace of its engine, whose notes must be these."""

    def __init__(self, rank: int, events: Iterable[TraceEvent]) -> None:
        self.rank, self._events = rank, iter(events)
        self.next = next(self._events, None)
        """The next event, not taken."""
        self.seen = 0
        """Events taken so far."""

    @abstractmethod
    def wait(self, event: TraceEvent) -> None:
        """Wait until the rows that the next event touches are at its versions, and nobody has still to read what it
        overwrites.

        Raises:
            Differs: that will never be.
        """

    @abstractmethod
    def is_taken(self, event: TraceEvent) -> None:
        """Hear that the event was taken."""

    @abstractmethod
    def changed(self) -> None:
        """Note that a row has changed, or was read: what was taken last is done, and others may go on."""

    @abstractmethod
    def over(self, wanted: str) -> BaseException:
        """Return the error for whoever wants an event of a learner that did nothing more."""

    def next_is(self, *kinds: Kind) -> bool:
        """Return True if the next event is one of these."""
        return self.next is not None and self.next.kind in kinds

    def look(self, *kinds: Kind) -> TraceEvent:
        """Return the next event, not taken, which must be one of `kinds`.

        Raises:
            Differs: it is not.
        """
        event, wanted = self.next, " or ".join(kind.name.lower() for kind in kinds)
        if event is None or (event.kind in BEFORE and event.kind not in kinds):
            raise self.over(wanted)
        if event.kind not in kinds:
            raise self.differs(event, wanted)
        return event

    def take(self, *kinds: Kind, cached: bool = False) -> TraceEvent:
        """Return the next event, which must be one of `kinds`, once the rows it touches are at its versions; at once
        where it needs only what the learner has a copy of, `cached`.

        Raises:
            Differs: it is not, or nobody can go on.
        """
        event = self.look(*kinds)
        if not cached:
            self.wait(event)
        self.next = next(self._events, None)
        self.seen += 1
        self.is_taken(event)
        return event

    def take_reach(self, effect: Reach) -> None:
        """Take the event of an effect on the row of another.

        Raises:
            Differs: it is another.
        """
        rule = REACH_RULES[type(effect)]
        event = self.look(rule.kind)
        if (event.peer, event.access) != (effect.peer, rule.access):
            raise self.differs(event, f"{type(effect).__name__.lower()} of row {effect.peer}")
        self.take(rule.kind)

    def note(self, kind: Kind, peer: int = -1, mine: int = -1, theirs: int = -1, value: float = 0.0) -> None:
        """Check that an engine's note is the next event.

        Raises:
            Differs: it is not.
        """
        event = self.take(kind)
        both_nan = np.isnan(event.value) and np.isnan(value)
        if (event.peer, event.mine, event.theirs) != (peer, mine, theirs) or (event.value != value and not both_nan):
            raise self.differs(event, str(TraceEvent(kind, peer, mine, theirs, value)))

    def differs(self, event: TraceEvent, now: str) -> Differs:
        """Return the error for the first difference, which is here."""
        return Differs(f"learner {self.rank}, its event {self.seen}: recorded: {event}; now: {now}")


class RecordedState(LearnerState):
    """A learner's state whose operations wait for their turn.

    Args:
        finish_deferred: does the deferred exchange, which no step takes from its place: it waits for a turn of its own.
    """

    def __init__(
        self,
        recorded: Recorded,
        finish_deferred: Callable[[], None],
        place: LearnerPlace,
        vectors: LearnerVectors,
        optimizer: LocalOptimizer,
        tables: LearnerTables,
        update: Callable[[Gradient], bool] | None = None,
        rate: RateFactor | None = None,
    ) -> None:
        super().__init__(place, vectors, optimizer, tables, update, rate=rate)
        self._recorded, self._finish_deferred = recorded, finish_deferred

    def snapshot(self) -> Snapshot:
        recorded = self._recorded
        event = recorded.look(Kind.READ)
        cached = self._snapshot_version == event.mine
        recorded.take(Kind.READ, cached=cached)
        found = Snapshot(self._snapshot.vector, event.mine) if cached else super().snapshot()
        recorded.changed()
        return found

    def step(self, gradient: Gradient) -> None:
        recorded = self._recorded
        if recorded.next_is(Kind.EXCHANGE, Kind.GONE, Kind.AWAY):
            self._finish_deferred()
        recorded.take(Kind.STEP)
        super().step(gradient)
        recorded.changed()

    def replace(self, vector: Tensor) -> None:
        self._recorded.take(Kind.REPLACE)
        super().replace(vector)
        self._recorded.changed()

    def change(self, change: Callable[[Tensor], None]) -> None:
        self._recorded.take(Kind.REPLACE)
        super().change(change)
        self._recorded.changed()
