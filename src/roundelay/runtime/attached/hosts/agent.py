"""Agent of a session of attached learners: the process of every host but the first."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty
from typing import final

from roundelay.core.errors import UserError
from roundelay.runtime.attached import handover
from roundelay.runtime.attached.between_hosts import FIRST_HOST_LOST, place_of_model
from roundelay.runtime.attached.hosts.columns import COLUMN_SECONDS, ColumnSender
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.attached.hosts.taking_over import RECENT, Given
from roundelay.runtime.base import wall_clock
from roundelay.runtime.hosts.control import messages
from roundelay.runtime.hosts.control.finding import PeerState, Search, StartWait, boot_clock, say_who_leads
from roundelay.runtime.hosts.control.host_agent import HostAgent
from roundelay.runtime.hosts.control.lease import Promise, Voter, may_win
from roundelay.runtime.hosts.control.succession import look_for
from roundelay.runtime.hosts.transport.heartbeat import Router
from roundelay.runtime.hosts.transport.wire import Address, LinkError, LinkTimeout
from roundelay.runtime.messages import Dialect, InvalidMessage, Message
from roundelay.runtime.procs.coordination import passes
from roundelay.runtime.procs.memory.views import NONE

SHORTEST_SECONDS = 0.1
"""Seconds for the last attempt to find the leader."""
AGAIN_SECONDS = 0.1
"""Pause before the first host is looked for again, which was just ending another session."""


@final
class SessionAgent(HostAgent):
    """Agent of one host in one session of attached learners."""

    def __init__(self, host: SessionHost, router: Router) -> None:
        number, ring, most = host.request.number, host.bell.ring, host.place.learners - 1
        dialect = Dialect(*messages.TO_ALL, *messages.TO_SESSION, rank=most)
        super().__init__(host.place, host.terms, router.listener, host.links, dialect, number, ring)
        self._host = self._learners = host
        self._beside = "mean", place_of_model(range(host.place.learners), host.here)
        self._begun = self._finished = False
        self.late = False
        """True if this host comes back to a session that runs."""
        self._whole = False  # are all learners of this host still to be let in, together?
        self._said_back: list[int] = []  # ranks that wait for that, as reported last
        self._to_dial: Sequence[Address] | None = None  # hosts to which this one has no links yet
        self._dials, self._unreached = host.strategy.traits.synchronous, ""  # while it has no links to all others
        self._given: dict[int, bytearray] = {}  # by rank, of the state of a learner that comes back
        self._forwarded = dict.fromkeys(host.here, 0)  # requests for minibatches
        self.recent = deque[Given](maxlen=RECENT)
        """Minibatches that learners of this host were given last, in turn."""
        self.promise = Promise(host.terms.host_patience)
        self.ended: frozenset[str] = frozenset()
        """Lives of processes that led and have surely ended."""
        self.succeeds = False
        """True after `run` where this host is the next that leads."""
        self._sender = self._new_sender()

    def _new_sender(self) -> ColumnSender:
        host = self._host
        return ColumnSender(host.columns, host.here, host.strategy.traits.synchronous, self._send)

    # The beginning ----------------------------------------------------------------------------------------------------

    def open(self, stop: Callable[[], object] = lambda: None) -> None:
        """Find the first host, and store the learners' first rows that it sends. `stop` is called meanwhile, and may
        raise to end the wait.

        Raises:
            UserError: the first host does not answer, or refuses this host.
        """
        seconds = self._terms.patience_seconds
        deadline, lasts = wall_clock() + seconds, StartWait(self._host.here[0], seconds, stop)
        while not self._begun:
            self._connect(deadline - wall_clock(), lasts)
            while not (self._begun or self._lost or self._over):
                if wall_clock() > deadline:
                    raise self._nobody(seconds, "hosts are still missing")
                lasts.look("the host that leads to begin the session, or to let this one in")
                self._do_next(0.05)
            if isinstance(self._over, messages.HostRefused):
                raise UserError(f"rank {self._host.here[0]}: the first host says: {self._over.why}")
            if not self._begun:
                time.sleep(AGAIN_SECONDS)

    def _connect(self, seconds: float, lasts: StartWait) -> None:
        self.close()
        seconds, other, terms = max(SHORTEST_SECONDS, seconds), None, self._terms
        if self._place.peers:
            search = Search(self._place, terms, self._session, str(self._listener.hello["life"]))
            found = search.wait(seconds, lasts)
            if found is None:
                raise self._nobody(terms.patience_seconds, "no host says who leads")
            other, seconds = (found.address, found.rank), min(seconds, terms.host_patience)
        try:
            link = self._find(seconds, other, lasts=lasts)
        except (LinkTimeout, UserError) as error:
            if other is not None and seconds > SHORTEST_SECONDS:  # lost since: others may know the new leader by now
                self._lost = str(error)
                return
            if isinstance(error, UserError):
                raise
            raise self._nobody(terms.patience_seconds, str(error)) from error
        self._follow(link)
        self._say_built()

    def _follow_next(self) -> bool:
        """Follow the host that leads next, or become it, when the link to the leader is gone. Return False if the
        session is over for this host."""
        host, hosts = self._host, self.hosts
        sys.stderr.write(f"roundelay: rank {host.here[0]}: the link to the host that leads is gone: {self._lost}\n")
        self.close()
        if not self._begun or not host.request.outlives_its_leader or not self._may_leave():
            return False
        if host.arena.layout.centre:
            host.links.endpoint.lose_centre()
        host.lose(hosts.ranks[hosts.leader])
        for number in hosts.after():
            if number == hosts.own:
                self.succeeds = True
                return True
            try:
                link = self._find(self._terms.host_patience, (hosts.addresses[number], hosts.ranks[number][0]), True)
            except (LinkTimeout, UserError):
                host.lose(hosts.ranks[number])  # the next one knows, if it comes to that
                continue
            self.hosts = replace(self.hosts, leader=number)
            host.links.leader = number  # before it hears that this host follows it
            self._follow(link)
            self._sender = self._new_sender()
            self._forwarded = {rank: int(host.between.answered[rank]) for rank in host.here}
            read = tuple(host.arena.requests.read[list(host.here)].tolist())
            self._send(messages.Stays(tuple(self.recent), int(host.between.conducted[0]), self.promise.views, read))
            self._said_back = []
            return True
        return False

    def _may_leave(self) -> bool:
        """Return True if this host may follow another leader: once the old leader has ended; or, where no host can
        tell, once this host's promise to it has run out, if the others can be more than half of all."""
        views = self.promise.views
        leader = next((v for view in views for v in view.voters if v.life == self.hosts.life), None)
        state = PeerState.LIVES if leader is None else look_for(leader, self._place, self._terms)
        if leader is None or state is PeerState.LIVES:
            return False
        if state is PeerState.ENDED or self._terms.silence == "dead":
            self.ended |= {leader.life}
            return True
        if not may_win(views, {leader.life, *self.ended}):
            return False
        while boot_clock() < self.promise.until:
            time.sleep(COLUMN_SECONDS)
        return True

    def _nobody(self, seconds: float, why: str) -> UserError:
        place = self._host.place
        return UserError(
            f"rank {place.ranks[0]}: the learners of the other hosts have not attached within {seconds:g} s ({why}). "
            f"Does the same script run on the first host, at MASTER_ADDR {place.address} and MASTER_PORT {place.port}, "
            "and does it reach this line as often as here?"
        )

    # Messages sent and heard ------------------------------------------------------------------------------------------

    def _heard(self, message: Message) -> bool:
        host = self._host
        match message:
            case messages.Columns():
                host.enter_columns(message, host.elsewhere)
            case messages.Drawn():
                self._take_drawn(message)
            case messages.Shown():
                if self._begun or message.rank == messages.EVERYONE:  # else it is for a meeting of the others
                    host.take_shown(message, host.elsewhere if self._begun else host.here)
            case passes.Passes():
                with host.gate:
                    passes.enter(host.arena, message)
            case messages.CentreAt(rank, made_again):
                host.centre_is_at(rank, made_again)
            case messages.StatePiece():
                self._take_given(message)
            case messages.Leads(sent, views):
                self.promise.heard(views, boot_clock())
                self._send(messages.LeaderHeard(sent, self.promise.views[-1].number))
                self._say_who_leads()
            case _:
                return False
        return True

    def _note_lives(self, alive: Sequence[int]) -> None:
        """Tell hosts that ask who leads. Lives need no note here: columns bring those of other hosts."""
        self._say_who_leads()

    def _say_who_leads(self) -> None:
        """Tell hosts that start, and ask, which host leads."""
        hosts, views = self.hosts, self.promise.views
        if hosts.addresses:
            leads = Voter(hosts.first, hosts.life, hosts.addresses[hosts.leader])
            term = views[-1].number[0] if views else 0
            say_who_leads(self._listener, self._session, leads, term)

    def _take_drawn(self, message: messages.Drawn) -> None:
        between, rank = self._host.between, message.rank
        if rank not in self._host.here:
            raise InvalidMessage(f"a minibatch for learner {rank}, who is not here")
        if message.number == between.asked[rank]:
            if message.index != NONE:
                self.recent.append((rank, between.request(rank).key, message.index))
            between.answer(rank, message.number, message.index)

    def _take_given(self, message: messages.StatePiece) -> None:
        """Store a piece of the state of a learner of this host that comes back; once complete, give it to the
        learner."""
        rank, found = message.rank, self._given.setdefault(message.rank, bytearray())
        if rank not in self._host.here or message.at != len(found):
            raise InvalidMessage(f"the state of learner {rank} from byte {message.at} on, of which {len(found)} came")
        found += message.payload
        if message.last:
            del self._given[rank]
            handover.give(self._host.request.given_name, rank, lambda: bytes(found))

    # Orders -----------------------------------------------------------------------------------------------------------

    def _do_next(self, seconds: float) -> bool:
        """Obey the coordinator's next order, if there is one within `seconds` seconds."""
        try:
            order = self._orders.get(timeout=seconds)
        except Empty:
            return False
        host = self._host
        match order:
            case messages.Give():
                host.links.end_part()
                self._give(order)
                self._show()
                self._send(messages.Replied())
            case messages.ComeBack():
                host.columns.enter_record(host.here, bytes(order.payload))
                self.late = self._whole = self._begun = True
            case messages.Meet(again=True):
                self._to_dial = order.addresses
            case messages.Enter():
                self._let_in(order)
            case messages.MeetingHeld():
                # One that has come back will hear where the others are.
                if not self._whole and (self._begun or not order.number):
                    self._begun = True
                    host.turn(order.number, order.present, order.let_in)
            case _:
                self._obey(order)
        return True

    def _show(self) -> None:
        host = self._host
        assert self.link is not None
        try:
            host.send_shown(self.link, [rank for rank in host.arena.liveness.living() if rank in host.here])
        except LinkError as error:
            self._gone(str(error))

    def _let_in(self, order: messages.Enter) -> None:
        """Let learners of this host that have come back train, as `order` says, and tell the coordinator."""
        host, number, ranks = self._host, order.number, order.ranks
        if not set(ranks) <= set(host.waiting()):
            raise InvalidMessage(f"learners {ranks} are let in, who do not wait")
        if self._whole and not host.request.goes_on:  # else they are let in at a meeting, which is just conducted
            host.turn(number, order.present)
        host.let_in(ranks, number)
        self._whole, self._said_back = False, []
        self._sender.look()  # before it is said that they have entered
        self._send(messages.Entered())

    def _bring_back(self) -> None:
        """Tell the coordinator which learners of this host have come back; if the host was lost, all together, once it
        has links to the others."""
        host, waiting = self._host, self._host.waiting()
        complete = not self._whole or (len(waiting) == len(host.here) and not self._dials)
        if complete and waiting and waiting != self._said_back:
            self._said_back = waiting
            self._send(messages.Back(tuple(waiting)))

    def _dial(self) -> None:
        """Begin to connect to the other hosts that take part, now that this one does again, on a thread of its own:
        others wait for messages of this thread, and one of them may be lost."""
        addresses, self._to_dial = self._to_dial, None

        def dial() -> None:
            try:
                self._links.meet(addresses or (), again=True)
                self._dials = False
            except LinkError as error:
                self._unreached = str(error)
            self._wake()

        if addresses is not None:
            threading.Thread(target=dial, daemon=True, name="dial").start()

    def run(self, given_up: Callable[[], bool]) -> None:
        """Serve the session until all learners of this host have left, or `given_up` returns True for them.

        Raises:
            UserError: this host has come back, and cannot reach another.
        """
        host = self._host
        while (self._whole or not host.left) and not given_up():
            if self._unreached:
                ranks, why = ", ".join(map(str, host.here)), self._unreached
                raise UserError(f"learners {ranks} cannot come back: {why}. Can all hosts reach each other?")
            heard = host.bell.heard()
            if self._lost and not self._over and not self._finished and self._follow_next():
                if self.succeeds:
                    return
                continue
            if self._lost or self._over:
                self._finished = True
                host.lose(host.elsewhere)
                host.end(FIRST_HOST_LOST)
                self.close()
                host.bell.wait(heard, COLUMN_SECONDS)
                continue
            if self._generation >= 0:  # the leader knows that this host takes part
                self._sender.look()
                self._ask_for_minibatches()
                self._dial()
                self._bring_back()
            while self._do_next(0):
                pass
            host.notice_deaths()
            host.links.check()
            host.bell.wait(heard, COLUMN_SECONDS)
        if not (self._lost or self._over):
            self._sender.look()

    def _ask_for_minibatches(self) -> None:
        between = self._host.between
        for rank, before in self._forwarded.items():
            if between.asked[rank] != before:
                request = between.request(rank)
                self._forwarded[rank] = request.number
                self._send(request)
