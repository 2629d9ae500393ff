"""Links between two hosts in one process, and connections of strangers."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from roundelay.runtime.hosts.transport.handshake import TAG_BYTES, cut
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import USUAL_LINKS, Link, LinkClosed, LinkOptions
from support.until import meanwhile

SECRET = b"a secret of this run, 32 bytes .."
HERE = ("127.0.0.1", 0)


@contextmanager
def listening(
    options: LinkOptions = USUAL_LINKS, patience: float = 10.0, handshake_seconds: float = 60.0
) -> Iterator[Listener]:
    listener = Listener(HERE, SECRET, {"host": 0}, patience, handshake_seconds, options)
    try:
        yield listener
    finally:
        listener.close()


@contextmanager
def pair(
    *, largest: int = 30_000_000, encrypts: bool = True, patience: float = 10.0
) -> Iterator[tuple[Link, Link, Listener]]:
    """Yield both ends of a link, that of the connecting side first, and the listener."""
    options = LinkOptions(encrypts, largest)
    with listening(options, patience) as listener:
        near = Link.connect(listener.address, SECRET, {"host": 1}, 60.0, options)
        far = listener.accept(60.0)
        assert far is not None
        try:
            yield near, far, listener
        finally:
            near.close()
            far.close()


def raw(listener: Listener) -> socket.socket:
    return socket.create_connection(listener.address, timeout=60)


def drain(stranger: socket.socket) -> bytes:
    """Return all bytes that come until the other side closes."""
    data = b""
    with suppress(ConnectionError):
        while piece := stranger.recv(65_536):
            data += piece
    return data


def still_open_to_ours(listener: Listener) -> None:
    near = Link.connect(listener.address, SECRET, {}, 60.0)
    far = listener.accept(60.0)
    assert far is not None
    near.send("word", {"n": 1})
    assert far.receive(60.0).header == {"n": 1}
    near.close()
    far.close()


def sealed(link: Link, kind: bytes = b"word", text: bytes = b"{}", payload: bytes = b"", **changed: Any) -> bytes:
    """Return the next frame of `link` as it would be sent, with other sizes than its own where they are given."""
    fields = {"kinds": len(kind), "texts": len(text), "size": len(payload)}
    parts = [struct.pack("!BIQ", *{**fields, **changed}.values()), kind + text, payload]
    data = b""
    for record in (memoryview(part) for part in parts if part):
        for piece in cut([record]):
            data += link._out.seal(piece, memoryview(bytearray(len(piece) + TAG_BYTES)))
    return data


def put(link: Link, data: bytes) -> None:
    """Send `data` over the link's socket as it is."""
    link.write([memoryview(data)])


@contextmanager
def putting(link: Link, data: bytes) -> Iterator[None]:
    """Send `data` over the link's socket while the body lasts: it may be more than the kernel's buffer holds."""

    def write() -> None:
        with suppress(LinkClosed):
            put(link, data)

    with meanwhile(write):
        yield


def pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while piece := source.recv(65_536):
            kept += piece
            sink.sendall(piece)
    for end, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):
            end.shutdown(how)


def sealed_payload(link: Link, data: bytes) -> bytes:
    return b"".join(
        bytes(link._out.seal(piece, memoryview(bytearray(len(piece) + TAG_BYTES)))) for piece in cut([memoryview(data)])
    )
