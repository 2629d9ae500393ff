"""Agent of a session of attached learners: the process of every host but the first."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import final

from roundelay.core.errors import UserError
from roundelay.runtime.attached import passes
from roundelay.runtime.attached.between_hosts import FIRST_HOST_LOST
from roundelay.runtime.attached.hosts import messages
from roundelay.runtime.attached.hosts.columns import COLUMN_SECONDS, ColumnSender
from roundelay.runtime.attached.hosts.finding import Search, boot_clock, say_who_leads
from roundelay.runtime.attached.hosts.lease import Promise, Voter, may_win
from roundelay.runtime.attached.hosts.session_host import SessionHost
from roundelay.runtime.attached.hosts.succession import (
    KnownHosts,
    Recent,
    enter_replica,
    look_for,
    may_be_led_by_another,
)
from roundelay.runtime.base import wall_clock
from roundelay.runtime.hosts.control import bulk
from roundelay.runtime.hosts.control.inquiry import PeerState
from roundelay.runtime.hosts.control.joining import find_coordinator, hello_of
from roundelay.runtime.hosts.control.messages import (
    Built,
    End,
    HostRefused,
    Living,
    Meet,
    Piece,
    Prepared,
    Replied,
    Welcome,
)
from roundelay.runtime.hosts.terms import HostHello, fingerprint
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink, Router
from roundelay.runtime.hosts.transport.wire import LinkError, LinkTimeout
from roundelay.runtime.messages import Dialect, InvalidMessage, Message
from roundelay.runtime.procs.memory.publish import publish

SHORTEST_SECONDS = 0.1
"""Seconds for the last attempt to find it."""
AGAIN_SECONDS = 0.1
"""Pause before the first host is looked for again, which was just ending another session."""


@final
class SessionAgent:
    """Of one session, and one host."""

    def __init__(self, host: SessionHost, router: Router) -> None:
        self._host, self._router = host, router
        self._orders: SimpleQueue[Message] = SimpleQueue()
        self._lost = self._refused = ""  # why
        self._ended = self._begun = False
        self.late = False
        """Does this host come back to a session that runs?"""
        self._whole = False  # are all learners of this host still to be let in, together?
        self._said_back: list[int] = []  # who waits for that, as was said
        self._generation = -1
        self._forwarded = dict.fromkeys(host.here, 0)  # requests for minibatches
        self.hosts, self.recent = KnownHosts(), Recent()
        self.promise = Promise(host.terms.host_patience)
        self.ended: frozenset[str] = frozenset()
        """Lives of processes that led and have surely ended."""
        self.succeeds = False
        """True after `run` where this host is the next that leads."""
        self._monitored: MonitoredLink | None = None
        together = host.strategy.traits.synchronous
        self._sender = ColumnSender(host.columns, host.here, together, self._send)

    # The beginning ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the first host, and take what the learners begin with.

        Raises:
            UserError: it does not answer, or refuses this host.
        """
        seconds = self._host.terms.patience_seconds
        deadline = wall_clock() + seconds
        while not self._begun:
            self._connect(deadline - wall_clock())
            while not (self._begun or self._lost or self._ended):
                if wall_clock() > deadline:
                    raise self._nobody(seconds, "hosts are still missing")
                self._obey(0.05)
            if self._refused:
                raise UserError(f"rank {self._host.here[0]}: the first host says: {self._refused}")
            if not self._begun:
                time.sleep(AGAIN_SECONDS)

    def _connect(self, seconds: float) -> None:
        host = self._host
        if self._monitored is not None:
            self._monitored.close()
        seconds, other = max(SHORTEST_SECONDS, seconds), None
        if host.place.peers:
            listener = self._router.listener
            search = Search(host.place, host.terms, host.request.number, str(listener.hello["life"]))
            found = search.wait(seconds)
            if found is None:
                raise self._nobody(host.terms.patience_seconds, "no host says who leads")
            other, seconds = (found.address, found.rank), min(seconds, host.terms.host_patience)
        try:
            hello = hello_of(host.place, host.terms, self._router.listener, host.request.number)
            self._monitored = find_coordinator(host.place, host.terms, hello, seconds, other)
        except (LinkTimeout, UserError) as error:
            if other is not None and seconds > SHORTEST_SECONDS:  # lost meanwhile: others may know who leads by now
                self._lost = str(error)
                return
            if isinstance(error, UserError):
                raise
            raise self._nobody(host.terms.patience_seconds, str(error)) from error
        self._begin_with(self._monitored)
        initial = fingerprint(host.arena.vector("row", host.here[0]))
        self._send(Built(host.parameters, initial))

    def _begin_with(self, link: MonitoredLink) -> None:
        """Hear the host that leads."""
        self._lost, self._ended, self._generation, self._orders = "", False, -1, SimpleQueue()
        hello = HostHello.of(link.link)
        self.hosts = replace(self.hosts, first=hello.first, life=hello.life)
        self._monitored = link
        link.beat()
        link.listen(Dialect(*messages.TO_AGENTS, rank=self._host.place.learners - 1), self._heard, self._gone)

    def _follow(self) -> bool:
        """The link to the leader is gone: come to the next one, as this host is, or be it. False: the session is over
        for this host."""
        host, hosts = self._host, self.hosts
        self.close()
        if not self._begun or not may_be_led_by_another(host.strategy) or not self._may_leave():
            return False
        host.lose(hosts.ranks[hosts.leader])
        for number in hosts.after():
            if number == hosts.own:
                self.succeeds = True
                return True
            other, listener = (hosts.addresses[number], hosts.ranks[number][0]), self._router.listener
            try:
                seconds, session = host.terms.host_patience, host.request.number
                hello = hello_of(host.place, host.terms, listener, session, stays=True)
                link = find_coordinator(host.place, host.terms, hello, seconds, other)
            except (LinkTimeout, UserError):
                host.lose(hosts.ranks[number])  # the next one knows, if it comes to that
                continue
            self.hosts = replace(self.hosts, leader=number)
            self._begin_with(link)
            together = host.strategy.traits.synchronous
            self._sender = ColumnSender(host.columns, host.here, together, self._send)
            self._forwarded = {rank: int(host.between.answered[rank]) for rank in host.here}
            self._send(messages.Stays(self.recent.all(), int(host.between.conducted[0]), self.promise.views))
            return True
        return False

    def _may_leave(self) -> bool:
        """May this host follow another than the one that led? Once that has ended; or, where nobody can say, once this
        host has promised it nothing any more, if others may come to more than half of all."""
        host, views = self._host, self.promise.views
        leader = next((v for view in views for v in view.voters if v.life == self.hosts.life), None)
        state = PeerState.LIVES if leader is None else look_for(leader, host)
        if leader is None or state is PeerState.LIVES:
            return False
        if state is PeerState.ENDED or host.request.options.silence == "dead":
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

    # What is said -----------------------------------------------------------------------------------------------------

    def _send(self, message: Message, *payload: bytes) -> None:
        assert self._monitored is not None
        try:
            self._monitored.say(message, payload)
        except LinkError as error:
            self._gone(str(error))

    def _gone(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._host.bell.ring()

    def _heard(self, message: Message) -> None:
        """From the thread of the link: what must not wait, and what is written where nobody looks yet."""
        host = self._host
        match message:
            case messages.Columns():
                host.enter_columns(message, host.elsewhere)
            case messages.Drawn():
                self._take_drawn(message)
            case Piece():
                bulk.take_piece(host.arena, message, host.here)
            case messages.Model():
                host.take_model(message)
            case messages.Shown():
                host.take_shown(message, host.elsewhere if self._begun else host.here)
            case Living():
                self._hear_who_lives(message)
            case messages.Passes():
                with host.gate:
                    enter_replica(host.arena, message)
            case messages.Leads(sent, views):
                self.promise.heard(views, boot_clock())
                self._send(messages.LeaderHeard(sent, self.promise.views[-1].number))
                self._say_who_leads()
            case End():
                self._ended = True
            case HostRefused(why):
                self._refused, self._ended = why, True
            case _:
                self._orders.put(message)
                self._host.bell.ring()

    def _say_who_leads(self) -> None:
        """To hosts that start, and ask."""
        hosts, views = self.hosts, self.promise.views
        if hosts.addresses:
            leads = Voter(hosts.first, hosts.life, hosts.addresses[hosts.leader])
            term = views[-1].number[0] if views else 0
            say_who_leads(self._router.listener, self._host.request.number, leads, term)

    def _take_drawn(self, message: messages.Drawn) -> None:
        between, rank = self._host.between, message.rank
        if rank not in self._host.here:
            raise InvalidMessage(f"a minibatch for learner {rank}, who is not here")
        if message.number == between.asked[rank]:
            key = int(between.key[rank, 0]), int(between.key[rank, 1]), int(between.key[rank, 2])
            self.recent.note(rank, key, message.index)
            between.drawn[rank] = message.index
            publish(between.answered, rank, message.number)

    def _hear_who_lives(self, living: Living) -> None:
        if living.generation <= self._generation:
            return
        self._generation, hosts = living.generation, living.hosts
        leader = next((number for number, ranks in enumerate(hosts) if ranks[:1] == (self.hosts.first,)), 0)
        self.hosts = replace(self.hosts, ranks=hosts, addresses=living.addresses, leader=leader)
        self._say_who_leads()
        self._host.links.endpoint.peers(living.addresses, hosts)  # who lives is in the columns, with what they did
        self._host.bell.ring()

    # What is done -----------------------------------------------------------------------------------------------------

    def _obey(self, seconds: float) -> bool:
        """Do the next thing the coordinator has said, if there is one within so many seconds."""
        try:
            order = self._orders.get(timeout=seconds)
        except Empty:
            return False
        host = self._host
        match order:
            case Welcome():
                bulk.enter_integers(host.arena, host.here, order.integers)
                self.hosts = replace(self.hosts, own=order.host)
                host.links.settle(order.host, order.hosts, host.parameters)
                self._send(Prepared())
            case Meet():
                try:
                    host.links.meet(order.addresses)
                except (LinkError, TimeoutError) as error:
                    raise UserError(f"rank {host.here[0]}: {error}. Can all hosts reach each other?") from error
                self._send(Replied())
            case messages.GiveRows():
                self._give(order.rows, order.laid_out)
            case messages.ComeBack():
                host.columns.enter_record(host.here, bytes(order.payload))
                self.late = self._whole = self._begun = True
            case messages.Enter():
                self._let_in(order)
            case messages.MeetingHeld():
                self._begun = True
                host.turn(order.number, order.present)
        return True

    def _let_in(self, order: messages.Enter) -> None:
        """Learners of this host have come back, and may train."""
        host, number, ranks = self._host, order.number, order.ranks
        if not set(ranks) <= set(host.waiting()):
            raise InvalidMessage(f"learners {ranks} are let in, who do not wait")
        passes.enter_report(host.arena, order.passes[: passes.PASS_SLOTS])
        if self._whole:
            host.turn(number, order.present)
        host.let_in(ranks, number)
        self._whole, self._said_back = False, []
        self._sender.look()  # before it is said that they have entered
        self._send(messages.Entered())

    def _bring_back(self) -> None:
        """Say who of this host has come back; of a host that was lost all together."""
        host, waiting = self._host, self._host.waiting()
        complete = not self._whole or len(waiting) == len(host.here)
        if complete and waiting and waiting != self._said_back:
            self._said_back = waiting
            self._send(messages.Back(tuple(waiting)))

    def _give(self, rows: Sequence[int], laid_out: Mapping[str, str]) -> None:
        host, link = self._host, self._monitored
        assert link is not None
        host.stop_means()
        try:
            bulk.give(link, host.arena, "row", [rank for rank in host.here if rank in rows], laid_out)
            host.send_shown(link, [rank for rank in host.here if host.arena.liveness.alive[rank]])
        except LinkError as error:
            self._gone(str(error))
        self._send(Replied())

    def run(self, given_up: Callable[[], bool]) -> None:
        """Until all learners of this host have left or `given_up`."""
        host = self._host
        while not host.left and not given_up():
            heard = host.bell.heard()
            if self._lost and not self._ended and self._follow():
                if self.succeeds:
                    return
                continue
            if self._lost or self._ended:
                self._ended = True
                host.lose(host.elsewhere)
                host.end(FIRST_HOST_LOST)
                self.close()
                host.bell.wait(heard, COLUMN_SECONDS)
                continue
            if self._generation >= 0:  # the leader knows that this host takes part
                self._sender.look()
                self._ask_for_minibatches()
                self._bring_back()
            while self._obey(0):
                pass
            host.notice_deaths()
            host.links.check()
            host.bell.wait(heard, COLUMN_SECONDS)
        if not (self._lost or self._ended):
            self._sender.look()

    def _ask_for_minibatches(self) -> None:
        between = self._host.between
        for rank, before in self._forwarded.items():
            number = int(between.asked[rank])
            if number != before:
                self._forwarded[rank] = number
                key = int(between.key[rank, 0]), int(between.key[rank, 1]), int(between.key[rank, 2])
                pieces, keep = int(between.pieces[rank]), int(between.keep[rank])
                self._send(messages.DrawRequest(rank, number, key, pieces, keep))

    def close(self) -> None:
        """Nobody is heard any more. Safe to call twice."""
        if self._monitored is not None:
            self._monitored.close()
