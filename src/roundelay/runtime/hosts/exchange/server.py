"""Server of this host: it applies exchanges of other hosts' clients (client.py) to rows of this one.

Every learner elsewhere has a session here for its exchanges and fetches, and one for its requests to lower ranks: a
link, and the last reply, for the case that the link breaks before it has arrived. It takes a thread while it attends to
a message (links.py), and one of the host's buffers while a row is on its way (buffer_pool.py). A request is served
by the client of the row that is asked for: it carries the row to the asker's host, where the asker's own row is visited
(states.py). So at most one request of each learner is pending here, however many it sends. All of a message is checked
before anything is done; one that makes no sense closes its link, and is counted with the malformed frames.
"""

import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from roundelay.algorithms.rules import StrategyRule
from roundelay.core.codec import FP32
from roundelay.core.effects import Exchange, Gather
from roundelay.runtime.hosts.exchange.buffer_pool import BufferPool
from roundelay.runtime.hosts.exchange.client import ExchangeClient
from roundelay.runtime.hosts.exchange.gatherings import GatheringPlace
from roundelay.runtime.hosts.exchange.links import LinkTraffic, LinkWatch
from roundelay.runtime.hosts.exchange.messages import (
    GIVE_DIALECT,
    AgainMessage,
    DoneReply,
    ExchangeMessage,
    ExchangeTerms,
    FetchMessage,
    FoundReply,
    GiveMessage,
    GoneReply,
    Reply,
    RequestMessage,
    RowReply,
    SettledMessage,
    UnknownReply,
    asked_by,
    largest,
    read_gather,
)
from roundelay.runtime.hosts.exchange.row_format import (
    Buffer,
    Fragment,
    Scratch,
    apply_along,
    apply_remote,
    apply_reply,
    apply_report,
    encode,
    swapped,
)
from roundelay.runtime.hosts.exchange.states import Event, ExchangeState, Role, State
from roundelay.runtime.hosts.terms import ExchangeHello
from roundelay.runtime.hosts.transport.wire import BadFrame, Link, LinkError, LinkTimeout
from roundelay.runtime.messages import InvalidMessage
from roundelay.runtime.procs.coordination.outbox import Gathering, is_here
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.rows import Row
from roundelay.strategies.base import Strategy

SERVER = -2
"""Number of a server, in the place of a rank, in messages about a wait for a lock."""


BUFFERS_A_ROW = 2
"""Buffers for each row of this host, and for the centre: one for the payload that is applied to the row, one for the
next that comes."""


class _OfThread(threading.local):
    """Scratch chunks of each thread, which stay in its cache."""

    def __init__(self) -> None:
        self.scratch = Scratch()


class _Superseded(Exception):
    """Error: the client has come again over another link, and does not wait for this reply."""


@dataclass(frozen=True)
class _Reply:
    said: Reply = Reply(-1)
    payload: tuple[memoryview, ...] = ()


@final
class ExchangeServer:
    """Server of one host for exchanges that clients of other hosts ask for.

    Args:
        client: of this host; its arena, leases and allowance are the server's too. Others may exchange with its rows,
            and with the centre while that is here.
        patience: most seconds for a row's lease and lock together; less than the askers' patience. A row whose learner
            stands still in the middle of a step counts as dead.
        strategy: the strategy of the run, for rules of its own.

    As for the client, torch should use one thread here.
    """

    def __init__(self, client: ExchangeClient, patience: float = 20.0, strategy: Strategy | None = None) -> None:
        self.client, self.patience, self.strategy = client, patience, strategy
        self._gate = threading.Lock()
        self._sessions: dict[tuple[int, bool], PeerSession] = {}
        layout = client.layout
        self.buffers = BufferPool(
            partial(Buffer, layout.parameters, 1 + len(layout.memory)), BUFFERS_A_ROW * (len(client.here) + 1)
        )
        self._errors: dict[int, Tensor] = {}
        self._closed = False
        self.watch, self.of_thread = LinkWatch("exchange server"), _OfThread()
        self.error = ""
        """The traceback of an unexpected error, if there was one."""

    def serve(self, link: Link) -> None:
        """Attend to messages over `link`, in other threads, until it is closed: a link whose hello says `"what":
        "exchange"`, the learner it is for, and whether it is for requests."""
        try:
            hello = ExchangeHello.of(link, rank=self.client.layout.learners - 1)
        except BadFrame:
            return
        if hello.rank in self.client.here:
            link.blame(f"comes for the exchanges of learner {hello.rank}, who is not elsewhere")
        with self._gate:
            if self._closed or link.closed:
                link.close()
                return
            link.largest = 0 if hello.requests else largest(self.client.layout)
            session = self._sessions.get((hello.rank, hello.requests))
            if session is None:
                session = self._sessions[hello.rank, hello.requests] = PeerSession(self, hello.rank)
            session.attend(link, hello)

    def living_changed(self) -> None:
        """Read from the arena which learners live now, and let go of what dead ones hold."""
        with self._gate:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.living_changed()

    def error_of(self, row: int) -> Tensor:
        """Return what the run's codec has left out of visited row `row`, (P,), guarded by the row's lock."""
        with self._gate:
            if row not in self._errors:
                self._errors[row] = torch.zeros(self.client.layout.parameters)
            return self._errors[row]

    def traffic(self) -> dict[int, LinkTraffic]:
        """Return the traffic with each host that asks."""
        with self._gate:
            sessions = list(self._sessions.values())
        return LinkTraffic.summed(session.traffic for session in sessions)

    def close(self) -> None:
        """Close all links. Safe to call twice."""
        with self._gate:
            closed, self._closed = self._closed, True
            sessions, self._sessions = list(self._sessions.values()), {}
        if closed:
            return
        for session in sessions:
            session.hang_up()
        self.watch.close()
        for session in sessions:
            session.close()


@final
class PeerSession:
    """Session of one learner of another host with this server, over one link at a time."""

    def __init__(self, server: ExchangeServer, asker: int) -> None:
        self._server, self._client, self._asker = server, server.client, asker
        layout, patience = self._client.layout, Patience(SERVER, server.patience, self._look)
        self._arena = arena = self._client.arena.with_own_locks(patience)
        self._rows = {rank: arena.row(rank) for rank in (*self._client.here, *range(layout.learners, layout.rows))}
        self._alive, self._dialect = arena.liveness.alive, asked_by(layout)
        self._gatherings: GatheringPlace | None = None
        self._hold: Buffer | None = None  # while a row comes, is applied, and is in the last reply
        self._meets = False  # while both rows travel
        self._state, self._last, self._life = ExchangeState(Role.SERVER), _Reply(), ""
        self._until = 0.0
        self._turn = threading.Lock()  # held while a message is attended to
        self._link: Link | None = None  # the newest
        self._mine: Link | None = None  # that of the last message
        self._before = 0, 0  # bytes sent to and received from its host over links before
        self.traffic: dict[int, LinkTraffic] = {}

    @property
    def _place(self) -> GatheringPlace | None:
        """Place of the learner at gatherings, if the centre is here; it may have been made again here."""
        centre = self._client.layout.learners
        if self._gatherings is None and is_here(self._arena, centre, self._client.here) and centre in self._rows:
            self._gatherings = GatheringPlace(self._arena, self._rows[centre], self._asker, self._look)
        return self._gatherings

    def attend(self, link: Link, hello: ExchangeHello) -> None:
        """Attend to `link` from now on; the link before it is closed first."""
        before, self._link = self._link, link
        if before is not None:
            before.close()
        self._server.watch.add(link, partial(self._attend, link, hello))

    def _attend(self, link: Link, hello: ExchangeHello) -> bool:
        """Handle the next message over `link`; return False if no more will come, or it was replaced."""
        with self._turn:
            if link is not self._link:
                return False
            traffic = self.traffic.setdefault(hello.host, LinkTraffic())
            if link is not self._mine:
                self._mine, self._before = link, (traffic.sent_bytes, traffic.received_bytes)
                if hello.life != self._life:  # its numbers begin again
                    self._life = hello.life
                    self._settle()
            used, goes_on = time.thread_time(), False
            try:
                self._hear(link, traffic)
                goes_on = True
            except LinkTimeout:  # it was looked at for nothing
                goes_on = True
            except (LinkError, _Superseded):
                pass
            except InvalidMessage as error:
                link.blame(f"asks for an exchange that makes no sense: {error}")
            except Exception:
                self._server.error = traceback.format_exc()
            sent, received = self._before
            traffic.sent_bytes, traffic.received_bytes = sent + link.sent_bytes, received + link.received_bytes
            self._client.spent(time.thread_time() - used)
            if not goes_on:
                link.close()
                self._forget_the_dead()
            return goes_on

    def _hear(self, link: Link, traffic: LinkTraffic) -> None:
        """Receive the next message over `link`, and reply to it."""
        try:
            message = link.hear(self._dialect, 0.0, into=self._room)  # a message that breaks is forgotten
            if isinstance(message, SettledMessage):
                if message.n == self._last.said.n:
                    self._settle()
                return
            if isinstance(message, GiveMessage):  # for an exchange of which nothing has come
                return
            assert isinstance(message, ExchangeMessage | FetchMessage | AgainMessage)
            reply = self._answer(message)
            counts = not isinstance(message, AgainMessage) and getattr(message, "asked", None) is None
            traffic.exchanges += counts
            traffic.lost += counts and isinstance(reply.said, GoneReply)
            if not self._last.payload and not reply.payload:
                self._drop()
            link.say(reply.said, reply.payload)
        finally:
            if self._state.offer(Event.CUT):  # nothing has come of the message
                self._last = _Reply()
            if not self._last.payload:
                self._drop()

    def living_changed(self) -> None:
        """End exchanges in which a row of this host is in flight to the learner, if that is dead, and drop the row kept
        for a reply once its link is closed. From any thread."""
        if self._meets and not self._alive[self._asker]:
            self.hang_up()
        if self._turn.acquire(blocking=False):  # else the thread that has it looks too, when the link ends
            try:
                self._forget_the_dead()
            finally:
                self._turn.release()

    def _forget_the_dead(self) -> None:
        if self._link is not None and self._link.closed and not self._alive[self._asker] and self._last.payload:
            self._last = _Reply(GoneReply(self._last.said.n))  # should it be asked for all the same
            self._drop()

    def _forget(self) -> None:
        """Forget the last exchange and its reply: it is over for its client."""
        self._state.take(Event.FORGET)
        self._last = _Reply()

    def _settle(self) -> None:
        self._forget()
        self._drop()

    def _room(self, size: int) -> memoryview:
        """Return room for the payload of a message that begins to come."""
        if not size:
            return memoryview(b"")
        self._forget()  # a client that sends a row waits for no reply
        return self._buffer().view

    def _buffer(self) -> Buffer:
        if self._hold is None:
            self._hold = self._server.buffers.take()
        return self._hold

    def _drop(self) -> None:
        if self._hold is not None:
            self._server.buffers.give_back(self._hold)
            self._hold = None

    def _answer(self, message: ExchangeMessage | FetchMessage | AgainMessage) -> _Reply:
        number, state = message.n, self._state
        if number != self._last.said.n:
            self._forget()
        sent_again = isinstance(message, RequestMessage) and state.state is not State.IDLE
        if isinstance(message, AgainMessage) or sent_again:
            state.take(Event.AGAIN)
            return _Reply(UnknownReply(number)) if state.state is State.IDLE else self._last
        do = self._checked(message)
        state.take(Event.RECEIVE)
        self._last, self._until = _Reply(), time.monotonic() + self._server.patience
        try:
            found = do()
        except TimeoutError:
            found = None
        state.take(Event.GIVE_UP if found is None else Event.APPLY)
        found = _Reply(GoneReply(number)) if found is None else found
        # A fetch is not asked about: it is made again. Where both rows travel the asker has this one already.
        self._last = replace(found, payload=()) if isinstance(message, FetchMessage) else found
        return replace(found, payload=()) if getattr(message, "both", False) else found

    def _checked(self, message: ExchangeMessage | FetchMessage) -> Callable[[], _Reply | None]:
        """Check a message, and return a function that does as it asks and returns the reply. If that function returns
        None or raises TimeoutError, the exchange was not made.

        Raises:
            InvalidMessage: the message makes no sense in this run.
        """
        layout, number, row = self._client.layout, message.n, self._rows.get(message.peer)
        if row is None or not is_here(self._arena, message.peer, self._client.here):
            raise InvalidMessage(f"row {message.peer} is not here")
        if isinstance(message, FetchMessage):
            if len(message.payload):
                raise InvalidMessage("a fetch with a payload")
            if message.gather is not None:
                return self._checked_question(message, self._gather(message.gather))
            return partial(self._fetch, row, number)
        terms = ExchangeTerms.read(message, layout, self._server.strategy)
        if isinstance(message, RequestMessage):
            if not terms.mutual or terms.asked is not None or row.rank >= self._asker:
                raise InvalidMessage("a request that is not for a lower rank")
            return partial(self._carry, row, terms.turned_to(self._asker, number), number)
        if terms.mutual and row.rank <= self._asker:
            raise InvalidMessage("a row that travels to a lower rank")
        if message.gather is not None:
            if not terms.report:
                raise InvalidMessage("a gathering is for reports")
            give = Exchange(row.rank, terms.applied(strategy=self._server.strategy), theirs=terms.beside)
            return partial(self._come, row, terms, self._gather(message.gather, give), number)
        return partial(self._meet if message.both else self._visit, row, terms, number)

    def _gather(self, said: Gathering, give: Exchange | None = None) -> Gather:
        return read_gather(said, self._client.layout, give, self._server.strategy)

    def _checked_question(self, message: FetchMessage, gather: Gather) -> Callable[[], _Reply | None]:
        """Return a function that replies to a learner that asks if it may go on, or comes with nothing."""
        place = self._place
        if place is None:
            raise InvalidMessage("the centre is not here")

        def answer() -> _Reply:
            waits = place.arrives(gather) if message.comes else not place.goes_on(gather)
            return _Reply(RowReply(message.n, 0, waits=waits))

        return answer

    def _lives(self, row: Row) -> bool:
        return row.rank == self._client.layout.learners or bool(self._alive[row.rank])

    def _fetch(self, row: Row, number: int) -> _Reply | None:
        whole = Fragment.whole(self._client.layout.parameters)
        hold = self._buffer()
        with row.lock:
            if not self._lives(row):
                return None
            encode(row, whole, FP32, hold, None, self._server.of_thread.scratch)
            reply = RowReply(number, row.version)
        return _Reply(reply, (hold.filled(whole.size, FP32),))

    def _visit(self, row: Row, terms: ExchangeTerms, number: int) -> _Reply | None:
        fragment, codec, age, share = terms.fragment, terms.codec, None, None
        error, hold = terms.memory(self._arena, row.rank, partial(self._server.error_of, row.rank)), self._buffer()
        with self._client.row_leases.held(row.rank, self._server.patience, self._look), row.lock:
            if not self._lives(row) or not self._is_wanted(row, terms):
                return None
            if terms.since is not None:
                age = row.version - terms.since
            if terms.decay is not None:
                share = terms.share(weight := row.weight)
                row.fade(weight, terms.decays[1])
                if terms.asked is not None:
                    row.meets(self._asker, share)
            rule: Any = terms.applied(age, self._server.strategy, share)
            row.begin()
            if terms.report:
                beside = [row.memory[name] for name in terms.beside]
                apply_report(row, hold, beside, self._server.of_thread.scratch, rule)
            elif terms.along:
                apply_along(row, [self._arena.vector(name, row.rank) for name in terms.along], hold, rule)
            else:
                apply_remote(row, fragment, codec, hold, error, self._server.of_thread.scratch, rule, terms.private)
            row.end()
            reply = RowReply(number, row.version, age, share)
        if isinstance(rule, StrategyRule) and rule.opens and (place := self._place) is not None:
            place.begin()
        return _Reply(reply, (hold.view[: terms.vector_bytes],) if terms.returns else ())

    def _meet(self, row: Row, terms: ExchangeTerms, number: int) -> _Reply | None:
        """Send `row` while the asker's row comes, and then apply the rule to `row`. Both rows are in flight meanwhile;
        the holder of the asker's row waits for `row` alone, which is of higher rank."""
        fragment, codec, scratch = terms.fragment, terms.codec, self._server.of_thread.scratch
        error, weight, share = terms.memory(self._arena, row.rank, partial(self._server.error_of, row.rank)), 0.0, None
        with self._client.row_leases.held(row.rank, self._server.patience, self._look) as lease:
            try:
                hold = self._buffer()
                with row.lock:
                    if not self._lives(row) or not self._is_awaited(row, terms):
                        return None
                    self._client.notes.sent(row, self._asker, number)
                    encode(row, fragment, codec, hold, error, scratch)
                    row.check_out(lease)
                    seen = row.version
                    if terms.decay is not None:
                        share = terms.share(weight := row.weight)
                payload = hold.filled(fragment.size, codec)
                came = self._server.buffers.take()
                try:
                    self._swap(number, payload, came)
                    with row.lock:
                        if not row.check_in(lease) or not self._is_wanted(row, terms):
                            return None
                        self._client.notes.taken(row, self._asker, number)
                        row.fade(weight, terms.decays[1])
                        if share is not None and terms.asked is not None:
                            row.meets(self._asker, share)
                        rule, untouched = swapped(terms.applied(share=share)), row.version == seen
                        row.begin()
                        apply_reply(row, fragment, codec, hold, came, scratch, rule, (), untouched)
                        row.end()
                        return _Reply(RowReply(number, row.version, None, share), (payload,))
                finally:
                    self._server.buffers.give_back(came)
            finally:
                row.check_in(lease)

    def _swap(self, number: int, payload: memoryview, came: Buffer) -> None:
        """Send a row, `payload`, while the other comes into `came`.

        Raises:
            LinkError, TimeoutError: one of the rows did not get through.
        """
        link, gone = self._mine, threading.Event()
        assert link is not None

        def give() -> None:
            used = time.thread_time()
            with suppress(LinkError):  # then the link is closed, and its reader notices
                link.say(FoundReply(number), (payload,))
            self._client.spent(time.thread_time() - used)
            gone.set()

        self._meets = True
        self._server.watch.workers.do(give)
        try:
            if not self._alive[self._asker]:  # it has died before a thread could hang up
                raise TimeoutError("who asked is dead")
            message = link.hear(GIVE_DIALECT, max(0.0, self._until - time.monotonic()), into=came.view)
            assert isinstance(message, GiveMessage)
            if message.n != number or len(message.payload) != len(payload):
                raise InvalidMessage(f"{len(message.payload)} bytes of a row, where {len(payload)} are due")
        except BaseException as error:
            link.close()
            if isinstance(error, LinkTimeout):  # of a row that should have come, not of a message that may
                raise TimeoutError("a row that was announced does not come") from error
            raise
        finally:
            gone.wait()
            self._meets = False

    def _come(self, row: Row, terms: ExchangeTerms, gather: Gather, number: int) -> _Reply | None:
        """Let the learner come to a gathering, apply its contribution to `row` if that counts, and return the reply."""
        place = self._place
        assert place is not None  # the row is the centre
        counts, reply = place.admits(gather), _Reply(RowReply(number, row.version))
        if counts:
            found = self._visit(row, terms, number)
            if found is None:
                return None
            reply = found
        assert isinstance(reply.said, RowReply)
        return replace(reply, said=replace(reply.said, counts=counts, waits=place.arrives(gather)))

    def _is_awaited(self, row: Row, terms: ExchangeTerms) -> bool:
        """Return True unless the learner of `row` has asked for this exchange and waits no more, or has had it."""
        channel = self._client.channels.get(row.rank)
        return terms.asked is None or (channel is not None and channel.awaits(terms.asked, self._asker))

    def _is_wanted(self, row: Row, terms: ExchangeTerms) -> bool:
        """Return True if `_is_awaited`, and note that the exchange is made now."""
        channel = self._client.channels.get(row.rank)
        return terms.asked is None or (channel is not None and channel.visited(terms.asked, self._asker))

    def _carry(self, row: Row, terms: ExchangeTerms, number: int) -> _Reply | None:
        """Have the client of this host exchange `row` with the asker's; return the reply; None: it failed."""
        carrier = self._client.channels[row.rank].carrier
        try:
            carried = carrier.exchange(terms, (), partial(self._lives, row), self._look)
        except LinkError:  # of that client's, not of this session's
            return None
        return None if carried is None else _Reply(DoneReply(number, carried.version))

    def _look(self) -> None:
        """Raise an error if a wait for a row is to end: the link is closed or replaced, or it has taken too long."""
        if self._mine is None or self._mine.closed:
            raise _Superseded
        if time.monotonic() > self._until:
            raise TimeoutError("a row that others want is busy")

    def hang_up(self) -> None:
        """Close the link of the session."""
        if self._link is not None:
            self._link.close()

    def close(self) -> None:
        """Close the session: no further message is handled."""
        self._arena.close()
