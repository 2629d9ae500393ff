"""Carrier of one row of this host to rows of other hosts: the client's half of an exchange, and fetches.

It works for the row's own learner, and for learners of other hosts that ask for an exchange with a lower rank; from any
thread, one at a time, under the lease of the row.

Legend: P parameters.

An exchange between hosts reads a row, and writes the result some time later. If the row took part in another exchange
meanwhile, both would be halves of averages that never were: two learners that ask each other at the same moment would
swap their rows instead of averaging them, and so on for ever. (The learner's own steps meanwhile are no mixing, and do
no harm: row_format.py.)

So a thread that carries a row to another host, or applies the rule of another host's exchange to it, has the row's
lease. A row that is *in flight* is checked out until it is back; learners of this host see that in the arena's table
`away`. Where both rows of an exchange travel at once, both are in flight until each has come.

*Lock order.* Rows travel only from the lower rank to the higher (the centre counts as the highest), and while one is in
flight its lease is held by the thread that waits for a row of higher rank. All others hold a lease while they apply one
rule, and wait for nothing but the row's lock, or for the bytes of a row whose sender has it already. So no circle of
waits can close, and there is no deadlock. The one exception are exchanges that carry private vectors or ages: they
travel with their asker whichever its rank (strategies make them with the centre only), and the bound on every wait ends
a circle of them.

The leases also serialise exchanges that a learner's client carries for its own learner and for learners of other hosts,
first come, first served.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from roundelay.runtime.hosts.exchange.links import HostNetwork, LearnerLinks, Outgoing
from roundelay.runtime.hosts.exchange.messages import ExchangeMessage, ExchangeTerms, FetchMessage, RowReply, largest
from roundelay.runtime.hosts.exchange.notes import NO_NOTES, ExchangeNotes
from roundelay.runtime.hosts.exchange.row_format import (
    Buffer,
    Fragment,
    Scratch,
    apply_reply,
    encode,
    encode_change,
    take_centre,
)
from roundelay.runtime.hosts.exchange.states import Event, ExchangeState, Role, State
from roundelay.runtime.hosts.transport.wire import BadFrame, LinkClosed
from roundelay.runtime.messages import Message
from roundelay.runtime.procs.coordination.outbox import Gathering
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.views import NONE

LEASE_LOOK_SECONDS = 0.2
"""Most seconds between two looks of a thread that waits for a lease."""


class RowLeases:
    """Row leases of one host's process. First come, first served."""

    def __init__(self) -> None:
        self._gate = threading.Condition()
        self._holders: set[int] = set()
        self._waiting: dict[int, deque[object]] = {}
        self._last = 0

    @contextmanager
    def held(self, row: int, seconds: float, look: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Wait for the lease of `row`, and hold it for the context; yield its number, above 0.

        Args:
            look: called now and then while this waits; any error from it ends the wait.

        Raises:
            TimeoutError: the lease was not free within `seconds`.
        """
        number = self._take(row, seconds, look)
        try:
            yield number
        finally:
            with self._gate:
                self._holders.remove(row)
                self._gate.notify_all()

    def _take(self, row: int, seconds: float, look: Callable[[], None]) -> int:
        ticket, deadline = object(), time.monotonic() + seconds
        with self._gate:
            waiting = self._waiting.setdefault(row, deque())
            waiting.append(ticket)
            try:
                while waiting[0] is not ticket or row in self._holders:
                    look()
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"row {row} has been in exchanges with other hosts for {seconds:g} s")
                    self._gate.wait(min(left, LEASE_LOOK_SECONDS))
                self._holders.add(row)
                self._last += 1
                return self._last
            finally:
                waiting.remove(ticket)
                self._gate.notify_all()


TO_CHECK_OUT = 0.5
"""Share of the network's patience that the lease and the lock of a row that is to travel may take."""


@dataclass(frozen=True)
class Carried:
    """Result of an exchange that has been made: the version of this row afterwards, and the reply."""

    version: int
    reply: RowReply


@final
class RowCarrier:
    """Carrier of row `rank` of this host to rows of other hosts.

    Args:
        arena: of the host, as this process has mapped it.
        network: the other hosts.
        leases: on the rows of this host.
        spent: called with the processor seconds of threads other than the caller's.
        notes: notes of each sending and change of the row.
    """

    def __init__(
        self,
        rank: int,
        arena: Arena,
        network: HostNetwork,
        leases: RowLeases,
        spent: Callable[[float], None],
        notes: ExchangeNotes = NO_NOTES,
    ) -> None:
        self._rank, self._network, self._leases, self._notes = rank, network, leases, notes
        self._layout = layout = arena.layout
        self._until = 0.0  # when a wait for the row's lock ends
        patience = Patience(rank, network.patience, self._look_at_clock)
        self.arena = arena.with_own_locks(patience)
        self.alive = self.arena.liveness.alive
        self._row = self.arena.row(rank)
        self.links = LearnerLinks(network, rank, False, largest(layout), spent)
        self._sent, self._found = Buffer(layout.parameters), Buffer(layout.parameters, 1 + len(layout.memory))
        self._scratch = Scratch()
        self._error: Tensor | None = None  # (P,), of the run's codec, for when the row travels
        self._state, (_, self._number) = ExchangeState(Role.CLIENT), notes.so_far(rank)
        self._gate = threading.RLock()
        self._in_flight: tuple[int, int] | None = None  # the peer that the row is in flight to, and the lease

    def fetch(self, peer: int, into: Tensor) -> int | None:
        """Copy row `peer` as it is now into `into` (P,); return its version. None: no learner is there.

        Raises:
            LinkError, TimeoutError: no reply came; nothing is copied.
        """
        parameters = self._layout.parameters
        with self._leases.held(self._rank, TO_CHECK_OUT * self._network.patience):  # for the links and the room
            reply = self._read(FetchMessage(self._next(), peer), 4 * parameters)
            if reply is None:
                return None
            for out, x in zip(Fragment.whole(parameters).parts(into), self._found.vectors(parameters), strict=True):
                out.copy_(x)
            return reply.version

    def ask(self, peer: int, gather: Gathering, comes: bool = False) -> RowReply | None:
        """Return the reply of the host of row `peer` to a question about a gathering, or to a learner that `comes` to
        it with nothing; None: no learner is there.

        Raises:
            LinkError, TimeoutError: no reply came.
        """
        with self._leases.held(self._rank, TO_CHECK_OUT * self._network.patience):
            return self._read(FetchMessage(self._next(), peer, gather, comes), 0)

    def _read(self, message: FetchMessage, expected: int) -> RowReply | None:
        state = ExchangeState(Role.READER)
        state.take(Event.ASK)
        reply = self._talk(state, message, (), expected)
        return reply if isinstance(reply, RowReply) else None

    def _next(self) -> int:
        """Return the number of the next message."""
        self._number += 1
        return self._number

    def exchange(
        self,
        terms: ExchangeTerms,
        private: Sequence[Tensor],
        wanted: Callable[[], bool],
        look: Callable[[], None] = lambda: None,
        gather: Gathering | None = None,
    ) -> Carried | None:
        """Exchange the row with row `terms.peer`, and apply the reply; None: the exchange was not made. From any
        thread, one at a time.

        Args:
            private: vectors (P,) of the learner that the rule takes.
            wanted: called under the row's lock; returns True if the row may still be sent, or changed.
            look: called while this waits for the row; any error from it ends the wait.
            gather: the gathering to which the learner comes by this exchange.

        Raises:
            LinkError, TimeoutError: no reply came; the exchange was not made.
        """
        patience = TO_CHECK_OUT * self._network.patience
        deadline = time.monotonic() + patience
        private = [*private, *(self.arena.vector(name, self._rank) for name in terms.along)]
        with self._leases.held(self._rank, patience, look) as lease:
            self.look_at(terms.peer)
            self._until = deadline
            try:
                number = self._next()
                found = self._check_out(lease, number, terms, private, wanted)
                if found is None:
                    return None
                seen, terms = found
                payload = [self._sent.filled(terms.fragment.size, terms.codec)]
                payload += [] if terms.report else map(_bytes, private)
                expected = terms.vector_bytes if terms.returns else 0
                message = terms.message(number, gather=gather, both=terms.both_travel(self._layout))
                reply = self._talk(self._state, message, payload, expected)
                if self._state.state is not State.REPLIED or not isinstance(reply, RowReply):
                    return None
                return self._apply(lease, terms, private, wanted, reply, seen)
            finally:
                self._check_in(lease)

    def _check_out(
        self, lease: int, number: int, terms: ExchangeTerms, private: Sequence[Tensor], wanted: Callable[[], bool]
    ) -> tuple[int, ExchangeTerms] | None:
        """Encode the row; return its version, and `terms` with its mass; None: the exchange is not wanted any more."""
        row = self._row
        error = terms.memory(self.arena, row.rank, self._own_memory)
        with row.lock:
            if not wanted():
                return None
            own = row.rank, int(self.arena.requests.asked[row.rank])
            asked, both = own if terms.asked is None else (terms.peer, terms.asked), terms.both_travel(self._layout)
            self._notes.begins(row, number, terms, asked, both)
            if terms.report:
                encode_change(row, private[0], self._sent)
            else:
                encode(row, terms.fragment, terms.codec, self._sent, error, self._scratch)
            with self._gate:
                self._in_flight = terms.peer, lease
                row.check_out(lease)
            self._state.take(Event.CHECK_OUT)
            return row.version, terms if terms.decay is None else replace(terms, mass=row.weight)

    def _own_memory(self) -> Tensor:
        if self._error is None:
            self._error = torch.zeros(self._layout.parameters)
        return self._error

    def _apply(
        self,
        lease: int,
        terms: ExchangeTerms,
        private: Sequence[Tensor],
        wanted: Callable[[], bool],
        reply: RowReply,
        seen: int,
    ) -> Carried | None:
        row, age, share = self._row, reply.age, reply.share
        if (age is None) != (terms.since is None) or (share is None) != (terms.decay is None):
            raise BadFrame("a reply without the age or the share that the rule takes")
        self._until = time.monotonic() + self._network.patience
        with row.lock:
            if not self._is_back(lease) or not wanted():
                return None
            if terms.both_travel(self._layout):
                self._notes.taken(row, terms.peer, reply.n)
            row.fade(terms.mass, terms.decays[0])
            if share is not None and terms.asked is None:
                row.meets(terms.peer, share)
            row.begin()
            untouched = row.version == seen
            if not terms.report:
                vectors = self._scratch, terms.applied(age, share=share), private
                along = len(terms.along)
                apply_reply(row, terms.fragment, terms.codec, self._sent, self._found, *vectors, untouched, along)
            elif terms.returns:
                take_centre(row, private[0], self._sent, self._found, untouched)
            row.end()
            self._state.take(Event.APPLY)
            return Carried(row.version, reply)

    def _is_back(self, lease: int) -> bool:
        """Check the row in if it is still in flight under `lease`; return False if it was not. Giving up needs no lock
        of the row: a thread that applies a reply has that lock, and calls this first."""
        with self._gate:
            self._in_flight = None
            return self._row.check_in(lease)

    def _check_in(self, lease: int) -> None:
        if self._state.state is not State.IDLE:
            self._state.offer(Event.GIVE_UP)
            self._is_back(lease)
            self._state.take(Event.CHECK_IN)

    def living_changed(self) -> None:
        """Check the row in, unchanged, if it is in flight to a dead learner. From any thread."""
        with self._gate:
            if self._in_flight is None or self._lives(peer := self._in_flight[0]):
                return
            self._is_back(self._in_flight[1])
        self.links.cut(self._network.home(peer))

    def _talk(
        self,
        state: ExchangeState,
        message: ExchangeMessage | FetchMessage,
        payload: Sequence[memoryview],
        expected: int,
    ) -> Message:
        home, look = self._network.home(message.peer), partial(self.look_at, message.peer)
        outgoing = Outgoing(message, payload, self._found.view, expected)
        return self.links.talk(home, state, outgoing, self._network.patience, look)

    def _lives(self, row: int) -> bool:
        return bool(self._network.centre[0] != NONE if row == self._layout.learners else self.alive[row])

    def look_at(self, peer: int) -> None:
        """Check that the row `peer` of another host can be reached.

        Raises:
            LinkClosed: the network is closing, learner `peer` is dead, or no host has the centre.
        """
        if self._network.closing or not self._lives(peer):
            raise LinkClosed(f"learner {peer} is not there")

    def _look_at_clock(self) -> None:
        if time.monotonic() > self._until:
            raise TimeoutError(f"row {self._rank} is locked")

    def close(self) -> None:
        """Close the links and the arena of this carrier; call it when the network is closing."""
        self.links.close()
        with self._leases.held(self._rank, self._network.patience):
            self.links.close()
            self.arena.close()


def _bytes(vector: Tensor) -> memoryview:
    lying: Any = vector.numpy()
    return memoryview(lying).cast("B")
