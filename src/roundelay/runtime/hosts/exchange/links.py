"""The links of one learner's client to other hosts, and conversations over them that survive a broken link.

For links on which the other ends speak now and then, one thread waits for all, and few attend to those that speak
(`LinkWatch`).
"""

import os
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

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
    RejectedConnections,
    Tampered,
)
from roundelay.runtime.messages import Message
from roundelay.runtime.procs.memory.views import NONE

IDLE_SECONDS = 5.0
"""Seconds without work after which a thread of `Workers` ends."""

Turn = Callable[[], bool]
"""Function that handles the next message of a link, if there is one; False: no further message will come."""


@final
class Workers:
    """Pool of threads for work that may have to wait: one thread for each piece of work under way.

    Args:
        name: of each thread, for people.
        idle: seconds without work after which a thread ends.
    """

    def __init__(self, name: str, idle: float = IDLE_SECONDS) -> None:
        self._name, self._idle_seconds = name, idle
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle, self._closed = 0, False

    def __len__(self) -> int:
        return len(self._threads)

    def do(self, work: Callable[[], None]) -> None:
        """Call `work` in a thread, at once. It must raise nothing."""
        with self._changed:
            self._work.append(work)
            if len(self._work) <= self._idle:
                self._changed.notify()
                return
            thread = threading.Thread(target=self._run, daemon=True, name=self._name)
            self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: bool(self._work) or self._closed, self._idle_seconds)
            self._idle -= 1
            if self._work:
                return self._work.popleft()
            self._threads.discard(threading.current_thread())
            return None

    def close(self) -> None:
        """Wait until all work under way is done."""
        with self._changed:
            self._closed = True
            threads = list(self._threads)
            self._changed.notify_all()
        for thread in threads:
            thread.join()


@final
class LinkWatch:
    """Watch over links: one thread waits for messages on all of them, and calls a function of each link, its turn. No
    two turns of one link are under way at a time, unless the link was added twice.

    Args:
        name: of its threads, for people.
    """

    def __init__(self, name: str) -> None:
        self.workers = Workers(name)
        self._poll, self._gate = select.epoll(), threading.Lock()
        self._turns: dict[int, tuple[Link, Turn]] = {}  # by descriptor
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._bell, select.EPOLLIN)
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, daemon=True, name=f"{name}: who speaks"
        )  # once there is a link

    def add(self, link: Link, turn: Turn) -> None:
        """Call `turn`, from now on, when a message begins to come over `link`, and once it is closed elsewhere."""
        with suppress(LinkError), link.in_use():  # its descriptor is its own meanwhile
            with self._gate:
                self._turns[link.descriptor] = link, turn
                if self._thread.ident is None:
                    self._thread.start()
            self._poll.register(link.descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def _run(self) -> None:
        while not self._closed:
            for descriptor, _ in self._poll.poll():
                found = self._turns.get(descriptor)
                if found is not None:
                    self.workers.do(lambda link=found[0], turn=found[1]: self._take(link, turn))  # type: ignore[misc]

    def _take(self, link: Link, turn: Turn) -> None:
        descriptor = link.descriptor
        if turn():
            with suppress(LinkError), link.in_use():
                self._poll.modify(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
            return
        link.close()
        with self._gate:
            if self._turns.get(descriptor, (None,))[0] is link:  # its number may be another's by now
                del self._turns[descriptor]

    def close(self) -> None:
        """End the watch; call it once all links are closed. Turns under way come to their end first."""
        self._closed = True
        os.eventfd_write(self._bell, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self.workers.close()
        self._poll.close()
        os.close(self._bell)


ATTEMPT_SECONDS = 2.0
"""Most seconds for one attempt to connect."""


@dataclass
class LinkTraffic:
    """Traffic of one end with one other host since the run began: exchanges, and bytes on the links for them."""

    exchanges: int = 0  # and fetches, each counted at the asker's client and at the server it asked
    lost: int = 0  # of them, that came to nothing
    sent_bytes: int = 0
    received_bytes: int = 0
    waited_s: float = 0.0  # from the beginning of a request to the end of its reply, summed

    def __add__(self, other: "LinkTraffic") -> "LinkTraffic":
        return LinkTraffic(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @classmethod
    def summed(cls, parts: Iterable[Mapping[int, "LinkTraffic"]]) -> dict[int, "LinkTraffic"]:
        """Return the sum of `parts`, host by host."""
        found: dict[int, LinkTraffic] = {}
        for part in parts:
            for host, traffic in list(part.items()):
                found[host] = found.get(host, cls()) + traffic
        return found


@dataclass
class HostNetwork:
    """Facts about the other hosts by which the clients of one host reach them; they change as hosts come and go."""

    host: int  # number of this host
    homes: Sequence[int]  # the host of each learner, by rank
    secret: bytes  # of the run
    # by host: where the others' listeners are, whose links are given to their servers.
    addresses: Mapping[int, Address] = field(default_factory=dict)
    # seconds, for which an exchange is tried before it comes to nothing. Not how long hosts may be silent:
    # `ExchangeClient.peers_changed` tells of dead hosts.
    patience: float = 60.0
    rejected: RejectedConnections = field(default_factory=RejectedConnections)  # counts malformed frames
    encrypts: bool = True  # is what goes over the links hidden?
    # its only item is a learner whose host has the centre, or NONE (`OutboxRequests`).
    centre: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    closing: bool = False
    life: str = field(default_factory=lambda: secrets.token_hex(8))

    def home(self, row: int) -> int:
        """Return the number of the host that has a row; NONE where that is not known."""
        rank = int(self.centre[0]) if row == len(self.homes) else row
        return NONE if rank == NONE else self.homes[rank]


@dataclass(frozen=True)
class Outgoing:
    """Message of a client to a server, in each form in which it may be sent, with room for the reply."""

    message: ExchangeMessage | FetchMessage  # the first; `again` repeats its number only
    # of the first message, or of the one that follows it where both rows travel at once.
    payload: Sequence[memoryview] = ()
    into: memoryview = memoryview(b"")  # room for a payload of the reply
    expected: int = 0  # bytes of the payload of a reply that is a row

    @property
    def both(self) -> bool:
        """True if both rows travel at once."""
        return isinstance(self.message, ExchangeMessage) and self.message.both


class LearnerLinks:
    """Links of learner `rank`'s client for one purpose, one to each other host. One conversation at a time.

    Args:
        requests: True for links that carry requests to lower ranks, which take their time; exchanges and fetches go
            over others, so that the row can travel meanwhile.
        largest: most bytes of a payload.
        spent: called with the processor seconds of threads other than the caller's.
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
        """Send the message that `state` asks for to `host`, again if the link breaks, until it is answered; return the
        reply, which `state` has taken.

        Args:
            patience: seconds until the reply must be there.
            look: called at each attempt, once the link is open; any error from it ends the attempts.

        Raises:
            LinkError: no reply came in time.
        """
        deadline, pause = time.monotonic() + patience, SHORTEST_PAUSE
        while True:
            link = self._link(host, deadline)
            look()  # after the link is there: `cut` meanwhile either finds the link, or is heard here
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
        """Send this row and receive the peer's at the same time; return the reply that follows the peer's row."""
        link.say(message.message)
        gone = threading.Event()

        def give() -> None:
            used = time.thread_time()
            with suppress(LinkError):  # then the link is closed, and its reader notices
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
        """Return the next reply, after a check that its payload has the size that is due."""
        reply = link.hear(REPLY_DIALECT, max(0.0, deadline - time.monotonic()), into=message.into)
        due = isinstance(reply, RowReply) or (isinstance(reply, FoundReply) and message.both)
        if len(reply.payload) != message.expected * due:
            raise BadFrame(f"{link.peer} answers with {reply.kind} of {len(reply.payload)} bytes")
        return reply

    def _settle(self, link: Link, message: Outgoing) -> None:
        """Tell the server to forget its reply, which has come. If this is lost, the next exchange tells it."""
        with suppress(LinkError):
            link.say(SettledMessage(message.message.n))

    def _link(self, host: int, deadline: float) -> Link:
        """Return the open link to `host`, or connect and return a new one."""
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
