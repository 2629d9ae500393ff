"""Columns of learners in the tables of attached learners, copied from the host that has them to the others.

Each learner writes its own column only, and acts on those of others, without a lock, by numbers that are published
last. So a copy of a column is as good as the column if its published numbers are read first and written last: on every
host, a reader that sees a number sees all that was stored before it was published.

A copy is sent when a number changes for which a learner may wait; the rest of it travels along, or a few times a
second.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from roundelay.runtime.attached.meetings import KINDS, MeetingTables, SaveTables
from roundelay.runtime.attached.membership import MANNERS, Attendance
from roundelay.runtime.attached.settings import SettingsTables
from roundelay.runtime.attached.shares import InputTables, ShareTables
from roundelay.runtime.attached.votes import VoteTables
from roundelay.runtime.hosts.control.messages import Columns
from roundelay.runtime.messages import BOUND, InvalidMessage
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.publish import publish

COLUMN_SECONDS = 0.05
"""Interval at which a process looks at its learners' columns if no learner rings."""
SELDOM_SECONDS = 0.2
"""Interval at which numbers are sent for which no learner waits."""

Send = Callable[[Columns, bytes], None]


@final
@dataclass(frozen=True, eq=False)
class SharedTable:
    """A table of the arena with a column for each learner, which is copied between hosts."""

    numbers: NDArray[Any]
    axis: int = 0  # of learners
    published: bool = False  # others act on it without a lock
    stop: int | None = BOUND  # its numbers are from 0 up to, not including, this one; None: they may be any

    def read(self, ranks: Sequence[int]) -> bytes:
        """Return the columns of `ranks`, as they are now."""
        return bytes(np.take(self.numbers, list(ranks), self.axis).tobytes())

    def columns(self, ranks: Sequence[int], data: bytes, at: int) -> NDArray[Any]:
        """Return the columns in `data` at offset `at`: the inverse of `read`.

        Raises:
            InvalidMessage: `data` is too short, or has numbers that the table cannot have.
        """
        shape = list(self.numbers.shape)
        shape[self.axis] = len(ranks)
        size = int(np.prod(shape)) * self.numbers.itemsize
        if at + size > len(data):
            raise InvalidMessage(f"{len(data)} bytes are too few for columns of {len(ranks)} learners")
        found: NDArray[Any] = np.frombuffer(data, self.numbers.dtype, size // self.numbers.itemsize, at).reshape(shape)
        if self.stop is not None and found.size and not (found.min() >= 0 and found.max() < self.stop):
            raise InvalidMessage(f"a column with a number that is not from 0 to {self.stop - 1}")
        return found

    def write(self, ranks: Sequence[int], found: NDArray[Any]) -> None:
        """Store the columns `found` by `columns`, of these `ranks`."""
        if self.published:
            publish(self.numbers, list(ranks), found)
        elif self.axis:
            self.numbers[:, list(ranks)] = found
        else:
            self.numbers[list(ranks)] = found


@final
class SharedColumns:
    """The columns of learners in all tables of one arena that are copied between hosts."""

    def __init__(self, arena: Arena) -> None:
        attendance, meetings, votes = arena.view(Attendance), arena.view(MeetingTables), arena.view(VoteTables)
        inputs, saves, settings = arena.view(InputTables), arena.view(SaveTables), arena.view(SettingsTables)
        shares = arena.view(ShareTables)
        self._seldom = [
            *(SharedTable(table, stop=None) for table in vars(arena.counts).values()),
            SharedTable(arena.optimizer.steps),
            SharedTable(inputs.fingerprints, stop=None),
            SharedTable(inputs.count, published=True),
            SharedTable(saves.whole),
            SharedTable(saves.last),
            SharedTable(settings.text, stop=None),
            SharedTable(settings.told, published=True, stop=2),
            SharedTable(settings.taken),
            SharedTable(settings.numbers, stop=None),
            SharedTable(settings.frozen, stop=2),
            SharedTable(shares.terms, stop=None),
            SharedTable(shares.made, published=True),
            SharedTable(shares.passes, stop=None),
        ]
        met = SharedTable(attendance.met, published=True)
        self._lasting = [*self._seldom, met]
        self._seldom.append(SharedTable(arena.optimizer.scalars, stop=None))  # masses, if rows are weighed
        at_steps = [SharedTable(arena.queue.rounds, published=True), SharedTable(votes.cast, published=True)]
        self._alive = SharedTable(arena.liveness.alive, published=True, stop=2)
        at_meetings = [
            SharedTable(attendance.ending, published=True),
            self._alive,
            met,
        ]
        self._often = [  # in the order in which they are written
            SharedTable(meetings.kind, axis=1, stop=len(KINDS)),
            SharedTable(meetings.nth, axis=1),
            SharedTable(votes.given, axis=1, stop=None),
            SharedTable(votes.skip, axis=1, stop=2),
            SharedTable(votes.changed, axis=1, stop=None),
            SharedTable(votes.numbers, axis=1, stop=None),
            SharedTable(attendance.left, stop=len(MANNERS)),
            SharedTable(attendance.entering, published=True, stop=2),
            SharedTable(attendance.cut),
            *at_steps,
            *at_meetings,
        ]
        self._at_steps, self._at_meetings = at_steps, at_meetings

    def at_steps(self, ranks: Sequence[int]) -> bytes:
        """Return the numbers of `ranks` for which learners who take steps together wait, as bytes."""
        return b"".join(table.read(ranks) for table in self._at_steps)

    def at_meetings(self, ranks: Sequence[int]) -> bytes:
        """Return the numbers of `ranks` for which any learner may wait, as bytes."""
        return b"".join(table.read(ranks) for table in self._at_meetings)

    def read(self, ranks: Sequence[int], everything: bool) -> bytes:
        """Return a copy of the columns of `ranks`. Lives are read first: a reader that sees a learner gone must see all
        that it did before."""
        lived, parts = self._alive.numbers[list(ranks)], list[bytes]()
        for table in reversed(self._tables(everything)):
            live = table is self._alive
            parts.append(bytes((lived | table.numbers[list(ranks)]).tobytes()) if live else table.read(ranks))
        return b"".join(reversed(parts))

    def enter(self, ranks: Sequence[int], everything: bool, data: bytes) -> None:
        """Store the columns of `ranks` from a copy that `read` has made: all of it, or nothing.

        Raises:
            InvalidMessage: `data` is no such copy.
        """
        tables = self._tables(everything)
        found = _found(tables, ranks, data)
        for table, columns in zip(tables, found, strict=True):
            live = table is self._alive
            table.write(ranks, columns | table.numbers[list(ranks)] if live else columns)
        self._alive.write(ranks, found[tables.index(self._alive)])  # deaths: last, for the same reason

    def record(self, ranks: Sequence[int]) -> bytes:
        """Return a copy of the record of `ranks` so far, for the host to which they come back, where their rows have
        mass 0."""
        return b"".join(table.read(ranks) for table in self._lasting)

    def enter_record(self, ranks: Sequence[int], data: bytes) -> None:
        """Enter all of a record, or nothing: the inverse of `record`.

        Raises:
            InvalidMessage: `data` is no such copy.
        """
        for table, columns in zip(self._lasting, _found(self._lasting, ranks, data), strict=True):
            table.write(ranks, columns)

    def _tables(self, everything: bool) -> list[SharedTable]:
        return [*self._seldom, *self._often] if everything else self._often


def _found(tables: Sequence[SharedTable], ranks: Sequence[int], data: bytes) -> list[NDArray[Any]]:
    """Return the columns of `ranks` in `tables`, from the copy `data`.

    Raises:
        InvalidMessage: `data` is no such copy.
    """
    found, at = list[NDArray[Any]](), 0
    for table in tables:
        found.append(table.columns(ranks, data, at))
        at += found[-1].nbytes
    if at != len(data):
        raise InvalidMessage(f"{len(data)} bytes are too many for columns of {len(ranks)} learners")
    return found


@final
class ColumnSender:
    """Sender of the columns of `ranks` to one other host, when they have changed.

    Args:
        together: learners of several hosts take steps together.
        send: sends a message, and the columns beside it.
    """

    def __init__(self, columns: SharedColumns, ranks: Sequence[int], together: bool, send: Send) -> None:
        self._columns, self._ranks, self._together, self._send = columns, list(ranks), together, send
        self._at_steps = self._at_meetings = self._seldom_at = b""
        self._seldom = time.monotonic()

    def look(self) -> None:
        """Send changes for which a learner may wait, and other changes if none were sent for a while."""
        meetings, steps = self._columns.at_meetings(self._ranks), self._columns.at_steps(self._ranks)
        now, urgent = time.monotonic(), meetings != self._at_meetings
        changed = urgent or (self._together and steps != self._at_steps)
        # of a learner that has stopped since, too
        everything = urgent or (steps != self._seldom_at and now - self._seldom > SELDOM_SECONDS)
        if everything or changed:
            self._send(Columns(tuple(self._ranks), everything), self._columns.read(self._ranks, everything))
            self._at_meetings, self._at_steps = meetings, steps
            if everything:
                self._seldom, self._seldom_at = now, steps
