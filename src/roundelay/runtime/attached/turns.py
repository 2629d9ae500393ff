"""Turns of learners that repeat a recorded session: the events of others that an event comes after.

Versions order the events: an event that meets a row at a version comes after the one that brought it there, and one
that writes it also after all that have read it at that version. The learners are processes, so each says in shared
memory how many of its events are done, and an event waits for the numbers of others.

Where the session was one of several hosts, the changes of a row by exchanges between them have turns of their own,
beside those of the row's learner: they are an actor as the learners are, numbered behind them (`row_of`). An exchange
begins after its learner has asked for it; the row that is visited is sent after the row that travels, and changed
before it.

Legend: L learners, R rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from roundelay.core.errors import UserError
from roundelay.runtime.procs.memory.views import Integers, L, R, View, table
from roundelay.runtime.replay.stage import met_rows
from roundelay.runtime.trace import (
    ACCESS,
    Access,
    Kind,
    TraceEvent,
    Use,
    exchange_of,
    read_array,
    read_entries,
    read_events,
    session_folder,
)

SPAN = 1 << 40
"""Versions of a row, and events of a learner, are fewer."""


@dataclass(frozen=True)
class TurnTables(View):
    """Tables of the events that have been repeated: each learner publishes its own item, one of them publishes
    `carried` and `ended` for all. Zeros where no session is repeated."""

    PUBLISHED = ("done", "carried", "ended")

    done: Integers = table(L)  # Events that a learner has done, without its draws from shared passes
    carried: Integers = table(R)  # Events of exchanges between hosts, by row
    ended: Integers = table(1)  # 1: no more of these will be done


@final
class Turns:
    """The order of all events of a record.

    Raises:
        UserError: a file of the record is missing or damaged, or has a learner that died or joined; names the file.
    """

    def __init__(self, folder: Path, learners: int) -> None:
        written, read = list[NDArray[Any]](), list[NDArray[Any]]()
        self.learners, self.events = learners, list[int]()
        """Number of events of each learner."""
        self.carried: list[list[TraceEvent]] = []
        """Events of exchanges between hosts, by row."""
        asked = dict[tuple[int, int], int]()
        for actor in range(2 * learners):
            rank = self.row_of(actor)
            events = read_array(folder, rank, carried=actor >= learners)
            lives = np.isin(events["kind"], (Kind.GONE, Kind.JOIN))
            if lives.any():
                peer = int(events["peer"][lives][0])
                raise UserError(
                    f"{folder}: learner {peer} died or came back while this was recorded (learner {rank} saw it), and "
                    "a replay repeats sessions whose learners live to the end."
                )
            events = events[events["kind"] != Kind.PIECE]
            if actor < learners:
                self.events.append(len(events))
                asks = np.flatnonzero(events["kind"] == Kind.ASKED).tolist()
                asked |= {(rank, int(events["mine"][at])): at for at in asks}
            uses = _USES[events["kind"]]
            other = events["kind"] == Kind.REACH
            theirs, mine = np.divmod(events["value"][other].astype(np.int64), 4)
            uses[other] = np.stack([mine, theirs], axis=1)
            event = actor * SPAN + np.arange(len(events))
            rows = {"mine": np.full(len(events), rank), "theirs": events["peer"].astype(np.int64)}
            for place, (name, row) in enumerate(rows.items()):
                met = row * SPAN + events[name]
                for found, use, later in ((written, Use.WRITTEN, 1), (read, Use.READ, 0)):
                    at = uses[:, place] == use
                    found.append(np.stack([met[at] + later, event[at]]))
        self._written, self._read = (_sorted(np.concatenate(found, axis=1)) for found in (written, read))
        self.carried = [[*read_events(folder, row, carried=True)] for row in range(learners)]
        self._asked, self._halves = asked, dict[tuple[Kind, int, int, int], int]()
        for row, some in enumerate(self.carried):
            self._halves |= {(event.kind, row, *exchange_of(row, event)): at for at, event in enumerate(some)}

    def row_of(self, actor: int) -> int:
        """Return the row that an actor's events are of: a learner's own, or the one that is carried."""
        return actor % self.learners

    def before(self, actor: int, event: TraceEvent) -> list[tuple[int, int]]:
        """Return the events of other actors that this event of `actor` comes after, as actors and numbers."""
        row = self.row_of(actor)
        met = met_rows(event, row, Use.READ, Use.WRITTEN)
        found = [*_at(self._written, met), *_at(self._read, met_rows(event, row, Use.WRITTEN))]
        return [place for place in [*found, *self._exchange_before(row, event)] if place[0] != actor]

    def _exchange_before(self, row: int, event: TraceEvent) -> list[tuple[int, int]]:
        """Return the events that come before an event in its exchange between hosts."""
        if event.kind is Kind.BIDDEN:
            at = self._asked.get((event.peer, event.mine))
            return [] if at is None else [(event.peer, at)]
        travels, number = exchange_of(row, event)
        earlier = (Kind.TAKEN if event.kind is Kind.TAKEN else None) if travels == row else Kind.SENT
        if event.kind not in (Kind.SENT, Kind.TAKEN) or earlier is None:
            return []
        at = self._halves.get((earlier, event.peer, travels, number))
        return [] if at is None else [(self.learners + event.peer, at)]


_USES = np.array([Access(), *(ACCESS.get(kind, Access()) for kind in Kind)], dtype=np.int64)
"""(kinds, 2) Use that each kind of event, from 1 on, makes of the own row, and of the other's."""


def _sorted(pairs: NDArray[Any]) -> NDArray[Any]:
    """Return `pairs` (2, n), sorted by the first row."""
    return pairs[:, np.argsort(pairs[0], kind="stable")]


def _at(pairs: NDArray[Any], places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return those events, as ranks and numbers, whose entry in `pairs` begins with one of `places` (row, version)."""
    found = list[tuple[int, int]]()
    for row, version in places:
        first, end = np.searchsorted(pairs[0], (row * SPAN + version, row * SPAN + version + 1))
        found += [divmod(int(event), SPAN) for event in pairs[1, first:end]]
    return found


def replayed_host(record: Path | None, rank: int) -> tuple[int, ...] | None:
    """Return the learners that were on one host with this one, in the record that is repeated; None if no session is
    repeated, or if all were on one host.

    Raises:
        UserError: the record cannot be read.
    """
    entries = () if record is None else read_entries(session_folder(record, 0))
    own = next((entry for entry in entries if entry["what"] == "learner" and entry["rank"] == rank), {})
    return tuple(own["here"]) if own.get("here") else None
