"""Exchanges between hosts again, where all learners are on one: a thread of the first learner does to each row what was
done to it, in its turn (turns.py), with the arithmetic of hosts (hosts/exchange/row_format.py).

Two moments of each row are noted: when it was sent, and when it was changed by what both had sent; its learner may have
changed it in between. So the answer to an exchange has no turn of its own to wait for, but its rows have.

Legend: P parameters.
"""

import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from roundelay.runtime.attached.turns import Turns, TurnTables, exchange_of
from roundelay.runtime.hosts.exchange.messages import ExchangeTerms
from roundelay.runtime.hosts.exchange.notes import read_terms
from roundelay.runtime.hosts.exchange.row_format import Buffer, Scratch, apply_reply, encode, swapped
from roundelay.runtime.procs.memory.access import ArenaAccess
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.rows import Row
from roundelay.runtime.trace import Kind, TraceEvent

TURN_LOOK_SECONDS = 2e-4
"""Between two looks for what can be done."""


@dataclass(frozen=True)
class _Sent:
    """A row as it was sent: its version and its mass then."""

    hold: Buffer
    version: int
    mass: float


class _LearnerGone(Exception):
    """Something waits for a learner that is gone."""


@final
class Carrying(threading.Thread):
    """A thread that repeats exchanges with all rows of a session. It ends when all is done, or a learner that something
    waits for is gone.

    Args:
        folder: of the session's record.
    """

    failure = ""
    """Says what is otherwise than it was recorded, if something is: then nothing more is done."""

    def __init__(self, folder: Path, access: ArenaAccess, turns: Turns) -> None:
        super().__init__(name="exchanges between hosts", daemon=True)
        self._arena, self._rows, self._turns = access.arena, access.rows, turns
        self._tables, self._alive = access.arena.view(TurnTables), access.arena.liveness.alive
        self._learners = turns.learners
        self._terms = self._read_terms(folder)
        self._sent: dict[tuple[int, int, int], _Sent] = {}  # by row, and exchange
        self._errors: dict[tuple[int, bool], Tensor] = {}  # (P,), of a run's codec, by row and whether it travels
        self._scratch, self._stopped = Scratch(), False

    def _read_terms(self, folder: Path) -> dict[tuple[int, int], ExchangeTerms]:
        """Return the terms of each exchange, by the row that travels and its number."""
        found = dict[tuple[int, int], ExchangeTerms]()
        for row, events in enumerate(self._turns.carried):
            known = list(read_terms(folder, row))
            found |= {(row, e.theirs): known[int(e.value)] for e in events if e.kind is Kind.SENT and e.value >= 0}
        return found

    def done(self, actor: int) -> int:
        """Return the number of events that an actor has done."""
        done, carried = self._tables.done, self._tables.carried
        return int(done[actor] if actor < self._learners else carried[actor - self._learners])

    def stop(self) -> None:
        """Do nothing more."""
        self._stopped = True

    def run(self) -> None:
        try:
            queues = {row: self._turns.carried[row] for row in range(self._learners)}
            while not self._stopped and any(self._left(row) for row in queues):
                last = self._nobody_left()  # before it is looked what can be done
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

    def _left(self, row: int) -> int:
        return len(self._turns.carried[row]) - int(self._tables.carried[row])

    def _nobody_left(self) -> bool:
        """Return True if all learners have begun, and none will do any more."""
        done, all_ = self._tables.done, self._turns.events
        return all(done[rank] and (not self._alive[rank] or done[rank] >= all_[rank]) for rank in range(self._learners))

    def _go_on(self, row: int, events: Sequence[TraceEvent]) -> bool:
        """Do what can be done to a row; False: nothing."""
        actor, first = self._learners + row, int(self._tables.carried[row])
        for number in range(first, len(events)):
            event = events[number]
            if not self._may(actor, event):
                return number > first
            if event.kind is not Kind.BIDDEN:
                self._do(self._rows[row], event)
            publish(self._tables.carried, row, number + 1)
        return len(events) > first

    def _may(self, actor: int, event: TraceEvent) -> bool:
        """Return True if it is the turn of an event.

        Raises:
            _LearnerGone: it never will be.
        """
        for other, earlier in self._turns.before(actor, event):
            gone = other < self._learners and self._tables.done[other] and not self._alive[other]
            if self.done(other) <= earlier:  # read after who is gone
                if gone:
                    raise _LearnerGone
                return False
        return True

    def _do(self, row: Row, event: TraceEvent) -> None:
        """Do it, without locks: it is this row's turn, and no learner's."""
        if row.version != event.mine:
            raise ValueError(f"row {row.rank} is at version {row.version}; recorded: {event}")
        exchange = exchange_of(row.rank, event)
        terms = self._terms[exchange]
        if event.kind is Kind.SENT:
            hold = Buffer(len(row.vector))
            error = terms.memory(self._arena, row.rank, lambda: self._error(row, row.rank == exchange[0]))
            mass = row.weight if terms.decay is not None else 0.0
            encode(row, terms.fragment, terms.codec, hold, error, self._scratch)
            self._sent[row.rank, *exchange] = _Sent(hold, event.mine, mass)
        else:
            self._take(row, exchange, event.peer, terms)

    def _error(self, row: Row, travels: bool) -> Tensor:
        return self._errors.setdefault((row.rank, travels), torch.zeros(len(row.vector)))

    def _take(self, row: Row, exchange: tuple[int, int], peer: int, terms: ExchangeTerms) -> None:
        """Change a row by what it and the other have sent."""
        mine, theirs = self._sent[row.rank, *exchange], self._sent[peer, *exchange]
        travels, share = row.rank == exchange[0], None
        if terms.decay is not None:
            travelled, visited = (mine, theirs) if travels else (theirs, mine)
            share = replace(terms, mass=travelled.mass).share(visited.mass)
            row.fade(mine.mass, terms.decays[0 if travels else 1])
            if (terms.asked is None) == travels:
                row.meets(peer, share)
        came = Buffer(len(row.vector))  # the rule changes both rows that it is given
        came.filled(terms.fragment.size, terms.codec)[:] = theirs.hold.filled(terms.fragment.size, terms.codec)
        rule = terms.applied(share=share)
        row.begin()
        untouched = row.version == mine.version
        vectors = mine.hold, came, self._scratch, rule if travels else swapped(rule), ()
        apply_reply(row, terms.fragment, terms.codec, *vectors, untouched)
        row.end()
        if travels:  # which is changed last
            del self._sent[row.rank, *exchange], self._sent[peer, *exchange]
