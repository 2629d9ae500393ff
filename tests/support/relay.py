"""A machine between two hosts that passes on all that they send, and changes one piece when it is told to."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from roundelay.runtime.hosts.transport.wire import Address

REMEMBERED = 1 << 14
"""Bytes of the first link that are remembered."""
PIECE = 1 << 14
"""Bytes that it takes in at once: less than a record of a row."""


class _Hands:
    """Changes made to the pieces of one direction. `late`: a piece that was kept back."""

    def __init__(self) -> None:
        self.late = b""

    def change(self, piece: bytes) -> bytes:
        return piece[:-1] + bytes([piece[-1] ^ 1])

    def repeat(self, piece: bytes) -> bytes:
        return piece + piece

    def leave_out(self, piece: bytes) -> bytes:
        """Leave out a line, or a byte of a row: more of it might be missing at the end, and be waited for."""
        return b"" if len(piece) < PIECE else piece[1:]

    def put_in(self, piece: bytes) -> bytes:
        return os.urandom(29) + piece

    def swap(self, piece: bytes) -> bytes:
        if not self.late:
            self.late = piece
            return b""
        return piece + self.late


MISCHIEF = ("change", "repeat", "leave_out", "put_in", "swap")


class Relay:
    """A relay before the address `target`. Use `relay`.

    Args:
        forward: True to change what goes to `target`, False to change what comes from there.
    """

    def __init__(self, target: Address, what: str, forward: bool) -> None:
        self._target, self._forward, self._what = target, forward, what
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()
        self.links = 0
        self.said = bytearray()
        """Bytes that went to `target` on the first link, from its beginning."""
        self._armed, self._least, self._lock = False, 1, threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._open)]
        self._threads[0].start()

    def go(self, least: int = 1) -> None:
        """Change the next piece of at least `least` bytes, once."""
        with self._lock:
            self._armed, self._least = True, least

    @property
    def done(self) -> bool:
        """True if the relay has made its change."""
        return not self._armed

    def _open(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [near, far]
            self.links += 1
            for source, sink, forward in ((near, far, True), (far, near, False)):
                said = self.said if forward and self.links == 1 else None
                thread = threading.Thread(target=self._pump, args=(source, sink, forward == self._forward, said))
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, mine: bool, said: bytearray | None) -> None:
        hands = _Hands()
        do: Callable[[bytes], bytes] = getattr(hands, self._what)
        ends = ((sink, socket.SHUT_WR), (source, socket.SHUT_RD))
        try:
            while piece := source.recv(PIECE):
                if said is not None and len(said) < REMEMBERED:
                    said += piece
                with self._lock:
                    if mine and ((self._armed and len(piece) >= self._least) or hands.late):
                        piece = do(piece)
                        hands.late = hands.late if self._armed else b""
                        self._armed = False
                sink.sendall(piece)
        except OSError:  # one end is gone: the other hears it
            ends = ((sink, socket.SHUT_RDWR), (source, socket.SHUT_RDWR))
        for end, how in ends:
            with suppress(OSError):
                end.shutdown(how)

    def close(self) -> None:
        """End the relay, and all links through it."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()


@contextmanager
def relay(target: Address, what: str = "change", forward: bool = True) -> Iterator[Relay]:
    """Run a relay before `target` while the body lasts; `what` is the change that it makes."""
    found = Relay(target, what, forward)
    try:
        yield found
    finally:
        found.close()
