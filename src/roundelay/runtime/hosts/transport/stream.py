"""A connection as bytes: it never blocks for longer than its owner is patient, and any thread may close it.

Nothing is known here of the other end, or of the meaning of the bytes.
"""

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

MOST_PIECES = 256
"""Most pieces of one message in one system call."""
NOT_SENT_LOW = 25
"""Linux' TCP_NOTSENT_LOWAT."""
NOT_SENT_BYTES = 1 << 20
"""Bytes of one connection that wait in the kernel for their turn: more would not be sent sooner, and leave the cache.
At 1 Gbit/s it asks for more when there is enough for 4 ms, in which a thread gets a busy core."""
NEAR_SECONDS = 0.0002
"""Round-trip time up to which a send buffer of NEAR_BYTES is enough: the kernel makes it twice as large, and then it
carries 40 Gbit/s. Bytes on their way stay in cache. On longer links the kernel finds the size by itself."""
NEAR_BYTES = 1 << 19
TOGETHER_BYTES = 1 << 18
"""Most bytes of one record that a reader waits for at a time. A slow link brings a packet every tenth of a millisecond,
and a reader that wakes for each takes the processor from a learner each time."""
LONG_BYTES = 1 << 14
"""Bytes below which a record comes in few packets, so that a reader wakes for each."""
RTO_MAX_MS = 44
"""Linux' TCP_RTO_MAX_MS (6.15 and newer): how long it waits at most before it sends lost bytes again."""


class LinkError(Exception):
    """Error of a link; names the other end."""


class LinkClosed(LinkError):
    """Error: the link is closed, by either end, or because the other stood still in the middle of a frame."""


class LinkTimeout(LinkError):
    """Error: nothing came in time. The link can still be used."""


class Stream:
    """One connection, as bytes. One thread may write while another reads; any may close.

    Args:
        patience: seconds for which the other end may take nothing, or send nothing in the middle of a `fill`.
    """

    def __init__(self, socket_: socket.socket, patience: float) -> None:
        socket_.setblocking(False)
        _tune(socket_)
        self._socket, self._gate, self._inside, self._closed = socket_, threading.Lock(), 0, False
        self.descriptor = socket_.fileno()
        """Descriptor of the socket: another's once this is closed, so use it while this is `in_use`."""
        self._together = 1  # bytes that must have come before a reader is woken, as the kernel knows it
        self.patience = patience
        self.sent_bytes = 0
        self.received_bytes = 0
        self.peer = _name(socket_)
        """Address and port of the other end, for people."""
        self.here: str = socket_.getsockname()[0]
        """Address of this end."""

    @property
    def patience(self) -> float:
        """Seconds for which the other end may take nothing, or send nothing in the middle of a `fill`."""
        return self._patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self._patience = seconds
        with suppress(OSError):  # it is closed, as its user is about to hear
            _be_patient(self._socket, seconds)

    def write(self, views: list[memoryview]) -> None:
        """Send all of `views`.

        Raises:
            LinkClosed: the connection is closed, or the other end has taken nothing for `patience` seconds.
        """
        pieces = deque(view for view in views if len(view))
        while pieces:
            try:
                if len(pieces) == 1:
                    sent = self._socket.send(pieces[0])
                else:
                    sent = self._socket.sendmsg([pieces[i] for i in range(min(len(pieces), MOST_PIECES))])
            except BlockingIOError:
                try:
                    self._wait(select.POLLOUT, self.patience)
                except LinkTimeout as error:
                    raise LinkClosed(f"{self.peer} has taken nothing for {self.patience:.0f} s") from error
                continue
            except OSError as error:
                raise LinkClosed(f"the link to {self.peer} is broken ({error.strerror})") from error
            self.sent_bytes += sent
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces.popleft())
            if sent:
                pieces[0] = pieces[0][sent:]

    def fill(self, view: memoryview, deadline: float | None = None) -> None:
        """Fill all of `view` with the bytes that come, by `deadline`; without one, some of it every `patience` seconds.

        Raises:
            LinkClosed, LinkTimeout: the bytes did not come; LinkTimeout only where there is a deadline.
        """
        try:
            while len(view):
                view = view[self._some(view, deadline) :]
        finally:
            self._wake_at(1)

    def _some(self, view: memoryview, deadline: float | None) -> int:
        """Put the bytes that have come at the beginning of `view`, as `fill` does; return the number of bytes, which
        may be 0."""
        try:
            got = self._socket.recv_into(view)
        except BlockingIOError:
            seconds = self.patience if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._wait_for(min(len(view), TOGETHER_BYTES), seconds)
            except LinkTimeout as error:
                if deadline is not None:
                    raise
                raise LinkClosed(f"{self.peer} stands still in the middle of a frame") from error
            return 0
        except OSError as error:
            raise LinkClosed(f"the link to {self.peer} is broken ({error.strerror})") from error
        if not got:
            raise LinkClosed(f"{self.peer} has closed the link")
        self.received_bytes += got
        return got

    def wait(self, seconds: float | None) -> None:
        """Wait until bytes have come.

        Raises:
            LinkTimeout: none has come within `seconds` (None: no bound).
        """
        self._wait(select.POLLIN, seconds)

    def _wait_for(self, size: int, seconds: float) -> None:
        """Wait until `size` bytes have come, or as many as do within `seconds`.

        Raises:
            LinkTimeout: none has come.
        """
        self._wake_at(size if size >= LONG_BYTES else 1)
        try:
            self._wait(select.POLLIN, seconds)
        except LinkTimeout:
            if self._together == 1:
                raise
            self._wake_at(1)
            self._wait(select.POLLIN, 0.0)

    def _wake_at(self, size: int) -> None:
        """Have the kernel wake a reader when `size` bytes have come, and not for fewer."""
        if size != self._together:
            with suppress(OSError):  # it is closed, which the reader is about to hear
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._together = size

    def _wait(self, for_: int, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self.descriptor, for_)
        if not poll.poll(None if seconds is None else max(0.0, seconds * 1000)):
            raise LinkTimeout(f"nothing from {self.peer} for {seconds:.1f} s")

    @property
    def closed(self) -> bool:
        """True once this end has closed the connection: on request, or for bad bytes that came."""
        return self._closed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the socket from being given back to the kernel, until the end of the `with`.

        Raises:
            LinkClosed: the connection is closed.
        """
        with self._gate:
            if self._closed:
                raise LinkClosed(f"the link to {self.peer} is closed")
            self._inside += 1
        try:
            yield
        finally:
            with self._gate:
                self._inside -= 1
                if self.closed and not self._inside:
                    self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def release(self) -> socket.socket:
        """Give the connection away, as a socket that blocks; this object is closed for all that hold it.

        Raises:
            LinkClosed: the connection is closed already.
        """
        with self._gate:
            if self._closed:
                raise LinkClosed(f"the link to {self.peer} is closed")
            self._closed = True
            socket_ = socket.socket(fileno=self._socket.detach())
        socket_.setblocking(True)
        return socket_

    def close(self) -> None:
        """Close the connection: all threads that write or read, here or there, get `LinkClosed`. Safe to call twice."""
        with self._gate:
            if not self._closed:
                self._closed = True
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            if not self._inside:  # else the last user does it: the descriptor's number must not be used anew
                self._socket.close()


def _be_patient(socket_: socket.socket, patience: float) -> None:
    """Have the kernel close the connection when the other host is gone, but not before `patience` seconds."""
    socket_.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe = max(1, int(patience / 4))
    for option, value in (
        (socket.TCP_KEEPIDLE, probe),
        (socket.TCP_KEEPINTVL, probe),
        (socket.TCP_KEEPCNT, 4),
        (socket.TCP_USER_TIMEOUT, max(1000, int(2 * patience * 1000))),
    ):
        socket_.setsockopt(socket.IPPROTO_TCP, option, value)


def _tune(socket_: socket.socket) -> None:
    """Set options of the socket, such that small messages go at once."""
    socket_.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    socket_.setsockopt(socket.IPPROTO_TCP, NOT_SENT_LOW, NOT_SENT_BYTES)
    if _round_trip(socket_) <= NEAR_SECONDS:
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_BYTES)
    with suppress(OSError):  # older kernels: a link that was cut for 10 s may take 20 to go on
        socket_.setsockopt(socket.IPPROTO_TCP, RTO_MAX_MS, 1000)


def _round_trip(socket_: socket.socket) -> float:
    """Return the round-trip time, in seconds, that TCP measured when the connection was made."""
    (microseconds,) = struct.unpack_from("I", socket_.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 72), 68)
    return float(microseconds) / 1e6


def _name(socket_: socket.socket) -> str:
    try:
        host, port = socket_.getpeername()[:2]
    except OSError:
        return "somebody who is gone"
    return f"{host}:{port}"
