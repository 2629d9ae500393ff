"""Agent: every host but the one that leads. It finds that host, introduces itself, and hears from then on which hosts
take part.

So far it is the same in a run of `roundelay train` (agent.py), where it obeys the coordinator, and in a session of
attached learners (runtime/attached/hosts/agent.py), which act by themselves.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from queue import SimpleQueue

from roundelay.core.errors import UserError
from roundelay.runtime.base import wall_clock
from roundelay.runtime.clocks import pause
from roundelay.runtime.hosts.control import bulk
from roundelay.runtime.hosts.control.finding import StartWait
from roundelay.runtime.hosts.control.host_links import HostLinks
from roundelay.runtime.hosts.control.messages import (
    Built,
    End,
    Give,
    HostRefused,
    Living,
    Meet,
    Piece,
    Prepared,
    Replied,
    Welcome,
)
from roundelay.runtime.hosts.control.peers import LocalLearners
from roundelay.runtime.hosts.control.succession import KnownHosts
from roundelay.runtime.hosts.terms import HostHello, HostTerms, JoinHello, fingerprint, identity
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.relay import BehindRelay
from roundelay.runtime.hosts.transport.wire import (
    Address,
    Link,
    LinkError,
    LinkOptions,
    LinkTimeout,
    Reading,
    TrafficCounters,
)
from roundelay.runtime.launch.rendezvous import first_address
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import Dialect, Message

ASKED_SECONDS = 2.0
"""Interval at which a host that looks for the first host asks where it is, and whether to look any longer."""
LEADS_AGAIN_SECONDS = 0.2
"""Interval at which a host is asked again whether it leads."""


class HostAgent(ABC):
    """Agent of this host: its side of the link to the host that leads.

    Args:
        listener: the listener of this host.
        links: the links of this host for its learners' exchanges and means with others.
        dialect: messages that the host that leads may send.
        session: number of the session that this host joins (`PendingJoins`).
        wake: called from the thread of the link when a message was heard, or the link is gone.
    """

    def __init__(
        self,
        place: HostPlace,
        terms: HostTerms,
        listener: Listener,
        links: HostLinks,
        dialect: Dialect,
        session: int = 0,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        self._place, self._terms, self._listener, self._links = place, terms, listener, links
        self._dialect, self._session, self._wake = dialect, session, wake
        self._learners: LocalLearners
        """Learners of this host, once they are there."""
        self.link: MonitoredLink | None = None
        """To the host that leads."""
        self.hosts = KnownHosts()
        self._beside: tuple[str, int] | None = None  # a vector of no learner here that the host that leads may send
        self._orders: SimpleQueue[Message] = SimpleQueue()
        self._lost = ""  # why the link is
        self._over: End | HostRefused | None = None
        self._generation = -1  # of the last `Living` heard; -1: this host takes no part yet
        self._traffic = TrafficCounters(0, self._readings)

    # The link ---------------------------------------------------------------------------------------------------------

    def _find(
        self,
        seconds: float,
        other: tuple[Address, int] | None = None,
        stays: bool = False,
        lasts: StartWait | None = None,
    ) -> MonitoredLink:
        """Return a link to the first host, over which this host has introduced itself.

        Args:
            seconds: how long the first host is looked for.
            other: address and lowest rank of another host that leads in its place.
            stays: True if this host has taken part before, under another leader.
            lasts: the wait of which the user is told.

        Raises:
            LinkTimeout: the first host does not answer in time.
            UserError: another process answers at its address.
        """
        place, terms, deadline = self._place, self._terms, wall_clock() + seconds
        ranks, life = (place.ranks[0], len(place.ranks)), str(self._listener.hello.get("life", ""))
        hello = JoinHello(
            ranks, place.learners, dict(terms.agreement), self._listener.address, life, self._session, stays
        )
        while True:
            left = max(0.01, deadline - wall_clock())
            address = first_address(place, max(1.0, left)) if other is None else other[0]
            if lasts is not None:
                lasts.look(f"the host that leads, at {address[0]}:{address[1]}")
            if isinstance(self._listener.acceptor, BehindRelay):
                self._listener.acceptor.move(address)
                hello = replace(hello, address=self._listener.address)
            try:
                # It may have moved, where a store says where it is: ask again now and then.
                link = Link.connect(
                    address,
                    place.secret,
                    hello.said,
                    min(left, ASKED_SECONDS),
                    options=LinkOptions(terms.encrypt),
                    expected=identity(0 if other is None else other[1]),
                )
                leader = HostHello.of(link)
            except LinkTimeout as error:
                if wall_clock() < deadline:
                    continue
                where = f"{address[0]}:{address[1]}"
                raise LinkTimeout(f"no host answers at {where} within {seconds:.3g} s ({error.__cause__})") from error
            except LinkError as error:
                if place.peers and other is None and wall_clock() < deadline:  # it may be about to lead
                    pause(LEADS_AGAIN_SECONDS)
                    continue
                where = f"{address[0]}:{address[1]}"
                raise UserError(f"rank {place.ranks[0]}: {error}. Is {where} the first host?") from error
            self.hosts, link.patience = replace(self.hosts, first=leader.first, life=leader.life), terms.host_patience
            return MonitoredLink(link, terms.host_patience)

    def _follow(self, link: MonitoredLink) -> None:
        """Receive messages of the host that leads over `link` from now on."""
        self.link, self._orders = link, SimpleQueue()
        self._lost, self._over, self._generation = "", None, -1
        link.beat()
        link.listen(self._dialect, self._hear, self._gone)

    def _say_built(self) -> None:
        """Tell the host that leads that the learners of this host are built, and with which row they would begin."""
        found = self._learners
        initial = fingerprint(found.arena.vector("row", self._place.ranks[0]))
        self._send(Built(found.parameters, initial, found.shards))

    def _send(self, message: Message, *payload: bytes) -> None:
        assert self.link is not None
        try:
            self.link.say(message, payload)
        except LinkError as error:
            self._gone(str(error))

    def _gone(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._wake()

    def _readings(self) -> Iterator[Reading]:
        """Yield the traffic readings of all links of this host."""
        if self.link is not None:
            yield self.hosts.leader, self.link.link.sent_bytes, self.link.link.received_bytes, 0.0
        yield from self._links.readings()

    def close(self) -> None:
        """Close the link to the host that leads. Safe to call twice."""
        if self.link is not None:
            self.link.close()

    # Messages heard ---------------------------------------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        """Handle a message that must not wait, on the thread of the link; queue others for later."""
        match message:
            case Piece():
                bulk.take_piece(self._learners.arena, message, self._place.ranks, self._beside)
                return
            case Living():
                self._hear_who_lives(message)
            case End() | HostRefused():
                self._over = message
                if self.link is not None:
                    self.link.close()  # at once, for the other end waits for that
            case _:
                if self._heard(message):
                    return
                self._orders.put(message)
        self._wake()

    @abstractmethod
    def _heard(self, message: Message) -> bool:
        """Handle a message of a further kind that must not wait; return False if it may wait, and was not handled."""

    def _hear_who_lives(self, living: Living) -> None:
        if living.generation <= self._generation:
            return
        self._generation, hosts = living.generation, living.hosts
        leader = next((number for number, ranks in enumerate(hosts) if ranks[:1] == (self.hosts.first,)), 0)
        self.hosts = replace(self.hosts, ranks=hosts, addresses=living.addresses, leader=leader, let_in=living.let_in)
        self._links.leader = leader
        self._note_lives(living.alive)
        self._links.peers(living.addresses, hosts)

    @abstractmethod
    def _note_lives(self, alive: Sequence[int]) -> None:
        """Note which learners live, by rank."""

    # Orders -----------------------------------------------------------------------------------------------------------

    def _obey(self, order: Message) -> bool:
        """Carry out an order of the host that leads; return False if the order is of a kind for the caller.

        Raises:
            UserError: this host cannot reach the others.
        """
        match order:
            case Welcome():
                bulk.enter_integers(self._learners.arena, self._place.ranks, order.integers)
                self.hosts = replace(self.hosts, own=order.host, ranks=order.hosts)
                self._traffic = TrafficCounters(order.host, self._readings)
                self._links.settle(order.host, order.hosts, self._learners.parameters)
                self._send(Prepared())
            case Meet():
                try:
                    self._links.meet(order.addresses, order.again)
                except (LinkError, TimeoutError) as error:
                    raise UserError(f"rank {self._place.ranks[0]}: {error}. Can all hosts reach each other?") from error
                self._send(Replied())
            case _:
                return False
        return True

    def _give(self, order: Give) -> None:
        """Send the vectors that `order` names, of learners of this host, to the host that leads."""
        assert self.link is not None
        ranks = [rank for rank in self._place.ranks if rank in order.rows]
        try:
            for name in order.names:
                bulk.give(self.link, self._learners.arena, name, ranks, order.laid_out)
        except LinkError as error:
            self._gone(str(error))
