"""Applies exchanges of other hosts' clients to rows of this host: the other half of client.py.

Every learner elsewhere has a session here for its exchanges and fetches, and one for its requests to lower ranks: a
thread, a link, room for one message, and the last reply, for the case that the link breaks before it has arrived. A
request is served by the client of the row that is asked for: it carries the row to the asker's host, where the asker's
own row is visited (states.py). So at most one request of each learner is pending here, however many it sends.
Whatever a message says is checked before anything is done; one that makes no sense closes its link, and is counted with
the malformed frames.
"""

import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from roundelay.algorithms.rules import StrategyRule
from roundelay.core.codec import FP32
from roundelay.core.effects import Exchange, Gather
from roundelay.runtime.hosts.exchange.client import ExchangeClient
from roundelay.runtime.hosts.exchange.gatherings import GatheringPlace
from roundelay.runtime.hosts.exchange.links import LinkTraffic
from roundelay.runtime.hosts.exchange.messages import (
    LARGEST_NUMBER,
    ExchangeTerms,
    Senseless,
    largest,
    read_gather,
    whole_number,
)
from roundelay.runtime.hosts.exchange.row_format import (
    Buffer,
    Fragment,
    Scratch,
    apply_along,
    apply_remote,
    apply_report,
    encode,
)
from roundelay.runtime.hosts.exchange.states import Event, ExchangeState, Role, State
from roundelay.runtime.hosts.transport.wire import Link, LinkError, Message
from roundelay.runtime.procs.coordination.outbox import is_here
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.patience import Patience
from roundelay.runtime.rows import Row
from roundelay.strategies.base import Strategy

SERVER = -2
"""The rank of the one who waits, in what is said of a wait for a lock."""


class _Superseded(Exception):
    """The client has come again over another link: it does not wait for this reply."""


@dataclass(frozen=True)
class _Reply:
    number: int = -1
    kind: str = ""
    header: dict[str, Any] = field(default_factory=dict)
    payload: tuple[memoryview, ...] = ()


@final
class ExchangeServer:
    """One host's side that is asked.

    Args:
        client: of this host; its arena, leases and allowance are the server's too. Its rows, and the centre if learner
            0 is here, are what others may exchange with.
        patience: seconds, for a row's lease and lock together; less than the askers'. A row whose learner stands still
            in the middle of a step counts as dead.
        strategy: of the run, for rules of its own.

    As for the client, torch should use one thread here.
    """

    def __init__(self, client: ExchangeClient, patience: float = 20.0, strategy: Strategy | None = None) -> None:
        self.client, self.patience, self.strategy = client, patience, strategy
        self._gate = threading.Lock()
        self._sessions: dict[tuple[int, bool], PeerSession] = {}
        self._errors: dict[int, Tensor] = {}
        self._closed = False
        self.error = ""
        """The traceback of what should not have happened, if something did."""

    def serve(self, link: Link) -> None:
        """Attend to what comes over `link`, on a thread of its own, until it is closed: a link whose hello says
        `"what": "exchange"`, of whom, and whether it is for requests."""
        rank, host, requests = link.hello.get("rank"), link.hello.get("host"), link.hello.get("requests") is True
        learners = self.client.layout.learners
        known = type(rank) is int and 0 <= rank < learners and rank not in self.client.here
        known = known and type(host) is int and 0 <= host < learners
        with self._gate:
            if self._closed or not known:
                if not known:
                    link.blame(f"comes for the exchanges of learner {rank!r} of host {host!r}, who is not elsewhere")
                link.close()
                return
            assert isinstance(rank, int)
            link.largest = 0 if requests else largest(self.client.layout)
            session = self._sessions.get((rank, requests))
            if session is None:
                session = self._sessions[rank, requests] = PeerSession(self, rank)
            session.attend(link)

    def error_of(self, row: int) -> Tensor:
        """The memory (P,) of the run's codec for when row `row` is visited, guarded by that row's lock."""
        with self._gate:
            if row not in self._errors:
                self._errors[row] = torch.zeros(self.client.layout.parameters)
            return self._errors[row]

    def traffic(self) -> dict[int, LinkTraffic]:
        """By host that asks."""
        with self._gate:
            sessions = list(self._sessions.values())
        return LinkTraffic.summed(session.traffic for session in sessions)

    def close(self) -> None:
        """Close all links. Safe to call twice."""
        with self._gate:
            self._closed = True
            sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.close()


@final
class PeerSession:
    """Attends to one learner of another host, over one link at a time."""

    def __init__(self, server: ExchangeServer, asker: int) -> None:
        self._server, self._client, self._asker = server, server.client, asker
        layout, patience = self._client.layout, Patience(SERVER, server.patience, self._look)
        self._arena = arena = Arena(os.open(self._client.arena, os.O_RDWR | os.O_CLOEXEC), layout, patience)
        here = self._client.here
        self._rows = {row.rank: row for row in arena.rows() if is_here(row.rank, layout.learners, here)}
        self._alive = arena.liveness.alive
        centre = self._rows.get(layout.learners)
        self._place = None if centre is None else GatheringPlace(arena, centre, asker, self._look)
        self._hold, self._scratch = Buffer(layout.parameters, 1 + len(layout.memory)), Scratch()
        self._state, self._last, self._life = ExchangeState(Role.SERVER), _Reply(), ""
        self._until = 0.0
        self._link: Link | None = None  # the newest
        self._mine: Link | None = None  # the thread's
        self._thread: threading.Thread | None = None
        self.traffic: dict[int, LinkTraffic] = {}

    def attend(self, link: Link) -> None:
        """From now on to `link`; whatever was before it is over first."""
        before, self._link = (self._link, self._thread), link
        if before[0] is not None:
            before[0].close()
        self._thread = threading.Thread(
            target=self._attend, args=(link, before[1]), daemon=True, name=f"exchange server of {link.peer}"
        )
        self._thread.start()

    def _attend(self, link: Link, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        self._mine, life, host = link, str(link.hello.get("life")), link.hello["host"]
        if life != self._life:  # its numbers begin again
            self._life = life
            self._forget()
        traffic = self.traffic.setdefault(host, LinkTraffic())
        sent, received = traffic.sent_bytes, traffic.received_bytes
        used, cpu_budget = time.thread_time(), self._client.cpu_budget
        try:
            while True:
                message = link.receive(None, into=self._hold.view)  # a message that breaks is forgotten
                reply = self._answer(message)
                counts = message.kind != Event.AGAIN.value and message.header.get("asked") is None
                traffic.exchanges += counts
                traffic.lost += counts and reply.kind == Event.GONE.value
                link.send(reply.kind, {"n": reply.number, **reply.header}, reply.payload)
                traffic.sent_bytes, traffic.received_bytes = sent + link.sent_bytes, received + link.received_bytes
                if cpu_budget is not None:
                    cpu_budget.spent(time.thread_time() - used)
                used = time.thread_time()
        except (LinkError, _Superseded):
            pass
        except Senseless as error:
            link.blame(f"asks for an exchange that makes no sense: {error}")
        except Exception:
            self._server.error = traceback.format_exc()
        finally:
            if self._state.offer(Event.CUT):  # nothing has come of the last message
                self._last = _Reply()
            link.close()
            traffic.sent_bytes, traffic.received_bytes = sent + link.sent_bytes, received + link.received_bytes

    def _forget(self) -> None:
        self._state.take(Event.FORGET)
        self._last = _Reply()

    def _answer(self, message: Message) -> _Reply:
        number, state = whole_number(message.header, "n", LARGEST_NUMBER), self._state
        if number != self._last.number:
            self._forget()
        sent_again = message.kind == "request" and state.state is not State.IDLE
        if message.kind == Event.AGAIN.value or sent_again:
            state.take(Event.AGAIN)
            return _Reply(number, state.word) if state.state is State.IDLE else self._last
        do = self._checked(message, number)
        state.take(Event.RECEIVE)
        self._last, self._until = _Reply(), time.monotonic() + self._server.patience
        try:
            found = do()
        except TimeoutError:
            found = None
        state.take(Event.GIVE_UP if found is None else Event.APPLY)
        self._last = _Reply(number, state.word) if found is None else found
        return self._last

    def _checked(self, message: Message, number: int) -> Callable[[], _Reply | None]:
        """A function that does as the message asks and makes the reply; None, or TimeoutError: nobody is there.

        Raises:
            Senseless: none of our clients would ask for that.
        """
        layout, kind = self._client.layout, message.kind
        row = self._rows.get(whole_number(message.header, "peer", layout.rows))
        if row is None or kind not in ("exchange", "request", "fetch"):
            raise Senseless(f"a message {kind!r}, or a row that is not here")
        if kind == "fetch":
            if len(message.payload):
                raise Senseless("a fetch with a payload")
            if "gather" in message.header:
                return self._checked_question(message, number)
            return partial(self._fetch, row, number)
        terms = ExchangeTerms.read(message, layout, self._server.strategy)
        if kind == "request":
            if not terms.mutual or terms.asked is not None or row.rank >= self._asker:
                raise Senseless("a request that is not for a lower rank")
            return partial(self._carry, row, terms.turned_to(self._asker, number), number)
        if terms.mutual and row.rank <= self._asker:
            raise Senseless("a row that travels to a lower rank")
        if "gather" in message.header:
            if not terms.report:
                raise Senseless("a gathering is for reports")
            give = Exchange(row.rank, terms.applied(strategy=self._server.strategy), theirs=terms.beside)
            return partial(self._come, row, terms, self._gather(message, give), number)
        return partial(self._visit, row, terms, number)

    def _gather(self, message: Message, give: Exchange | None = None) -> Gather:
        return read_gather(message.header, self._client.layout, give, self._server.strategy)

    def _checked_question(self, message: Message, number: int) -> Callable[[], _Reply | None]:
        """A learner that is at a gathering asks whether it may go on, or comes with nothing."""
        place, gather, comes = self._place, self._gather(message), message.header.get("comes") is True
        if place is None:
            raise Senseless("the centre is not here")

        def answer() -> _Reply:
            waits = place.arrives(gather) if comes else not place.goes_on(gather)
            return _Reply(number, "row", {"waits": int(waits)})

        return answer

    def _lives(self, row: Row) -> bool:
        return row.rank == self._client.layout.learners or bool(self._alive[row.rank])

    def _fetch(self, row: Row, number: int) -> _Reply | None:
        whole = Fragment.whole(self._client.layout.parameters)
        with row.lock:
            if not self._lives(row):
                return None
            encode(row, whole, FP32, self._hold, None, self._scratch)
            header = {"version": row.version}
        return _Reply(number, "row", header, (self._hold.filled(whole.size, FP32),))

    def _visit(self, row: Row, terms: ExchangeTerms, number: int) -> _Reply | None:
        fragment, codec, header, share = terms.fragment, terms.codec, dict[str, Any](), None
        error = terms.memory(self._arena, row.rank, partial(self._server.error_of, row.rank))
        with self._client.row_leases.held(row.rank, self._server.patience, self._look), row.lock:
            if not self._lives(row) or not self._is_wanted(row, terms):
                return None
            if terms.since is not None:
                header["age"] = row.version - terms.since
            if terms.decay is not None:
                header["share"] = share = terms.share(weight := row.weight)
                row.fade(weight, terms.decays[1])
                if terms.asked is not None:
                    row.meets(self._asker, share)
            rule: Any = terms.applied(header.get("age"), self._server.strategy, share)
            row.begin()
            if terms.report:
                beside = [row.memory[name] for name in terms.beside]
                apply_report(row, self._hold, beside, self._scratch, rule)
            elif terms.along:
                apply_along(row, [self._arena.vector(name, row.rank) for name in terms.along], self._hold, rule)
            else:
                apply_remote(row, fragment, codec, self._hold, error, self._scratch, rule, terms.private)
            row.end()
            header["version"] = row.version
        if isinstance(rule, StrategyRule) and rule.opens and self._place is not None:
            self._place.begin()
        return _Reply(number, "row", header, (self._hold.view[: terms.vector_bytes],) if terms.returns else ())

    def _come(self, row: Row, terms: ExchangeTerms, gather: Gather, number: int) -> _Reply | None:
        """A learner comes to a gathering, and gives what it brings, if that counts."""
        place = self._place
        assert place is not None  # the row is the centre
        counts, reply = place.admits(gather), _Reply(number, "row", {"version": row.version})
        if counts:
            found = self._visit(row, terms, number)
            if found is None:
                return None
            reply = found
        waits = place.arrives(gather)
        return replace(reply, header={**reply.header, "counts": int(counts), "waits": int(waits)})

    def _is_wanted(self, row: Row, terms: ExchangeTerms) -> bool:
        """If the learner of `row` has asked for this exchange: does it still wait for it, and has it not had it?"""
        channel = self._client.channels.get(row.rank)
        return terms.asked is None or (channel is not None and channel.visited(terms.asked, self._asker))

    def _carry(self, row: Row, terms: ExchangeTerms, number: int) -> _Reply | None:
        """Let `row` travel to the asker's."""
        carrier = self._client.channels[row.rank].carrier
        try:
            carried = carrier.exchange(terms, (), partial(self._lives, row), self._look)
        except LinkError:  # of that client's, not of this session's
            return None
        return None if carried is None else _Reply(number, "done", {"version": carried.version})

    def _look(self) -> None:
        """Called while this waits for a row."""
        if self._mine is None or self._mine.closed:
            raise _Superseded
        if time.monotonic() > self._until:
            raise TimeoutError("a row that others want is busy")

    def close(self) -> None:
        """Nobody is attended to any more."""
        if self._link is not None:
            self._link.close()
        if self._thread is not None:
            self._thread.join()
        self._arena.close()
