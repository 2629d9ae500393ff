"""State shared by the learners of a repeated command: rows, versions, counters, means, and reads still to come.

Means are taken in the host's memory, in the order in which learners take part, as recorded.

Legend: P parameters, L learners.
"""

import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor

from roundelay.algorithms.averaging import weighted_mean
from roundelay.algorithms.local_update import LocalOptimizer
from roundelay.core.effects import Exchange, Gather, Reach
from roundelay.core.errors import UserError
from roundelay.core.progress import Progress
from roundelay.core.state import Gradient, Snapshot
from roundelay.learner.base import Learner
from roundelay.runtime.backend import RemoteRows
from roundelay.runtime.base import Cluster, ClusterState, Counts, SegmentPlan
from roundelay.runtime.learner_state import LearnerPlace, LearnerState, LearnerTables, LearnerVectors
from roundelay.runtime.learners_rate import RateFactor
from roundelay.runtime.rows import REACH_RULES, NoLock, Row, others_known
from roundelay.runtime.trace import Kind, TraceEvent, Use


class Differs(UserError):
    """The repetition differs from the recorded run; says where it first does."""


class _Abandoned(BaseException):
    """Ends a learner's thread after another learner's has failed."""


class Baton:
    """Passed between the threads of learners, by rank, and of rows between hosts, by ~rank. A thread that fails ends
    all others."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._stuck: dict[int, str] = {}
        self._failure: BaseException | None = None

    def run(self, learners: Sequence[tuple[int, Callable[[], None]]]) -> None:
        """Run all learners, given as (rank, its work), to their ends.

        Raises:
            Differs: no learner could go on. Errors of learners are raised too.
        """
        self._running = len(learners)
        threads = [threading.Thread(target=self._thread, args=learner) for learner in learners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _thread(self, rank: int, learner: Callable[[], None]) -> None:
        with self._condition:
            try:
                learner()
            except _Abandoned:
                pass
            except BaseException as error:
                self._failure = self._failure or error
            self._running -= 1
            self._stuck.pop(rank, None)
            self._notice_deadlock()
            self._condition.notify_all()

    def until(self, rank: int, ready: Callable[[], bool], what: str) -> None:
        """Pass the baton on until `ready()`; the caller, learner `rank`, has the baton before and after.

        Raises:
            Differs: no learner can go on.
        """
        while not ready():
            self._stuck[rank] = what
            self._notice_deadlock()
            if self._failure is None:
                self._condition.wait()
            self._stuck.pop(rank, None)
            if self._failure is not None:
                raise _Abandoned
        if self._failure is not None:
            raise _Abandoned

    def changed(self) -> None:
        """Note that something has happened that other learners may wait for."""
        self._stuck.clear()  # they look again
        self._condition.notify_all()

    def _notice_deadlock(self) -> None:
        if self._running and len(self._stuck) >= self._running and self._failure is None:
            named = {rank: f"learner {rank}" if rank >= 0 else f"row {~rank}" for rank in self._stuck}
            who = "; ".join(f"{named[rank]} waits for {what}" for rank, what in sorted(self._stuck.items()))
            self._failure = Differs(f"no learner can go on: {who}. An event is missing in the trace.")
            self._condition.notify_all()


def met_rows(event: TraceEvent, rank: int, *uses: Use) -> list[tuple[int, int]]:
    """Return (row, version) for the rows that an event of learner `rank` uses in one of the ways `uses`."""
    mine, theirs = event.access
    found = ((mine, (rank, event.mine)), (theirs, (event.peer, event.theirs)))
    return [place for use, place in found if use in uses]


@dataclass
class Done:
    """Counts of events and minibatches repeated so far."""

    progress: Progress
    events: int = 0
    minibatches: int = 0


@dataclass(frozen=True)
class RowDevice:
    """Device on which rows are updated; `resident` if learners compute there, and so need no copies."""

    device: torch.device
    resident: bool


class HostExchanges(Protocol):
    """Repeats exchanges between hosts: what they did to each of their rows."""

    def begin(self) -> None:
        """Hear that the processes which exchanged have begun, or begun anew."""

    def may(self, row: int, event: TraceEvent) -> bool:
        """Return True if the other half has done what comes before an event of `row`."""

    def do(self, row: Row, event: TraceEvent) -> None:
        """Do an event to a row, which is at its version."""

    def visit(self, request: int, effect: Exchange, mine: Row, centre: Row) -> None:
        """Do an exchange with the centre, for which the learner of row `mine` has asked by that request."""


class Stage:
    """State of the command `entry`, which began with `state`, changes it, and has these events by rank, and those of
    exchanges between hosts, `carried`, by row. Rows are updated at `rows_on`, where they were: every device rounds in
    its own way."""

    def __init__(
        self,
        cluster: Cluster,
        learner: Learner,
        entry: Mapping[str, Any],
        state: ClusterState,
        rows_on: RowDevice,
        events: Sequence[Sequence[TraceEvent]],
        carried: Sequence[Sequence[TraceEvent]],
        done: Done,
    ) -> None:
        self.cluster, self.learner, self.state, self.done = cluster, learner, state, done
        self.rows_on = rows_on
        self.vectors = {
            name: [one.to(rows_on.device) for one in value]
            for name, value in state.vectors.items()
            if name != "scalars"
        }
        """(P,) each, by name and row; in the host's memory they are the state's own."""
        self.segment = SegmentPlan.from_json(entry)
        self.living = tuple(entry["living"])
        self.versions = np.array(state.integers["versions"], np.int64)
        self.steps = np.array(state.integers["steps"], np.int64)
        none = torch.zeros(cluster.learners, cluster.scalars, dtype=torch.float64)
        self.scalars = state.vectors.get("scalars", none).numpy()
        self.counts = Counts.zeros(cluster.learners, cluster.centre)
        vectors = [*self.vectors["row"], *self.vectors.get("centre", ())]
        self.rows = [Row(rank, vector, self.versions, NoLock()) for rank, vector in enumerate(vectors)]
        for row in self.rows[: cluster.learners]:
            row.memory = {name: self.vectors[name][row.rank] for name in cluster.memory}
            if cluster.strategy.weighed:
                row.mass, row.others = self.scalars[row.rank, -1:], np.zeros(others_known(cluster.learners))
        if cluster.centre:
            self.rows[-1].memory = {own: self.vectors[name][0] for own, name in cluster.centre_vectors.items()}
        self.events = [deque(some) for some in events]
        self.baton = Baton()
        self.means = RecordedMeans(self.baton, cluster.learners)
        self.readers: Counter[tuple[int, int]] = Counter()
        """Learners that have still to read a version, by (row, version), before it may be overwritten."""
        for place, some in enumerate([*events, *carried]):
            for event in some:
                self.readers.update(met_rows(event, place % cluster.learners, Use.READ))

    def carry(self, row: int, events: Iterable[TraceEvent], exchanges: HostExchanges) -> None:
        """Do all that exchanges between hosts did to a row, each in its turn."""
        for number, event in enumerate(events, 1):
            ready = partial(self._is_turn, row, event, exchanges)
            self.baton.until(~row, ready, f"its event {number} between hosts, to {event}")
            exchanges.do(self.rows[row], event)
            self.taken(row, event)
            self.baton.changed()

    def _is_turn(self, row: int, event: TraceEvent, exchanges: HostExchanges) -> bool:
        return self.may(row, event) and exchanges.may(row, event)

    def may(self, rank: int, event: TraceEvent) -> bool:
        """Return True if the rows that an event of learner or row `rank` meets are at its versions, and no reader of
        what it overwrites is left."""
        read, written = (met_rows(event, rank, use) for use in (Use.READ, Use.WRITTEN))
        there = all(self.rows[row].version == version for row, version in read + written)
        return there and not any(self.readers[place] for place in written)

    def taken(self, rank: int, event: TraceEvent) -> None:
        """Hear that an event of learner or row `rank` has read what it reads."""
        self.done.events += 1
        self.readers.subtract(met_rows(event, rank, Use.READ))

    def end(self) -> None:
        """Write the counters, and vectors that were moved to a device, back into the state."""
        for name, moved in self.vectors.items():
            for home, here in zip(self.state.vectors[name], moved, strict=True):
                if here.device != home.device:
                    home.copy_(here)
        self.state.integers["versions"][:] = self.versions.tolist()
        self.state.integers["steps"][:] = self.steps.tolist()


Group = tuple[int, ...]
KEPT = 64
"""Number of last means whose published vectors a learner keeps for neighbours."""


@dataclass
class GroupMean:
    """A mean under way: vectors and weights by rank, and the mean (P,) once all have come."""

    vectors: dict[int, tuple[Tensor, float]] = field(default_factory=dict)
    mean: Tensor | None = None


class RecordedMeans:
    """The means of a replay, each taken when all learners of its group have given their vectors."""

    def __init__(self, baton: Baton, learners: int) -> None:
        self._baton = baton
        self._open: dict[tuple[Group, int], GroupMean] = {}
        self._counts = [Counter[Group]() for _ in range(learners)]
        self._numbers = [0] * learners
        self._published: dict[tuple[int, int], Tensor] = {}

    def give(self, rank: int, group: Group, vector: Tensor, weight: float) -> GroupMean:
        """Take part in the next mean of `group` with `vector` (P,) as it is now."""
        self._numbers[rank] += 1
        self._counts[rank][group] += 1
        key = group, self._counts[rank][group]
        found = self._open.setdefault(key, GroupMean())
        found.vectors[rank] = (vector.to("cpu", copy=True), weight)
        if len(found.vectors) == len(group):
            del self._open[key]
            given = [found.vectors[member] for member in group]
            found.mean = weighted_mean([v for v, _ in given], [w for _, w in given])
            self._baton.changed()
        return found

    def publish(self, rank: int, vector: Tensor) -> int:
        """Publish a copy of `vector` (P,) to neighbours; return its number."""
        self._numbers[rank] += 1
        number = self._numbers[rank]
        self._published[rank, number] = vector.to("cpu", copy=True)
        self._published.pop((rank, number - KEPT), None)
        self._baton.changed()
        return number

    def mix(self, rank: int, weights: Sequence[tuple[int, float]], number: int) -> Tensor:
        """Wait for the vectors that neighbours publish under `number`; return their mean (P,) by `weights`."""
        published, ranks = self._published, [other for other, _ in weights]
        self._baton.until(
            rank, lambda: all((other, number) in published for other in ranks), f"its neighbours in mix {number}"
        )
        return weighted_mean([published[other, number] for other in ranks], [weight for _, weight in weights])


BEFORE = (Kind.BEGIN, Kind.JOIN)
"""Kinds of events that may come before a learner's first effect."""


class Recorded(ABC):
    """The recorded events of learner `rank`, taken one by one. It is also the trace of the learner's engine, whose
    notes must equal them."""

    def __init__(self, rank: int, events: Iterable[TraceEvent]) -> None:
        self.rank, self._events = rank, iter(events)
        self.next = next(self._events, None)
        """The next event, not taken."""
        self.seen = 0
        """Events taken so far."""

    @abstractmethod
    def wait(self, event: TraceEvent) -> None:
        """Wait until the rows of the next event have its versions, and all earlier reads of rows that it overwrites are
        done.

        Raises:
            Differs: the rows never come to these versions.
        """

    @abstractmethod
    def is_taken(self, event: TraceEvent) -> None:
        """Note that an event was taken."""

    @abstractmethod
    def changed(self) -> None:
        """Note that the event taken last is done, since its row was changed or read: other learners may go on."""

    @abstractmethod
    def over(self, wanted: str) -> BaseException:
        """Return the error for a learner that wants an event after its last recorded one."""

    def next_is(self, *kinds: Kind) -> bool:
        """Return True if the next event is of one of `kinds`."""
        return self.next is not None and self.next.kind in kinds

    def look(self, *kinds: Kind) -> TraceEvent:
        """Return the next event, which must be of one of `kinds`, without taking it.

        Raises:
            Differs: it is of another kind.
        """
        event, wanted = self.next, " or ".join(kind.name.lower() for kind in kinds)
        if event is None or (event.kind in BEFORE and event.kind not in kinds):
            raise self.over(wanted)
        if event.kind not in kinds:
            raise self.differs(event, wanted)
        return event

    def take(self, *kinds: Kind, cached: bool = False) -> TraceEvent:
        """Take the next event, which must be of one of `kinds`, once the rows it touches have its versions; at once if
        `cached`, when the learner has a copy of all it needs.

        Raises:
            Differs: it is of another kind, or no learner can go on.
        """
        event = self.look(*kinds)
        if not cached:
            self.wait(event)
        self.next = next(self._events, None)
        self.seen += 1
        self.is_taken(event)
        return event

    def take_reach(self, effect: Reach) -> bool:
        """Take the event of an effect on the row of another. False: it did not happen, one of the two was away.

        Raises:
            Differs: the next event is another.
        """
        if self.next_is(Kind.AWAY):
            self.note(Kind.AWAY, effect.peer)
            return False
        rule = REACH_RULES[type(effect)]
        event = self.look(rule.kind)
        if (event.peer, event.access) != (effect.peer, rule.access):
            raise self.differs(event, f"{type(effect).__name__.lower()} of row {effect.peer}")
        self.take(rule.kind)
        return True

    def note(self, kind: Kind, peer: int = -1, mine: int = -1, theirs: int = -1, value: float = 0.0) -> None:
        """Check that an engine's note is the next event.

        Raises:
            Differs: the next event is another.
        """
        event = self.take(kind)
        both_nan = np.isnan(event.value) and np.isnan(value)
        if (event.peer, event.mine, event.theirs) != (peer, mine, theirs) or (event.value != value and not both_nan):
            raise self.differs(event, str(TraceEvent(kind, peer, mine, theirs, value)))

    def differs(self, event: TraceEvent, now: str) -> Differs:
        """Return the error that says that `event` is the first difference, and what happens `now`."""
        return Differs(f"learner {self.rank}, its event {self.seen}: recorded: {event}; now: {now}")


@final
class RepeatedRemote(RemoteRows):
    """The way to rows of learners that were on other hosts: asked as it was, and answered when it was.

    Args:
        here: rows of this one's host.
        answers: the looks that each answer took, in order; 0: it was waited for.
        reach: does an effect whose event is the next.
        visit: does an exchange with the centre, by the number of its request.
    """

    def __init__(
        self,
        events: Recorded,
        here: Sequence[int],
        answers: Iterator[int],
        reach: Callable[[Reach], int | None],
        visit: Callable[[Exchange, int], None],
    ) -> None:
        self._events, self._here, self._answers = events, here, answers
        self._reach, self._visit = reach, visit
        self._looks = self._looked = self._request = 0
        self._effect: Reach

    def takes(self, row: int) -> bool:
        return row not in self._here

    def moved(self, row: int) -> bool:
        return False

    def ask(self, effect: Reach | Gather) -> None:
        assert isinstance(effect, Reach)  # what has gatherings between hosts is not recorded
        event = self._events.look(Kind.ASKED)
        self._events.note(Kind.ASKED, effect.peer, event.mine)
        self._effect, self._request = effect, event.mine
        follows = self._events.next_is(Kind.VISITED, Kind.FETCH)
        self._looks, self._looked = 0 if follows else next(self._answers, 0), 0

    @property
    def through(self) -> bool:
        self._looked += 1
        return self._looked == self._looks

    def wait(self, peer: int) -> int | None:
        effect, event = self._effect, self._events.look(Kind.ANSWERED, Kind.VISITED, Kind.FETCH)
        if event.kind is Kind.FETCH:
            return self._reach(effect)
        if event.kind is Kind.VISITED:
            assert isinstance(effect, Exchange)
            self._events.take(Kind.VISITED)
            self._visit(effect, self._request)
            self._events.changed()
            return event.theirs + 1
        self._events.note(Kind.ANSWERED, peer, event.mine, event.theirs, event.value)
        self._events.changed()
        return None if event.theirs < 0 else event.theirs


def answers_of(events: Iterable[TraceEvent]) -> Iterator[int]:
    """Yield the looks that each answer of another host took."""
    return (int(event.value) for event in events if event.kind is Kind.ANSWERED)


class RecordedState(LearnerState):
    """A learner's state whose operations wait for their turn.

    Args:
        finish_deferred: does the deferred exchange, which here waits for a turn of its own and not for a step.
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
        cached = self.snapshot_version == event.mine
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
