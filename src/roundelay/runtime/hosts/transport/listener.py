"""The listener: other hosts connect to it.

Each connection is authenticated (wire.py) on a thread of its own, so one that says nothing keeps no other waiting.
"""

import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, final

from roundelay.runtime.hosts.transport.wire import (
    HANDSHAKE_SECONDS,
    USUAL_LINKS,
    Address,
    BadFrame,
    Link,
    LinkOptions,
    RejectedConnections,
)

MOST_UNADMITTED = 64
"""Connections that may be authenticating at a time. With one more, the oldest of the address that has most of them is
closed: a crowd from one address keeps no other address out."""


class Acceptor(Protocol):
    """Interface of places at which connections of other hosts come: a socket of this host, or a relay (relay.py)."""

    @property
    def address(self) -> Address:
        """Address at which others reach this acceptor."""

    def accept(self) -> socket.socket:
        """Return the next connection; raises OSError where there is none, also once this is closed."""

    def close(self) -> None:
        """Close the acceptor; an `accept` under way ends at once."""


@final
class ListeningSocket:
    """An acceptor at an address of this host.

    Raises:
        OSError: the address is not one of this host, or is in use.
    """

    def __init__(self, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=128)
        self.address: Address = self._socket.getsockname()[:2]
        """Address of the socket."""

    def accept(self) -> socket.socket:
        """Return the next connection."""
        return self._socket.accept()[0]

    def close(self) -> None:
        """Close the socket, and wake the thread that is in `accept`."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Listener:
    """Listener that accepts connections of other hosts and authenticates them.

    Args:
        at: an address and a port of this host, where port 0 takes any; or another acceptor.
        secret: the secret of the run.
        hello: this end's words about itself, to hosts that have proved themselves.
        patience: seconds that the other end of a link may stand still in the middle of a frame.

    Raises:
        OSError: the address is not one of this host, or is in use.
    """

    def __init__(
        self,
        at: Address | Acceptor,
        secret: bytes,
        hello: dict[str, Any] | None = None,
        patience: float = 10.0,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        options: LinkOptions = USUAL_LINKS,
    ) -> None:
        self.acceptor: Acceptor = ListeningSocket(at) if isinstance(at, tuple) else at
        self.rejected = options.rejected or RejectedConnections()
        self._secret, self.hello, self._patience = secret, hello or {}, patience
        self._handshake_seconds, self._largest, self._encrypts = handshake_seconds, options.largest, options.encrypts
        self._gate = threading.Lock()
        self.closed = False
        """True once this end has closed it."""
        self._unadmitted: dict[Link, threading.Thread] = {}
        self._admitted: SimpleQueue[Link | None] = SimpleQueue()  # None: closed
        self._thread = threading.Thread(target=self._open, daemon=True, name=f"listener {self.acceptor.address[1]}")
        self._thread.start()

    def say(self, **facts: Any) -> None:
        """Add these facts to the hello of this end from now on."""
        self.hello = {**self.hello, **facts}

    @property
    def address(self) -> Address:
        """Address at which others reach this listener."""
        return self.acceptor.address

    def accept(self, timeout: float | None) -> Link | None:
        """Return the link to the next host that has proved itself; None if there is none within `timeout` seconds
        (None: no bound), or when this is closed meanwhile."""
        try:
            link = self._admitted.get(timeout=timeout)
        except Empty:
            return None
        if link is None:
            self._admitted.put(None)  # other threads may wait
        return link

    def _open(self) -> None:
        while True:
            try:
                socket_ = self.acceptor.accept()
            except OSError:
                if self.closed:
                    return
                time.sleep(0.05)  # out of descriptors, say: another thread may close some
                continue
            try:
                link = Link(socket_, self._handshake_seconds, self.rejected, self._largest)
            except OSError:  # gone again
                socket_.close()
                continue
            thread = threading.Thread(target=self._examine, args=(link,), daemon=True, name=f"listener {link.peer}")
            with self._gate:
                if len(self._unadmitted) >= MOST_UNADMITTED:
                    self._reject_oldest()
                self._unadmitted[link] = thread
                closed = self.closed
            if closed:
                link.close()
            thread.start()

    def _reject_oldest(self) -> None:
        crowd = Counter(link.address for link in self._unadmitted)
        address, _ = crowd.most_common(1)[0]
        oldest = next(link for link in self._unadmitted if link.address == address)
        del self._unadmitted[oldest]
        oldest.close()

    def _examine(self, link: Link) -> None:
        try:
            link.prove(partial(link.admit, self._secret, self.hello, self._encrypts), self._handshake_seconds)
            link.patience = self._patience
        except BadFrame:  # from a host that had proved itself; counted
            pass
        except Exception as error:  # nonsense of a stranger is its own problem
            self.rejected.count("strangers", str(error))
        with self._gate:
            self._unadmitted.pop(link, None)
            if self.closed:
                link.close()
            if not link.closed:
                self._admitted.put(link)

    def close(self) -> None:
        """Close the listener: no host can connect any more; accepted links stay. Safe to call twice."""
        with self._gate:
            self.closed = True
            waiting = dict(self._unadmitted)
        self.acceptor.close()
        self._thread.join()
        for visitor, thread in waiting.items():
            visitor.close()
            if thread.ident is not None:
                thread.join()
        with suppress(Empty):
            while True:
                link = self._admitted.get_nowait()
                if link is not None:
                    link.close()
        self._admitted.put(None)
