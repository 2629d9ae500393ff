"""Relays: a way to a host that no other can connect to, since it is behind a router (NAT) or a firewall.

    behind     connects to the relay, says its name, and keeps that link
    visitor    connects to the relay, and says which name it wants
    relay      tells the host behind that a visitor is there
    behind     connects once more, for this visitor
    relay      passes on the bytes of both connections, as they come

All of these connections are links: both ends have proved that they know the run's secret. Once the relay has said
`Spliced` the two ends begin anew over the same connections, as if one had connected to the other, with a handshake and
keys of their own (handshake.py). So the relay passes on sealed bytes, and a change by it would be noticed.

The address of a host behind a relay is (NAME@ADDRESS, PORT): the relay's, and the host's name there (`Link.connect`).
"""

import queue
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, final

from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink, Router
from roundelay.runtime.hosts.transport.wire import (
    HANDSHAKE_SECONDS,
    RELAY,
    Address,
    Link,
    LinkError,
    LinkOptions,
    Spliced,
)
from roundelay.runtime.messages import Dialect, Message

SEEK_SECONDS = 1.0
"""Most seconds of one attempt to connect to a relay."""
PIECE_BYTES = 1 << 18
"""Most bytes that are passed on at a time."""


class Visit(Message):
    """Message to a host behind a relay that a visitor is there, for which it is to connect."""

    number: int


@final
class Relay:
    """Relay, which passes on connections to hosts that cannot be reached otherwise.

    Args:
        router: gives the relay the links that come for one; they end with the relay.
        patience: seconds of silence after which a host behind counts as gone.
    """

    def __init__(self, router: Router, patience: float) -> None:
        self._patience, self._gate = patience, threading.Lock()
        self._behind: dict[str, MonitoredLink] = {}
        self._visitors: dict[int, tuple[float, Link]] = {}
        self._number = 0
        router.give(RELAY, self._take)
        router.at_end.append(self.close)

    @property
    def names(self) -> list[str]:
        """Names of hosts that are reached by this relay."""
        with self._gate:
            return sorted(self._behind)

    def _take(self, link: Link) -> None:
        """Take a link whose hello has the sender's name, the name of the host it wants, or the visitor it comes for."""
        hello = link.hello
        if isinstance(name := hello.get("name"), str):
            self._keep(name, link)
        elif isinstance(wanted := hello.get("wants"), str):
            self._announce(wanted, link)
        elif isinstance(number := hello.get("visitor"), int):
            self._splice(number, link)
        else:
            link.blame("does not say for what it comes to a relay")

    def _keep(self, name: str, link: Link) -> None:
        monitored = MonitoredLink(link, self._patience)
        with self._gate:
            before, self._behind[name] = self._behind.get(name), monitored
        if before is not None:
            before.close()
        monitored.beat()
        monitored.listen(Dialect(), lambda _: None, lambda _: self._forget(name, monitored))

    def _forget(self, name: str, monitored: MonitoredLink) -> None:
        with self._gate:
            if self._behind.get(name) is monitored:
                del self._behind[name]
        monitored.link.close()

    def _announce(self, wanted: str, link: Link) -> None:
        oldest = time.monotonic() - HANDSHAKE_SECONDS
        with self._gate:
            behind = self._behind.get(wanted)
            late = [number for number, (since, _) in self._visitors.items() if since < oldest]
            gone = [self._visitors.pop(number)[1] for number in late]
            self._number += 1
            number = self._number
            if behind is not None:
                self._visitors[number] = time.monotonic(), link
        for one in gone:
            one.close()
        try:
            if behind is None:
                raise LinkError(f"no host {wanted} is here")
            behind.say(Visit(number))
        except LinkError:
            with self._gate:
                self._visitors.pop(number, None)
            link.close()

    def close(self) -> None:
        """Close the relay for visitors. Connections that are passed on stay."""
        with self._gate:
            behind, visitors = list(self._behind.values()), [link for _, link in self._visitors.values()]
            self._behind.clear()
            self._visitors.clear()
        for monitored in behind:
            monitored.close()
        for link in visitors:
            link.close()

    def _splice(self, number: int, link: Link) -> None:
        with self._gate:
            _, visitor = self._visitors.pop(number, (0.0, None))
        if visitor is None:
            link.close()
            return
        try:
            for end in (visitor, link):
                end.say(Spliced())
            sockets = visitor.release(), link.release()
        except LinkError:
            visitor.close()
            link.close()
            return
        for source, target in (sockets, sockets[::-1]):
            threading.Thread(target=_pass_on, args=(source, target), daemon=True, name=f"relay {number}").start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass on bytes from `source` to `target` as they come, until one of the two ends."""
    room = memoryview(bytearray(PIECE_BYTES))
    with suppress(OSError):
        while size := source.recv_into(room):
            _send(target, room[:size])
    for end in (source, target):  # each thread does so: the other then ends, too, and the last closes
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    source.close()


def _send(target: socket.socket, data: memoryview) -> None:
    target.sendall(data)


@final
class BehindRelay:
    """Acceptor of a host behind a relay, in the place of a listening socket (`Listener`).

    Args:
        relay: address of the relay.
        name: name of this host there.
        moves: True if another host may become the relay (`move`).

    The relay is looked for until this is closed, and again where the link to it is gone.
    """

    def __init__(
        self, relay: Address, name: str, secret: bytes, patience: float, options: LinkOptions, moves: bool
    ) -> None:
        self._relay, self._name, self._secret, self._patience = relay, name, secret, patience
        self._options, self._moves = replace(options, rejected=None), moves
        self._visits: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # None: the link to the relay is gone
        self._closed = False
        self._link: MonitoredLink | None = None
        self._visits.put(None)

    @property
    def address(self) -> Address:
        """Address of the relay, with the name of this host."""
        return f"{self._name}@{self._relay[0]}", self._relay[1]

    def move(self, relay: Address) -> None:
        """Use the host at address `relay` as the relay from now on, if `moves` and that host is not behind a relay."""
        if self._moves and "@" not in relay[0] and relay != self._relay:
            self._relay = relay
            self._visits.put(None)

    def _connect(self, hello: dict[str, Any], within: float) -> Link:
        hello = {"what": RELAY, **hello}
        return Link.connect(self._relay, self._secret, hello, self._patience, self._options, within)

    def _come(self) -> None:
        """Connect to the relay anew.

        Raises:
            LinkError: the relay does not answer.
        """
        if self._link is not None:
            self._link.close()
        self._link = MonitoredLink(self._connect({"name": self._name}, SEEK_SECONDS), self._patience)
        self._link.beat()
        self._link.listen(Dialect(Visit), self._hear, lambda _: self._visits.put(None))

    def _hear(self, message: Message) -> None:
        assert isinstance(message, Visit)
        self._visits.put(message.number)

    def accept(self) -> socket.socket:
        """Return the next connection.

        Raises:
            OSError: this is closed, or the connection came to nothing.
        """
        while not self._closed:
            number = self._visits.get()
            try:
                if number is not None:
                    return self._connect({"visitor": number}, HANDSHAKE_SECONDS).spliced(HANDSHAKE_SECONDS)
                if not self._closed:
                    self._come()
            except LinkError as error:
                if number is None:
                    self._visits.put(None)
                raise OSError(str(error)) from error
        raise OSError("closed")

    def close(self) -> None:
        """Close the link to the relay: no connection comes any more."""
        self._closed = True
        if self._link is not None:
            self._link.close()
        self._visits.put(None)
