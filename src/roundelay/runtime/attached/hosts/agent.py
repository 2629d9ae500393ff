"""Agent of a session of attached learners: the process of every host but the first."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.runtime.attached import passes
from roundelay.runtime.attached.between_hosts import FIRST_HOST_LOST
from roundelay.runtime.attached.hosts.columns import COLUMN_SECONDS, ColumnSender
from roundelay.runtime.attached.hosts.finding import Search, boot_clock, say_who_leads
from roundelay.runtime.attached.hosts.lease import Promise, Voter, may_win, read_views, views_to_plain
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
from roundelay.runtime.hosts.control.joining import find_coordinator
from roundelay.runtime.hosts.terms import fingerprint
from roundelay.runtime.hosts.transport import checks
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink, Router
from roundelay.runtime.hosts.transport.wire import LinkError, LinkTimeout, Message
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
        self._sender = ColumnSender(host.columns, host.here, together, self._send_columns)

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
            self._monitored = find_coordinator(
                host.place, host.terms, self._router.listener, seconds, other, {"session": host.request.number}
            )
        except (LinkTimeout, UserError) as error:
            if other is not None and seconds > SHORTEST_SECONDS:  # lost meanwhile: others may know who leads by now
                self._lost = str(error)
                return
            if isinstance(error, UserError):
                raise
            raise self._nobody(host.terms.patience_seconds, str(error)) from error
        self._begin_with(self._monitored)
        initial = fingerprint(host.arena.vector("row", host.here[0]))
        self._send("built", initial=initial, parameters=host.parameters, shards=[])

    def _begin_with(self, link: MonitoredLink) -> None:
        """Hear the host that leads."""
        self._lost, self._ended, self._generation, self._orders = "", False, -1, SimpleQueue()
        hello = link.link.hello
        self.hosts = replace(self.hosts, first=checks.whole(hello["first"]), life=checks.text(hello["life"]))
        self._monitored = link
        link.beat()
        link.listen(self._heard, self._gone)

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
                stays = {"session": host.request.number, "stays": True}
                link = find_coordinator(host.place, host.terms, listener, host.terms.host_patience, other, stays)
            except (LinkTimeout, UserError):
                host.lose(hosts.ranks[number])  # the next one knows, if it comes to that
                continue
            self.hosts = replace(self.hosts, leader=number)
            self._begin_with(link)
            together = host.strategy.traits.synchronous
            self._sender = ColumnSender(host.columns, host.here, together, self._send_columns)
            self._forwarded = {rank: int(host.between.answered[rank]) for rank in host.here}
            said = {"given": self.recent.to_plain(), "views": views_to_plain(self.promise.views)}
            self._send("stays", conducted=int(host.between.conducted[0]), **said)
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

    def _send(self, kind: str, **header: Any) -> None:
        assert self._monitored is not None
        try:
            self._monitored.send(kind, header)
        except LinkError as error:
            self._gone(str(error))

    def _send_columns(self, header: dict[str, Any], data: bytes) -> None:
        assert self._monitored is not None
        try:
            self._monitored.send("columns", header, [data])
        except LinkError as error:
            self._gone(str(error))

    def _gone(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._host.bell.ring()

    def _heard(self, message: Message) -> None:
        """From the thread of the link: what must not wait, and what is written where nobody looks yet."""
        host, header = self._host, message.header
        match message.kind:
            case "columns":
                host.enter_columns(message, host.elsewhere)
            case "drawn":
                self._take_drawn(header)
            case "piece":
                bulk.take_piece(host.arena, message, host.here)
            case "model":
                host.take_model(message)
            case "shown":
                host.take_shown(message, host.elsewhere if self._begun else host.here)
            case "living":
                self._hear_who_lives(header)
            case "passes":
                with host.gate:
                    enter_replica(host.arena, message)
            case "beat":
                views, sent = read_views(header["views"]), checks.seconds(header["sent"])
                self.promise.heard(views, boot_clock())
                self._send("beat", sent=sent, seen=self.promise.views[-1].number)
                self._say_who_leads()
            case "end":
                self._ended = True
            case "refused":
                self._refused, self._ended = checks.text(header["why"]), True
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

    def _take_drawn(self, header: dict[str, Any]) -> None:
        between, rank = self._host.between, checks.whole(header["rank"])
        if rank not in self._host.here:
            raise checks.InvalidMessage(f"a minibatch for learner {rank}, who is not here")
        number, index = checks.whole(header["number"]), checks.whole(header["index"], -1)
        if number == between.asked[rank]:
            key = int(between.key[rank, 0]), int(between.key[rank, 1]), int(between.key[rank, 2])
            self.recent.note(rank, key, index)
            between.drawn[rank] = index
            publish(between.answered, rank, number)

    def _hear_who_lives(self, header: dict[str, Any]) -> None:
        generation = checks.whole(header["generation"])
        if generation <= self._generation:
            return
        self._generation = generation
        addresses = [checks.address(one) for one in checks.listed(header["addresses"])]
        hosts = [checks.wholes(ranks, stop=self._host.place.learners) for ranks in checks.listed(header["hosts"])]
        leader = next((number for number, ranks in enumerate(hosts) if ranks[:1] == [self.hosts.first]), 0)
        self.hosts = replace(self.hosts, ranks=hosts, addresses=addresses, leader=leader)
        self._say_who_leads()
        self._host.links.endpoint.peers(addresses, hosts)  # who lives is in the columns, with what they did before
        self._host.bell.ring()

    # What is done -----------------------------------------------------------------------------------------------------

    def _obey(self, seconds: float) -> bool:
        """Do the next thing the coordinator has said, if there is one within so many seconds."""
        try:
            order = self._orders.get(timeout=seconds)
        except Empty:
            return False
        host, header = self._host, order.header
        match order.kind:
            case "welcome":
                hosts = [tuple(checks.wholes(ranks)) for ranks in checks.listed(header["hosts"])]
                bulk.enter_integers(host.arena, host.here, header["integers"])
                self.hosts = replace(self.hosts, own=checks.whole(header["host"]))
                host.links.settle(self.hosts.own, hosts, host.parameters)
                self._send("prepared")
            case "meet":
                try:
                    host.links.meet([checks.address(one) for one in checks.listed(header["addresses"])])
                except (LinkError, TimeoutError) as error:
                    raise UserError(f"rank {host.here[0]}: {error}. Can all hosts reach each other?") from error
                self._send("replied")
            case "give":
                self._give(checks.wholes(header["rows"]), checks.mapping(header["laid_out"]))
            case "come":
                host.columns.enter_record(host.here, bytes(order.payload))
                self.late = self._whole = self._begun = True
            case "enter":
                self._let_in(header)
            case "meeting":
                present = checks.wholes(header["present"], stop=host.place.learners)
                self._begun = True
                host.turn(checks.whole(header["number"]), present)
        return True

    def _let_in(self, header: dict[str, Any]) -> None:
        """Learners of this host have come back, and may train."""
        host, number, ranks = self._host, checks.whole(header["number"]), checks.wholes(header["ranks"])
        if not set(ranks) <= set(host.waiting()):
            raise checks.InvalidMessage(f"learners {ranks} are let in, who do not wait")
        present = checks.wholes(header["present"], stop=host.place.learners)
        said = [checks.wholes(one, 5) for one in checks.listed(header["passes"])[: passes.PASS_SLOTS]]
        passes.enter_report(host.arena, said)
        if self._whole:
            host.turn(number, present)
        host.let_in(ranks, number)
        self._whole, self._said_back = False, []
        self._sender.look()  # before it is said that they have entered
        self._send("entered")

    def _bring_back(self) -> None:
        """Say who of this host has come back; of a host that was lost all together."""
        host, waiting = self._host, self._host.waiting()
        complete = not self._whole or len(waiting) == len(host.here)
        if complete and waiting and waiting != self._said_back:
            self._said_back = waiting
            self._send("back", ranks=waiting)

    def _give(self, rows: list[int], laid_out: Mapping[str, str]) -> None:
        host, link = self._host, self._monitored
        assert link is not None
        host.stop_means()
        try:
            bulk.give(link, host.arena, "row", [rank for rank in host.here if rank in rows], laid_out)
            host.send_shown(link, [rank for rank in host.here if host.arena.liveness.alive[rank]])
        except LinkError as error:
            self._gone(str(error))
        self._send("replied")

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
                key = [int(part) for part in between.key[rank]]
                self._send("draw", rank=rank, number=number, key=key, pieces=int(between.pieces[rank]))

    def close(self) -> None:
        """Nobody is heard any more. Safe to call twice."""
        if self._monitored is not None:
            self._monitored.close()
