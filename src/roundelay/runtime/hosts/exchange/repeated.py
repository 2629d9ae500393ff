"""Repetition of recorded exchanges between hosts, of rows that are all here: both halves, with the arithmetic of hosts.

Two moments of each row are noted (notes.py): when it was sent, and when it was changed by the two rows as sent; its
learner may have changed it in between. The caller sees to the order of events.

Legend: P parameters.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from roundelay.core.effects import Exchange
from roundelay.runtime.hosts.exchange.messages import ExchangeTerms
from roundelay.runtime.hosts.exchange.notes import read_terms
from roundelay.runtime.hosts.exchange.row_format import (
    Buffer,
    Scratch,
    apply_remote,
    apply_reply,
    apply_report,
    encode,
    encode_change,
    swapped,
    take_centre,
)
from roundelay.runtime.replay.stage import HostExchanges
from roundelay.runtime.rows import Row
from roundelay.runtime.trace import Kind, TraceEvent, exchange_of, read_events


@dataclass(frozen=True)
class _Sent:
    """A row as it was sent, with its version and its mass then."""

    hold: Buffer
    version: int
    mass: float


@final
class RepeatedExchanges(HostExchanges):
    """Repeated exchanges between hosts, whose notes are in `folder`, with the rows of so many `learners`.

    Raises:
        UserError: the notes are damaged.
    """

    def __init__(self, folder: Path, learners: int) -> None:
        self._terms: dict[tuple[int, int], ExchangeTerms] = {}  # by the row that travels, and the exchange
        self._asked: dict[tuple[int, int], ExchangeTerms] = {}  # by the learner that asked, and its request
        for row in range(learners):
            known, events = list(read_terms(folder, row)), read_events(folder, row, carried=True)
            for event in events:
                if event.kind is Kind.SENT and event.value >= 0:
                    self._terms[row, event.theirs] = known[int(event.value)]
                elif event.kind is Kind.BIDDEN:
                    self._asked[event.peer, event.mine] = known[int(event.value)]
        self._sent: dict[tuple[int, int, int], _Sent] = {}  # by row, and exchange
        self._errors: dict[tuple[int, bool], Tensor] = {}  # (P,), of a run's codec, by row and whether it travels
        self._visited: set[tuple[int, int]] = set()  # exchanges that have changed the row that does not travel
        self._scratch = Scratch()

    def begin(self) -> None:
        self._sent.clear()
        self._errors.clear()
        self._visited.clear()

    def may(self, row: int, event: TraceEvent) -> bool:
        exchange = exchange_of(row, event)
        if event.kind is Kind.SENT:
            return True
        return exchange in self._visited if row == exchange[0] else (event.peer, *exchange) in self._sent

    def do(self, row: Row, event: TraceEvent) -> None:
        """Apply an event of the record to `row`, without locks; where the row is on a device, to a copy, as hosts do.

        Raises:
            ValueError: the row is at another version than the event.
        """
        if (here := row.vector.cpu()) is not row.vector:
            self.do(row.at(here), event)
            if event.kind is Kind.TAKEN:
                row.vector.copy_(here)
            return
        if row.version != event.mine:
            raise ValueError(f"row {row.rank} is at version {row.version}; recorded: {event}")
        exchange = exchange_of(row.rank, event)
        terms = self._terms[exchange]
        if event.kind is Kind.SENT:
            hold, error = Buffer(len(row.vector)), None
            if terms.by_run and not terms.codec.exact:
                error = self._errors.setdefault((row.rank, row.rank == exchange[0]), torch.zeros(len(row.vector)))
            mass = row.weight if terms.decay is not None else 0.0
            encode(row, terms.fragment, terms.codec, hold, error, self._scratch)
            self._sent[row.rank, *exchange] = _Sent(hold, event.mine, mass)
        else:
            self._take(row, exchange, event.peer, terms)

    def visit(self, request: int, effect: Exchange, mine: Row, centre: Row) -> None:
        terms, parameters, private = self._asked[mine.rank, request], len(mine.vector), effect.private
        fragment, codec, scratch = terms.fragment, terms.codec, self._scratch
        sent, found = Buffer(parameters), Buffer(parameters, 1 + len(private))
        rule = terms.applied(None if effect.since is None else centre.version - effect.since)
        if terms.report:
            encode_change(mine, private[0], sent)
        else:
            encode(mine, fragment, codec, sent, None, scratch)
            for number, vector in enumerate(private, 1):
                room = found.vectors(fragment.size, number * fragment.size)
                for place, part in zip(room, fragment.parts(vector), strict=True):
                    place.copy_(part)
        found.filled(fragment.size, codec)[:] = sent.filled(fragment.size, codec)
        centre.begin()
        if terms.report:
            apply_report(centre, found, [centre.memory[name] for name in terms.beside], scratch, rule)
        else:
            apply_remote(centre, fragment, codec, found, None, scratch, rule, terms.private)
        centre.end()
        mine.begin()
        if not terms.report:
            apply_reply(mine, fragment, codec, sent, found, scratch, rule, private, untouched=True)
        elif terms.returns:
            take_centre(mine, private[0], sent, found, untouched=True)
        mine.end()

    def _take(self, row: Row, exchange: tuple[int, int], peer: int, terms: ExchangeTerms) -> None:
        """Change `row` by the two rows as they were sent in `exchange`: its own, and that of `peer`."""
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
            self._visited.discard(exchange)
        else:
            self._visited.add(exchange)
