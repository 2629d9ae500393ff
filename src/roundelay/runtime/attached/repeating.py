"""A learner that repeats a recorded session: it does the recorded events in their turns, with gradients of the user's
loop, which runs again.

All learners are processes, as they were. The strategy's coroutine asks for the same effects; where the answer depended
on timing (which version of a row, which minibatch, which contributions counted), it is the recorded one. So the first
gradient that is not the recorded one is noticed by the learner that computed it, before it has changed any row.

Exchanges between hosts are repeated where all learners are on one: a thread of the first learner does the changes of
each row (hosts/exchange/repeated.py) in their turns (turns.py). So the answer to an exchange has no turn of its own to
wait for, but its rows have.

Legend: P parameters.
"""

import json
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from roundelay.algorithms.local_update import LocalOptimizer
from roundelay.core.effects import Exchange, Gather, Reach
from roundelay.core.errors import UserError
from roundelay.core.files import json_line
from roundelay.core.state import Gradient
from roundelay.runtime.attached.membership import CLOSED, MANNERS
from roundelay.runtime.attached.recording import Recording, SessionRecord, Unrecorded, row_digests, surroundings
from roundelay.runtime.attached.settings import said
from roundelay.runtime.attached.turns import Turns, TurnTables
from roundelay.runtime.backend import RemoteRows
from roundelay.runtime.hosts.exchange.repeated import RepeatedExchanges
from roundelay.runtime.hosts.terms import differing
from roundelay.runtime.launch.world import REPLAYED, path_in
from roundelay.runtime.learner_state import LearnerPlace, LearnerState, LearnerTables, LearnerVectors
from roundelay.runtime.procs.backend import ArenaBackend, LearnerWork
from roundelay.runtime.procs.coordination.means import PAUSES, Means
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.vectors import ArenaAccess, Vectors
from roundelay.runtime.replay.stage import Differs, Recorded, RecordedState, RepeatedRemote, answers_of, met_rows
from roundelay.runtime.rows import Deferred, Row
from roundelay.runtime.trace import (
    Kind,
    TraceEvent,
    Use,
    entries_of_host,
    read_entries,
    read_events,
    recorded_learners,
    session_folder,
    write_entry,
)

TURN_LOOK_SECONDS = 2e-4
"""Pause between two searches for events that can be done."""


class _LearnerGone(Exception):
    """Error: an event waits for a learner that has ended before the recorded event."""


@final
class Carrying(threading.Thread):
    """A thread that repeats the exchanges between hosts with all rows of a session. It ends when all are done, or when
    an exchange waits for a learner that is gone.

    Args:
        folder: the folder of the session's record.
    """

    failure = ""
    """A difference from the record, in words, if one was found: then nothing more is done."""

    def __init__(self, folder: Path, access: ArenaAccess, turns: Turns) -> None:
        super().__init__(name="exchanges between hosts", daemon=True)
        self._rows, self._turns = access.rows, turns
        self._tables, self._alive = access.arena.view(TurnTables), access.arena.liveness.alive
        self._learners = turns.learners
        self.exchanges, self._stopped = RepeatedExchanges(folder, turns.learners), False

    def done(self, actor: int) -> int:
        """Return the number of events that an actor has done."""
        done, carried = self._tables.done, self._tables.carried
        return int(done[actor] if actor < self._learners else carried[actor - self._learners])

    def stop(self) -> None:
        """End the thread after the event that it is doing."""
        self._stopped = True

    def run(self) -> None:
        try:
            queues = {row: self._turns.carried[row] for row in range(self._learners)}
            while not self._stopped and any(len(events) > self._tables.carried[row] for row, events in queues.items()):
                last = self._nobody_left()  # before the search for events that can be done
                if not sum(self._go_on(row, events) for row, events in queues.items()):
                    if last:
                        return
                    time.sleep(TURN_LOOK_SECONDS)
        except _LearnerGone:
            pass
        except Exception:
            self.failure = traceback.format_exc()
        finally:
            publish(self._tables.ended, 0, 1)

    def _nobody_left(self) -> bool:
        """Return True if all learners have begun, and none of them will do an event any more."""
        done, all_ = self._tables.done, self._turns.events
        return all(done[rank] and (not self._alive[rank] or done[rank] >= all_[rank]) for rank in range(self._learners))

    def _go_on(self, row: int, events: Sequence[TraceEvent]) -> bool:
        """Do those next events of a row whose turn it is; return False if there are none."""
        actor, first = self._learners + row, int(self._tables.carried[row])
        for number in range(first, len(events)):
            event = events[number]
            if not self._may(actor, event):
                return number > first
            if event.kind is not Kind.BIDDEN:
                self.exchanges.do(self._rows[row], event)
            publish(self._tables.carried, row, number + 1)
        return len(events) > first

    def _may(self, actor: int, event: TraceEvent) -> bool:
        """Return True if it is the turn of this event of an actor.

        Raises:
            _LearnerGone: its turn never comes, for a learner that it waits for is gone.
        """
        for other, earlier in self._turns.before(actor, event):
            gone = other < self._learners and self._tables.done[other] and not self._alive[other]
            if self.done(other) <= earlier:  # read after `gone`
                if gone:
                    raise _LearnerGone
                return False
        return True


log = logging.getLogger("roundelay")


@dataclass(frozen=True)
class RepeatedPlace:
    """Facts of one learner among those that repeat a session."""

    access: ArenaAccess
    number: int  # of the session in its script
    processes: int  # of each learner
    here: tuple[int, ...] | None  # the learners of this host, of several; None: there is one
    agreed: Mapping[str, Any]  # facts that its learners agree on now
    lost: Callable[[int], BaseException]  # the error for a learner that waits for one that has left
    finish_deferred: Callable[[], None]  # see `RecordedState`


def open_record(record: str | Path | None, repeats: Path | None, place: RepeatedPlace, late: bool) -> SessionRecord:
    """Return the record of a session: one that repeats the record `repeats`, if given; else one that is taken in the
    folder `record`; or one of no notes, without `record` or for a learner that is `late`.

    Args:
        repeats: the folder of the record that `roundelay replay` was given.
        late: the learner comes back to a session that runs.

    Raises:
        UserError: `record` has a record already; or that of `repeats` is missing, damaged, or of another session.
    """
    if record is None:
        return Unrecorded()
    if repeats is not None:
        return Repetition(session_folder(repeats, place.number), place)
    folder, rank = session_folder(Path(record), place.number), place.access.rank
    if late:
        write_entry(folder, "joined", entries_of_host(place.here), rank=rank)
        log.warning("rank %d has come back: the record in %s cannot be repeated.", rank, folder)
        return Unrecorded()
    return Recording(folder, rank, place.access.arena, place.agreed, place.here, place.processes)


@final
class RepeatedEvents(Recorded):
    """The recorded events of one learner, each in its turn among those of the others."""

    def __init__(self, folder: Path, place: RepeatedPlace, recorded: Mapping[str, Any]) -> None:
        access = place.access
        self.folder, self._recorded, self._lost = folder, recorded, place.lost
        self.turns = turns = Turns(folder, access.arena.layout.learners)
        self._tables, self._alive = access.arena.view(TurnTables), access.arena.liveness.alive
        self.carrying = Carrying(folder, access, turns)
        """Thread that repeats exchanges between hosts for all learners, run by the first."""
        if access.rank == 0 and any(turns.carried):
            self.carrying.start()
        self._patience, self._rows = access.patience, access.rows
        self.gradients, self.difference = 0, ""
        events = (event for event in read_events(folder, access.rank) if event.kind is not Kind.PIECE)
        super().__init__(access.rank, events)

    def wait(self, event: TraceEvent) -> None:
        turns = self.turns
        missing = turns.before(self.rank, event)

        def ready() -> bool:
            nonlocal missing
            self._check_carrying()
            gone = [actor for actor, _ in missing if self._is_gone(actor)]  # before its last is read
            missing = [(actor, number) for actor, number in missing if self.carrying.done(actor) <= number]
            if lost := [actor for actor, _ in missing if actor in gone]:
                raise self._lost(self._who_is_gone(lost[0]))
            return not missing

        if missing and not ready():
            what = f"its turn, to {event}"
            self._patience.until(ready, what, PAUSES, lambda: [turns.row_of(actor) for actor, _ in missing])
        for row, version in met_rows(event, self.rank, Use.READ, Use.WRITTEN):
            if (there := self._rows[row].version) != version:
                raise self.differs(event, f"row {row} at version {there}")

    def _is_gone(self, actor: int) -> bool:
        """Return True if an actor will do no more: a learner, or the carrier of a row between hosts."""
        if actor < self.turns.learners:
            return not self._alive[actor]
        return not self._alive[0] or bool(self._tables.ended[0])

    def _who_is_gone(self, actor: int) -> int:
        """Return the rank of the learner whose end keeps an actor from going on."""
        if actor < self.turns.learners:
            return actor
        return next((rank for rank in range(self.turns.learners) if not self._alive[rank]), 0)

    def note(self, kind: Kind, peer: int = -1, mine: int = -1, theirs: int = -1, value: float = 0.0) -> None:
        super().note(kind, peer, mine, theirs, value)
        self.changed()

    def is_taken(self, event: TraceEvent) -> None:
        self.gradients += event.kind is Kind.HASH

    def changed(self) -> None:
        publish(self._tables.done, self.rank, self.seen)

    def end_carrying(self) -> None:
        """Wait until exchanges between hosts are repeated, if this learner has the thread that does so for all."""
        if self.carrying.ident is not None:
            what = "exchanges between hosts to be repeated"
            self._patience.until(lambda: not self.carrying.is_alive(), what, PAUSES)
        self._check_carrying()

    def _check_carrying(self) -> None:
        """
        Raises:
            Differs: an exchange between hosts cannot be repeated.
        """
        if self.carrying.failure:
            self.difference = f"exchanges between hosts: {self.carrying.failure}"
            raise Differs(f"{self.folder}: {self.difference}")

    def over(self, wanted: str) -> BaseException:
        if self.next is not None:
            return self.differs(self.next, wanted)
        self.end_carrying()
        log.warning(
            f"rank {self.rank}: its record ends here, after {self.gradients} gradients, all as they are now; it was "
            "cut short."
        )
        return SystemExit(0)

    def differs(self, event: TraceEvent, now: str) -> Differs:
        about = f"its event {self.seen}"
        why = "The loop does something else than it did."
        if event.kind is Kind.HASH:
            about = f"the gradient of its step {self.gradients}"
            why = (
                "At equal parameters it is another one: the loop is no function of its minibatches alone (random "
                "numbers, clocks, files that have changed), or a machine computes wrongly. Replay it here and on "
                "another machine: the one whose gradient no other repeats is at fault."
            )
            if str(event).split(" at ")[1] != now.split(" at ")[1]:
                about = f"the parameters before its step {self.gradients}"
                why = (
                    "All gradients and exchanges before are the same: an optimizer or a change by hand that does not "
                    "repeat itself, or memory that has changed."
                )
        processes = self._recorded.get("processes", 1)
        several = f" in {processes} processes" if processes > 1 else ""
        self.difference = (
            f"rank {self.rank}, which ran on {self._recorded['host']}{several}: {about} differs, and all before is as "
            "recorded. "
            f"Recorded: {event}; now: {now}. {why}{self._surroundings()}"
        )
        return Differs(f"{self.folder}: {self.difference}")

    def _surroundings(self) -> str:
        """Return, in words, how the surroundings of the learner differ from the recorded ones."""
        here = surroundings()
        names = [name for name in ("torch", "threads", "processor") if here[name] != self._recorded[name]]
        other = ", ".join(f"{name} {here[name]} (was {self._recorded[name]})" for name in names)
        return f" It may be for what is not as it was: {other}." if other else ""


class RepeatingBackend(ArenaBackend):
    """The backend of a learner that repeats a recorded session: answers that depended on timing are as recorded."""

    def __init__(
        self, access: ArenaAccess, vectors: Vectors, means: Means, work: LearnerWork, recorded: Recorded
    ) -> None:
        super().__init__(access, vectors, means, work)
        self._recorded = recorded

    def admits(self, effect: Gather) -> bool:
        return bool(self._recorded.look(Kind.COME).value)

    def closes(self, effect: Gather) -> bool:
        return bool(self._recorded.look(Kind.MET).value)

    def closed(self, effect: Gather) -> None: ...

    def lives(self, peer: int) -> bool:
        return True

    def reach(self, effect: Reach) -> int | None:
        if not self._recorded.take_reach(effect):
            return None
        version = super().reach(effect)
        self._recorded.changed()
        return version


@final
class Repetition(SessionRecord):
    """The record of a session that a learner repeats.

    Raises:
        UserError: `folder` has no record, or that of another session; says where they differ.
    """

    on = repeats = True

    def __init__(self, folder: Path, place: RepeatedPlace) -> None:
        self._place, self._folder, self._rank = place, folder, place.access.rank
        entries = list(read_entries(folder))
        learners = recorded_learners(folder, entries)
        self._ends = {entry["rank"]: entry for entry in entries if entry["what"] == "left"}
        self._check(learners, [entry["rank"] for entry in entries if entry["what"] == "joined"])
        self._here = learners[self._rank].get("here")
        resumed = [entry for entry in entries if entry["what"] == "resumed" and entry["rank"] == self._rank]
        self.resumed = (resumed[0]["save"], resumed[0]["last"]) if resumed else (0, 0)
        self.trace = self._events = RepeatedEvents(folder, place, learners[self._rank])
        self._pieces: Iterator[TraceEvent] = (
            event for event in read_events(folder, self._rank) if event.kind is Kind.PIECE
        )

    def _check(self, learners: Mapping[int, Mapping[str, Any]], joined: list[int]) -> None:
        """
        Raises:
            UserError: the record is not complete, or of another session.
        """
        folder, layout = self._folder, self._place.access.arena.layout
        if len(learners) != layout.learners:
            raise UserError(
                f"{folder}: the record of {len(learners)} learners, and now there are {layout.learners}: start as many."
            )
        closed = [rank for rank, entry in self._ends.items() if entry["manner"] == MANNERS[CLOSED]]
        away = sorted({*learners} - {*closed}) if closed else []
        if joined or away:
            raise UserError(
                f"{folder}: learner {(joined or away)[0]} died or came back while this was recorded, and a replay "
                "repeats sessions whose learners live to the end."
            )
        found = differing(json.loads(json_line(self._place.agreed)), learners[self._rank]["agreed"])
        for name, now, then in found[:1]:
            raise UserError(
                f"{folder}: recorded with {name} {said(then)}, and rank {self._rank} attaches with {said(now)}: run "
                "the same script with the same options."
            )

    def state(
        self,
        place: LearnerPlace,
        vectors: LearnerVectors,
        optimizer: LocalOptimizer,
        tables: LearnerTables,
        update: Callable[[Gradient], bool],
        deferred: Deferred,
    ) -> LearnerState:
        return RecordedState(self._events, self._place.finish_deferred, place, vectors, optimizer, tables, update)

    def backend(self, access: ArenaAccess, vectors: Vectors, means: Means, work: LearnerWork) -> ArenaBackend:
        self._backend = RepeatingBackend(access, vectors, means, work, self._events)
        return self._backend

    def remote(self, remote: RemoteRows, row: Row) -> RemoteRows:
        if self._here is None:
            return remote
        events, rows, answers = self._events, self._place.access.rows, read_events(self._folder, self._rank)

        def visit(effect: Exchange, request: int) -> None:
            events.carrying.exchanges.visit(request, effect, row, rows[effect.peer])

        centre = range(self._place.access.arena.layout.learners, len(rows)) if 0 in self._here else ()
        here = (*self._here, *centre)  # which is with the first host
        return RepeatedRemote(events, here, answers_of(answers), self._backend.reach, visit)

    def draw(self, sampler: int, draw: Callable[[], int | None]) -> int | None:
        event = next(self._pieces, None)
        if event is None:
            raise self._events.over(f"a minibatch of sampler {sampler}")
        if event.peer != sampler:
            raise self._events.differs(event, f"a minibatch of sampler {sampler}")
        return None if event.mine < 0 else event.mine

    def leave(self, manner: int, me: LearnerState, centre: Tensor | None) -> None:
        events = self._events
        if manner == CLOSED:
            events.end_carrying()
        events.carrying.stop()
        if manner == CLOSED and not events.difference:
            end, now = self._ends.get(self._rank, {}), row_digests(me, centre)
            other = [name for name, digest in end.get("digests", {}).items() if now.get(name) != digest]
            if events.next is not None:
                events.differs(events.next, "the end")
            elif other:
                events.difference = f"rank {self._rank}: at the end its {', '.join(other)} differ."
            if events.difference:
                log.error("%s: %s", self._folder, events.difference)
        if results := path_in(REPLAYED):
            facts = {"gradients": events.gradients, "events": events.seen, "difference": events.difference}
            line = json.dumps({"session": self._place.number, "rank": self._rank, "closed": manner == CLOSED, **facts})
            with open(results, "ab", buffering=0) as file:
                file.write(line.encode() + b"\n")
