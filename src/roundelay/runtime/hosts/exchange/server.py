"""Does to rows of this host what learners of other hosts ask for: the other half of client.py.

Every learner elsewhere has a desk here: a thread, a link, room for one request, and the last answer, for the case that
the link breaks before it has arrived. A row that is asked for by a learner of higher rank travels to it (*please*),
and is under way until that learner's row comes back as the *answer*, or the asker forgets it, asks for something else,
or dies. What a request says is checked before anything is done; one that makes no sense
closes its link, and is counted with the malformed frames.
"""

import os
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from roundelay.algorithms.rules import find
from roundelay.core.effects import Rule
from roundelay.runtime.hosts.exchange.client import LARGEST, ONCE_MORE, LinkTraffic, largest
from roundelay.runtime.hosts.exchange.codec import WIDTH, Buffer, Fragment, Scratch, answer, land, load, turned
from roundelay.runtime.hosts.exchange.cpu_budget import CpuBudget
from roundelay.runtime.hosts.exchange.row_leases import RowLeases
from roundelay.runtime.hosts.transport.wire import Link, LinkError, Message, RejectedConnections
from roundelay.runtime.learner_state import Row
from roundelay.runtime.procs.coordination.outbox import is_here
from roundelay.runtime.procs.memory.arena import Arena, Layout
from roundelay.runtime.procs.memory.patience import Patience

SERVER = -2
"""What a wait for a lock calls the one who waits."""
REQUESTS = ("exchange", "please", "fetch")
"""What a conversation about an exchange or a fetch begins with."""


class _InvalidRequest(Exception):
    """A request that none of ours makes."""


@dataclass
class _Reply:
    number: int = -1
    kind: str = ""
    header: dict[str, Any] = field(default_factory=dict)
    payload: list[memoryview] = field(default_factory=list)


@dataclass(frozen=True)
class _Out:
    """A row that is under way to the asker."""

    number: int
    lease: int
    row: Row
    fragment: Fragment
    wire: str
    rule: Rule
    seen: int  # its version when it left


class ExchangeServer:
    """One host's side that is asked.

    Args:
        arena: path of the host's arena.
        layout: of that arena.
        here: the learners of this host; its rows, and the centre if learner 0 is one of them, are what others may
            exchange with.
        flights: which rows of this host are under way; its Ferry's too.
        patience: seconds, for a row's lock; less than the askers'. A row whose learner stands still in the middle of
            a step counts as dead.
        tally: counts requests that make no sense.
        pace: of this host; its Ferry's too.

    As for `Ferry`, torch should use one thread here.
    """

    def __init__(
        self,
        arena: str,
        layout: Layout,
        here: Sequence[int],
        row_leases: RowLeases,
        patience: float = 20.0,
        rejected: RejectedConnections | None = None,
        cpu_budget: CpuBudget | None = None,
    ) -> None:
        self.cpu_budget = cpu_budget
        self.arena, self.layout, self.here, self.row_leases, self.patience = (
            arena,
            layout,
            tuple(here),
            row_leases,
            patience,
        )
        self.rejected = rejected or RejectedConnections()
        self._gate = threading.Lock()
        self._sessions: dict[int, PeerSession] = {}
        self._errors: dict[int, Tensor] = {}
        self._closed = False
        self.error = ""
        """The traceback of what should not have happened, if something did."""

    def serve(self, link: Link) -> None:
        """Attend to what comes over `link`, on a thread of its own, until it is closed: a link whose hello says
        `"what": "ferry"`."""
        rank, host = link.hello.get("rank"), link.hello.get("host")
        learners = self.layout.learners
        known = type(rank) is int and 0 <= rank < learners and rank not in self.here
        known = known and type(host) is int and 0 <= host < learners
        with self._gate:
            if self._closed or not known:
                if not known:
                    link.blame(f"comes for the exchanges of learner {rank!r} of host {host!r}, who is not elsewhere")
                link.close()
                return
            assert isinstance(rank, int)
            link.largest = largest(self.layout)
            session = self._sessions.get(rank)
            if session is None:
                session = self._sessions[rank] = PeerSession(self, rank)
            session.attend(link)

    def living_changed(self) -> None:
        """Rows that are under way to the dead come back."""
        with self._gate:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.living_changed()

    def error_of(self, row: int) -> Tensor:
        """What rounding has left of row `row` (P,), guarded by that row's lock."""
        with self._gate:
            if row not in self._errors:
                self._errors[row] = torch.zeros(self.layout.parameters)
            return self._errors[row]

    def traffic(self) -> dict[int, LinkTraffic]:
        """By host that asks."""
        found: dict[int, LinkTraffic] = {}
        with self._gate:
            sessions = list(self._sessions.values())
        for session in sessions:
            for host, traffic in list(session.traffic.items()):
                found[host] = found.get(host, LinkTraffic()) + traffic
        return found

    def close(self) -> None:
        """Close all links. Safe to call twice."""
        with self._gate:
            self._closed = True
            sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.close()


class PeerSession:
    """Attends to one learner of another host, over one link at a time."""

    def __init__(self, server: ExchangeServer, asker: int) -> None:
        self._server, self._asker, layout = server, asker, server.layout
        self._arena = arena = Arena(
            os.open(server.arena, os.O_RDWR | os.O_CLOEXEC), layout, Patience(SERVER, server.patience)
        )
        self._rows = {
            rank: Row(rank, vector, arena.row_versions.versions, arena.row_locks[rank], arena.row_versions.in_flight)
            for rank, vector in enumerate(arena.rows())
            if is_here(rank, layout.learners, server.here)
        }
        self._alive = arena.liveness.alive
        self._hold, self._scratch = Buffer(layout.parameters, 1 + len(layout.memory)), Scratch()
        self._sent = Buffer(layout.parameters)
        self._out: _Out | None = None
        self._last, self._life = _Reply(), ""
        self._link: Link | None = None
        self._thread: threading.Thread | None = None
        self.traffic: dict[int, LinkTraffic] = {}

    def attend(self, link: Link) -> None:
        """From now on to `link`; whatever was before it is over first."""
        before, self._link = (self._link, self._thread), link
        if before[0] is not None:
            before[0].close()
        self._thread = threading.Thread(
            target=self._attend, args=(link, before[1]), daemon=True, name=f"ferry server of {link.peer}"
        )
        self._thread.start()

    def _attend(self, link: Link, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        life, host = str(link.hello.get("life")), link.hello["host"]
        if life != self._life:  # its numbers begin again
            self.give_up()
            self._life, self._last = life, _Reply()
        traffic = self.traffic.setdefault(host, LinkTraffic())
        sent, received = traffic.sent_bytes, traffic.received_bytes
        used, cpu_budget = time.thread_time(), self._server.cpu_budget
        try:
            while True:
                message = link.receive(None, into=self._hold.view)
                reply = self._answer(message)
                traffic.exchanges += message.kind in REQUESTS
                traffic.lost += reply.kind == "gone"
                link.send(reply.kind, reply.header, reply.payload)
                traffic.sent_bytes, traffic.received_bytes = sent + link.sent_bytes, received + link.received_bytes
                if cpu_budget is not None:
                    cpu_budget.spent(time.thread_time() - used)
                used = time.thread_time()
        except LinkError:
            pass
        except _InvalidRequest:
            link.blame("asks for an exchange that makes no sense")
        except Exception:
            self._server.error = traceback.format_exc()
        finally:
            link.close()
            traffic.sent_bytes, traffic.received_bytes = sent + link.sent_bytes, received + link.received_bytes

    def _answer(self, message: Message) -> _Reply:
        number, out = _whole(message.header, "n", LARGEST), self._out
        known = self._last.number == number
        if message.kind == "again":
            return self._last if known else _Reply(number, "unknown", {"n": number})
        if message.kind == "answer" and out is not None and out.number == number:
            self._last = self._take_answer(out, message)
            return self._last
        self.give_up()
        if message.kind in ONCE_MORE:
            return self._last if known and self._last.kind == "done" else _Reply(number, "gone", {"n": number})
        if message.kind not in REQUESTS:
            raise _InvalidRequest
        peer = _whole(message.header, "peer", self._server.layout.rows)
        row = self._rows.get(peer)
        if row is None:
            raise _InvalidRequest
        self._last = _Reply()
        do = {"exchange": self._exchange, "please": self._send_row, "fetch": self._fetch}[message.kind]
        try:
            done = do(row, message)
        except TimeoutError:
            done = None
        kind, header, payload = ("gone", {}, []) if done is None else ("row", *done)
        self._last = _Reply(number, kind, {"n": number, **header}, payload)
        return self._last

    def _lives(self, row: Row) -> bool:
        return row.rank == self._server.layout.learners or bool(self._alive[row.rank])

    def _fetch(self, row: Row, message: Message) -> tuple[dict[str, Any], list[memoryview]] | None:
        if len(message.payload):
            raise _InvalidRequest
        whole = Fragment.whole(self._server.layout.parameters)
        row.lock.acquire()
        try:
            if not self._lives(row):
                return None
            load(row, whole, "fp32", self._hold, None, self._scratch)
            return {"version": row.version}, [self._hold.filled(whole.size, "fp32")]
        finally:
            row.lock.release()

    def _exchange(self, row: Row, message: Message) -> tuple[dict[str, Any], list[memoryview]] | None:
        fragment, wire, rule, private, since = self._read(message)
        error = self._server.error_of(row.rank) if wire != "fp32" else None
        with self._server.row_leases.still(row.rank, self._server.patience):
            row.lock.acquire()
            try:
                if not self._lives(row):
                    return None
                header = {}
                if since is not None:
                    header["age"] = row.version - since
                    rule = partial(rule, age=header["age"])
                row.begin()
                answer(row, fragment, wire, self._hold, error, self._scratch, rule, private)
                row.end()
                header["version"] = row.version
            finally:
                row.lock.release()
        return header, [self._hold.filled(fragment.size, wire)]

    # Rows that travel from here ---------------------------------------------------------------------------------------

    def _send_row(self, row: Row, message: Message) -> tuple[dict[str, Any], list[memoryview]] | None:
        fragment, wire, rule, private, since = self._read(message)
        if private or since is not None or row.rank >= self._asker:
            raise _InvalidRequest
        server, deadline = self._server, time.monotonic() + 2 * self._server.patience
        error = server.error_of(row.rank) if wire != "fp32" else None
        lease = server.row_leases.take(
            row.rank, server.patience, lambda: not self._alive[self._asker] or time.monotonic() > deadline
        )
        try:
            row.lock.acquire()
            try:
                if not self._lives(row):
                    return None
                load(row, fragment, wire, self._sent, error, self._scratch)
                row.leave(lease)
                self._out = _Out(int(message.header["n"]), lease, row, fragment, wire, turned(rule), row.version)
            finally:
                row.lock.release()
        finally:
            if self._out is None:
                server.row_leases.give(row.rank, lease)
        return {"version": self._out.seen}, [self._sent.filled(fragment.size, wire)]

    def _take_answer(self, out: _Out, message: Message) -> _Reply:
        row, fragment, wire = out.row, out.fragment, out.wire
        if len(message.payload) != len(self._hold.filled(fragment.size, wire)):
            raise _InvalidRequest
        kind = "gone"
        row.lock.acquire()
        try:
            if row.check_in(out.lease) and self._lives(row):
                row.begin()
                untouched = row.version == out.seen
                land(row, fragment, wire, self._sent, self._hold, self._scratch, out.rule, [], untouched)
                row.end()
                kind = "done"
            version = row.version
        finally:
            row.lock.release()
        self.give_up()
        return _Reply(out.number, kind, {"n": out.number, "version": version})

    def living_changed(self) -> None:
        """See ExchangeServer."""
        if not self._alive[self._asker]:
            self.give_up()

    def give_up(self) -> None:
        """Whatever row is under way to the asker is so no longer. From any thread."""
        out, self._out = self._out, None
        if out is None:
            return
        with suppress(TimeoutError):
            out.row.lock.acquire()
            try:
                out.row.check_in(out.lease)
            finally:
                out.row.lock.release()
        self._server.row_leases.give(out.row.rank, out.lease)

    def _read(self, message: Message) -> tuple[Fragment, str, Rule, int, int | None]:
        """What an exchange is to do.

        Raises:
            _Nonsense: none of ours would ask for that.
        """
        header, layout = message.header, self._server.layout
        private, since = _whole(header, "private", 1 + len(layout.memory)), None
        if header.get("since") is not None:
            since = _whole(header, "since", LARGEST)
        whole, ends, wire = Fragment.whole(layout.parameters), header.get("chunks"), header.get("wire")
        if not isinstance(ends, list) or len(ends) != 2 or not isinstance(wire, str) or wire not in WIDTH:
            raise _InvalidRequest
        first, stop = (_whole({"end": end}, "end", whole.stop + 1) for end in ends)
        if not first < stop or ((private or since is not None) and wire != "fp32"):
            raise _InvalidRequest
        fragment = Fragment(first, stop, layout.parameters)
        if len(message.payload) != (message.kind == "exchange") * fragment.size * (WIDTH[wire] + 4 * private):
            raise _InvalidRequest
        try:
            return fragment, wire, find(header.get("rule"), private, since is not None), private, since
        except ValueError as error:
            raise _InvalidRequest from error

    def close(self) -> None:
        """Nobody is attended to any more."""
        if self._link is not None:
            self._link.close()
        if self._thread is not None:
            self._thread.join()
        self.give_up()
        self._arena.close()


def _whole(header: dict[str, Any], name: str, stop: int) -> int:
    value = header.get(name)
    if type(value) is not int or not 0 <= value < stop:
        raise _InvalidRequest
    return value
