"""Turns of learners that repeat a recorded session: the events of others that an event comes after.

Versions order the events: whoever meets a row at a version comes after the one that brought it there, and whoever
writes it also after all who have read it at that version. The learners are processes, so each says in shared memory how
many of its events are done, and an event waits for the numbers of others.

Legend: L learners.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from roundelay.core.errors import UserError
from roundelay.runtime.procs.memory.tables import Integers, L, View, table
from roundelay.runtime.replay.stage import met_rows
from roundelay.runtime.trace import ACCESS, Access, Kind, TraceEvent, Use, read_array

SPAN = 1 << 40
"""Versions of a row, and events of a learner, are fewer."""


@dataclass(frozen=True)
class TurnTables(View):
    """Each learner publishes its own item. Zeros where nothing is repeated."""

    PUBLISHED = ("done",)

    done: Integers = table(L)  # Events that a learner has done, but for what it has drawn from shared passes


@final
class Turns:
    """Of all events of a record.

    Raises:
        UserError: a file of it is missing, is none, or has a learner that died or joined; names it.
    """

    def __init__(self, folder: Path, learners: int) -> None:
        written, read = list[NDArray[Any]](), list[NDArray[Any]]()
        for rank in range(learners):
            events = read_array(folder, rank)
            lives = np.isin(events["kind"], (Kind.GONE, Kind.JOIN))
            if lives.any():
                peer = int(events["peer"][lives][0])
                raise UserError(
                    f"{folder}: learner {peer} died or came back while this was recorded (learner {rank} saw it), and "
                    "a replay repeats sessions whose learners live to the end."
                )
            events = events[events["kind"] != Kind.PIECE]
            uses = _USES[events["kind"]]
            other = events["kind"] == Kind.REACH
            theirs, mine = np.divmod(events["value"][other].astype(np.int64), 4)
            uses[other] = np.stack([mine, theirs], axis=1)
            event = rank * SPAN + np.arange(len(events))
            rows = {"mine": np.full(len(events), rank), "theirs": events["peer"].astype(np.int64)}
            for place, (name, row) in enumerate(rows.items()):
                met = row * SPAN + events[name]
                for found, use, later in ((written, Use.WRITTEN, 1), (read, Use.READ, 0)):
                    at = uses[:, place] == use
                    found.append(np.stack([met[at] + later, event[at]]))
        self._written, self._read = (_sorted(np.concatenate(found, axis=1)) for found in (written, read))

    def before(self, rank: int, event: TraceEvent) -> list[tuple[int, int]]:
        """Return the events of others that one of learner `rank` comes after: their ranks and numbers."""
        met = met_rows(event, rank, Use.READ, Use.WRITTEN)
        found = [*_at(self._written, met), *_at(self._read, met_rows(event, rank, Use.WRITTEN))]
        return [place for place in found if place[0] != rank]


_USES = np.array([Access(), *(ACCESS.get(kind, Access()) for kind in Kind)], dtype=np.int64)
"""(kinds, 2) Use that each kind of event, from 1 on, makes of the own row, and of the other's."""


def _sorted(pairs: NDArray[Any]) -> NDArray[Any]:
    """Return (2, n) by the first row."""
    return pairs[:, np.argsort(pairs[0], kind="stable")]


def _at(pairs: NDArray[Any], places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return events, ranks and numbers, of those pairs that begin with one of these rows and versions."""
    found = list[tuple[int, int]]()
    for row, version in places:
        first, end = np.searchsorted(pairs[0], (row * SPAN + version, row * SPAN + version + 1))
        found += [divmod(int(event), SPAN) for event in pairs[1, first:end]]
    return found
