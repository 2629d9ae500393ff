"""The links of one learner's client to other hosts, and conversations over them that survive a broken link."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from roundelay.runtime.hosts.exchange.link_watch import Workers
from roundelay.runtime.hosts.exchange.messages import (
    REPLY_DIALECT,
    AgainMessage,
    ExchangeMessage,
    FetchMessage,
    FoundReply,
    GiveMessage,
    RowReply,
    SettledMessage,
)
from roundelay.runtime.hosts.exchange.states import Event, ExchangeState, OutOfTurn, Role
from roundelay.runtime.hosts.terms import ExchangeHello, identity
from roundelay.runtime.hosts.transport.rejected import RejectedConnections
from roundelay.runtime.hosts.transport.wire import (
    LONGEST_PAUSE,
    SHORTEST_PAUSE,
    Address,
    BadFrame,
    Link,
    LinkClosed,
    LinkError,
    LinkOptions,
    LinkTimeout,
    Tampered,
)
from roundelay.runtime.messages import Message
from roundelay.runtime.procs.memory.views import NONE

ATTEMPT_SECONDS = 2.0
"""For one attempt to connect."""


@dataclass
class LinkTraffic:
    """Exchanges, and bytes of the links of one end with one other host, since the run began."""

    exchanges: int = 0  # and fetches, each counted at the asker's client and at the server it asked
    lost: int = 0  # of them, that came to nothing
    sent_bytes: int = 0
    received_bytes: int = 0
    waited_s: float = 0.0  # from the beginning of a request to the end of its reply, summed

    def __add__(self, other: "LinkTraffic") -> "LinkTraffic":
        return LinkTraffic(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @classmethod
    def summed(cls, parts: Iterable[Mapping[int, "LinkTraffic"]]) -> dict[int, "LinkTraffic"]:
        """Return the sum, by host, of several of these by host."""
        found: dict[int, LinkTraffic] = {}
        for part in parts:
            for host, traffic in list(part.items()):
                found[host] = found.get(host, cls()) + traffic
        return found


@dataclass
class HostNetwork:
    """The other hosts, as the clients of one host reach them. Numbers, homes and addresses change as hosts come and go.

    Args:
        host: number of this host.
        homes: the host of each learner, by rank.
        secret: of the run.
        addresses: by host: where the others' listeners are, whose links are given to their servers.
        patience: seconds, for which an exchange is tried before it comes to nothing. Not how long hosts may be silent:
            whoever knows that one is dead says so by `ExchangeClient.peers_changed`.
        rejected: counts malformed frames.
        encrypts: is what goes over the links hidden?
        centre: its only item is a learner whose host has the centre, or NONE (`OutboxRequests`).
    """

    host: int
    homes: Sequence[int]
    secret: bytes
    addresses: Mapping[int, Address] = field(default_factory=dict)
    patience: float = 60.0
    rejected: RejectedConnections = field(default_factory=RejectedConnections)
    encrypts: bool = True
    centre: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    closing: bool = False
    life: str = field(default_factory=lambda: secrets.token_hex(8))

    def home(self, row: int) -> int:
        """Return the host of a row; NONE, where that is not known."""
        rank = int(self.centre[0]) if row == len(self.homes) else row
        return NONE if rank == NONE else self.homes[rank]


@dataclass(frozen=True)
class Outgoing:
    """A message in each form it may be sent in, and room for the reply.

    Args:
        message: the first; `again` repeats its number only.
        payload: of the first message, or of the one that follows it where both rows travel at once.
        into: room for a payload of the reply.
        expected: bytes of the payload of a reply that is a row.
    """

    message: ExchangeMessage | FetchMessage
    payload: Sequence[memoryview] = ()
    into: memoryview = memoryview(b"")
    expected: int = 0

    @property
    def both(self) -> bool:
        """True if both rows travel at once."""
        return isinstance(self.message, ExchangeMessage) and self.message.both


class LearnerLinks:
    """The links of learner `rank`'s client for one purpose, one to each other host. One conversation at a time.

    Args:
        requests: True for links that carry requests to lower ranks, which take their time; exchanges and fetches go
            over others, so that the row can travel meanwhile.
        largest: bytes of a payload.
        spent: told the processor seconds of threads other than the caller's.
    """

    def __init__(
        self,
        network: HostNetwork,
        rank: int,
        requests: bool,
        largest: int,
        spent: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._network, self._rank, self._requests, self._largest = network, rank, requests, largest
        self._spent = spent
        self._links: dict[int, Link] = {}
        self._gate = threading.Lock()
        self._senders = Workers(f"rows of {rank} on their way")
        self.traffic: dict[int, LinkTraffic] = {}

    def talk(
        self, host: int, state: ExchangeState, message: Outgoing, patience: float, look: Callable[[], None]
    ) -> Message:
        """Send to `host` whatever `state` says, again if the link breaks, until it is answered; the reply, which
        `state` has taken.

        Args:
            patience: seconds.
            look: called at each attempt, with the link there; whatever it raises ends them.

        Raises:
            LinkError: no reply.
        """
        deadline, pause = time.monotonic() + patience, SHORTEST_PAUSE
        while True:
            link = self._link(host, deadline)
            look()  # after the link is there: who calls `cut` meanwhile either finds the link, or is heard here
            before = link.sent_bytes, link.received_bytes
            try:
                reply = self._once(link, state, message, deadline)
            except (LinkClosed, Tampered):  # the peer has said nothing wrong
                state.take(Event.CUT)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            except (LinkTimeout, BadFrame):
                self.cut(host)
                raise
            else:
                if not state.word:
                    if state.role is Role.CLIENT and message.expected and isinstance(reply, RowReply):
                        self._settle(link, message)
                    return reply
            finally:
                traffic = self.traffic.setdefault(host, LinkTraffic())
                traffic.sent_bytes += link.sent_bytes - before[0]
                traffic.received_bytes += link.received_bytes - before[1]

    def _once(self, link: Link, state: ExchangeState, message: Outgoing, deadline: float) -> Message:
        word = state.word
        state.take(Event.SEND)
        if word == Event.AGAIN.value:
            link.say(AgainMessage(message.message.n))
            reply = self._hear(link, message, deadline)
        elif message.both:
            reply = self._both(link, message, deadline)
        else:
            link.say(message.message, message.payload)
            reply = self._hear(link, message, deadline)
        try:
            state.hear(reply.kind)
        except OutOfTurn as error:
            raise BadFrame(f"{link.peer} answers out of turn: {error}") from error
        return reply

    def _both(self, link: Link, message: Outgoing, deadline: float) -> Message:
        """Send a row and receive the other at the same time; the reply behind it."""
        link.say(message.message)
        gone = threading.Event()

        def give() -> None:
            used = time.thread_time()
            with suppress(LinkError):  # then the link is closed, and who hears notices
                link.say(GiveMessage(message.message.n), message.payload)
            self._spent(time.thread_time() - used)
            gone.set()

        self._senders.do(give)
        try:
            reply = self._hear(link, message, deadline)
            if isinstance(reply, FoundReply):
                reply = self._hear(link, replace(message, expected=0), deadline)
            return reply
        except BaseException:
            link.close()
            raise
        finally:
            gone.wait()

    def _hear(self, link: Link, message: Outgoing, deadline: float) -> Message:
        """Return the next reply, whose payload is what is due."""
        reply = link.hear(REPLY_DIALECT, max(0.0, deadline - time.monotonic()), into=message.into)
        due = isinstance(reply, RowReply) or (isinstance(reply, FoundReply) and message.both)
        if len(reply.payload) != message.expected * due:
            raise BadFrame(f"{link.peer} answers with {reply.kind} of {len(reply.payload)} bytes")
        return reply

    def _settle(self, link: Link, message: Outgoing) -> None:
        """Let the server forget its reply, which is here. If it does not hear this, it hears of the next exchange."""
        with suppress(LinkError):
            link.say(SettledMessage(message.message.n))

    def _link(self, host: int, deadline: float) -> Link:
        """Return the link to `host`: the one there is, or a new one."""
        network, pause = self._network, SHORTEST_PAUSE
        while True:
            with self._gate:
                link = self._links.get(host)
                if link is not None and not link.closed:
                    return link
            address, left = network.addresses.get(host), deadline - time.monotonic()
            if address is None or network.closing or left <= 0:
                raise LinkClosed(f"host {host} is not there")
            hello = ExchangeHello(network.host, self._rank, network.life, self._requests)
            try:
                link = Link.connect(
                    address,
                    network.secret,
                    hello.said,
                    network.patience,
                    LinkOptions(network.encrypts, self._largest, network.rejected),
                    min(left, ATTEMPT_SECONDS),
                    identity(network.homes.index(host)),
                )
            except LinkError:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            with self._gate:
                self._links[host] = link
            if network.closing or network.addresses.get(host) != address:  # meanwhile
                link.close()

    def cut(self, host: int) -> None:
        """Close the link to `host`, from any thread."""
        with self._gate:
            link = self._links.pop(host, None)
        if link is not None:
            link.close()

    def close(self) -> None:
        """Close all links, from any thread."""
        for host in list(self._links):
            self.cut(host)
        self._senders.close()
