"""Links between hosts: connections on which both ends have proved that they know the run's secret (handshake.py), and
on which nothing can be changed, left out, repeated or put in unnoticed (seal.py).

A message is a frame:
    sizes     of the kind in 1 byte, of the header in 4, of the payload in 8, big-endian
    kind      ASCII
    header    a JSON object, UTF-8, at most HEADER_BYTES
    payload   raw, at most the link's `largest`
The sizes are one record; kind and header follow in records of their own, and so does the payload. No size is believed
that is not sealed, and memory grows with what has come, not with what is announced. Records are opened where they
belong in a buffer of the receiver, which is of no worth until all of them have come. Nothing is ever unpickled. A
record without its tag, and a frame that makes no sense, close their connection, and are counted.
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, final

from roundelay.runtime.hosts.transport import handshake
from roundelay.runtime.hosts.transport.rejected import RejectedConnections
from roundelay.runtime.hosts.transport.seal import RECORD_BYTES, TAG_BYTES, Forged, Sealer, cut, sizes
from roundelay.runtime.hosts.transport.stream import LinkClosed, LinkError, LinkTimeout, Stream
from roundelay.runtime.messages import Address, Dialect, Frame, InvalidMessage, Message, plain

__all__ = [
    "Address",
    "BadFrame",
    "Link",
    "LinkClosed",
    "LinkError",
    "LinkTimeout",
    "RejectedConnections",
    "Tampered",
    "UnknownPeer",
]

HEADER_BYTES = 1 << 20
"""Most bytes of JSON in one frame."""
PAYLOAD_BYTES = 1 << 21
"""Most bytes beside it in one frame, unless a link is for more."""
HANDSHAKE_SECONDS = 10.0
"""In which whoever connects must have proved itself."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between attempts to connect: each pause is twice the one before."""
RELAY = "relay"
"""Role of links to a relay (relay.py)."""
SMALL_BYTES = 1 << 12
"""Buffer of a thread for records as long as all are small."""

_FRAME = struct.Struct("!BIQ")


class BadFrame(LinkError, InvalidMessage):
    """The bytes that came are no frame of ours, or no message. The link is closed."""


class Tampered(BadFrame):
    """The bytes that came are not those that the other end has sent, or not in its order: somebody between the two has
    changed them, left something out, or put something in. The link is closed."""


class UnknownPeer(LinkError):
    """The other end does not know the secret, is not whom it was taken for, or has other rules. The link is closed."""


class Spliced(Message):
    """The relay's last word: what comes now comes from the other end, and what is sent goes there."""


@final
@dataclass(frozen=True)
class LinkOptions:
    """Options of links that serve one purpose.

    Attributes:
        encrypts: False: what is said is authenticated and not hidden. Both ends must agree.
        largest: bytes of a payload.
        rejected: counts what is refused; None: nobody reads it.
    """

    encrypts: bool = True
    largest: int = PAYLOAD_BYTES
    rejected: RejectedConnections | None = None


USUAL_LINKS = LinkOptions()


class Link(Stream):
    """One connection, after both ends have proved that they know the secret.

    One thread may receive while others send; any may close.
    """

    def __init__(
        self, socket_: socket.socket, patience: float, rejected: RejectedConnections, largest: int = PAYLOAD_BYTES
    ) -> None:
        """Not proved yet: see `connect` and `Listener`."""
        super().__init__(socket_, patience)
        self._rejected = rejected
        self.address = self.peer.rpartition(":")[0]
        """Address of the other end."""
        self._sending = threading.Lock()
        self._out: Sealer
        self._in: Sealer
        self.largest = largest
        """Bytes of a payload, either way: what this link is for needs no more."""
        self.hello: dict[str, Any] = {}
        """The identity that the other end has given."""

    @classmethod
    def connect(
        cls,
        address: Address,
        secret: bytes,
        hello: dict[str, Any],
        patience: float,
        options: LinkOptions = USUAL_LINKS,
        within: float | None = None,
        expected: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return a link to whoever listens at `address`, tried again and again for `within` seconds: also when the
        other end is there and closes the connection before both have proved themselves, as it does in a crowd.

        Args:
            address: NAME@ADDRESS and a port: that of the relay at which a host has this name (relay.py).
            hello: what this end says of itself.
            patience: how long the other may stand still in the middle of a frame; what `within` is where it is None.
            expected: what the other end must say of itself; somebody else who knows the secret is a stranger, too.

        Raises:
            LinkTimeout: nobody listens there, or nobody has answered well in time; says what happened last.
            Stranger: somebody does, but not one of ours, or not whom we look for; or it takes us for a stranger.
        """
        seconds, where = patience if within is None else within, f"{address[0]}:{address[1]}"
        deadline, pause = time.monotonic() + seconds, SHORTEST_PAUSE
        while True:
            left = max(0.01, deadline - time.monotonic())
            try:
                socket_ = cls._reach(address, secret, patience, options, left)
                try:
                    link = cls(socket_, patience, options.rejected or RejectedConnections(), options.largest)
                except OSError:
                    socket_.close()
                    raise
                introduce = partial(link._introduce, secret, hello, options.encrypts, expected or {})
                link.prove(introduce, min(HANDSHAKE_SECONDS, max(0.01, deadline - time.monotonic())))
                return link
            except UnknownPeer:
                raise
            except (OSError, LinkError) as error:
                if time.monotonic() + pause >= deadline:
                    sought = f" within {seconds:.3g} s" if seconds > 0 else ""
                    raise LinkTimeout(f"nobody answers at {where}{sought} ({error})") from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    @classmethod
    def _reach(
        cls, address: Address, secret: bytes, patience: float, options: LinkOptions, seconds: float
    ) -> socket.socket:
        """Return a connection to the listener at `address`, perhaps by a relay.

        Raises:
            OSError, LinkError: there is none.
        """
        name, at, host = address[0].rpartition("@")
        if not at:
            return socket.create_connection(address, timeout=seconds)
        own = replace(options, rejected=None)
        hello = {"what": RELAY, "wants": name}
        return cls.connect((host, address[1]), secret, hello, patience, own, seconds).spliced(seconds)

    def spliced(self, seconds: float) -> socket.socket:
        """Return the connection, as this end of what the relay at its other end passes on.

        Raises:
            LinkError: the relay does not say so within `seconds`; the link is closed.
        """
        try:
            self.hear(Dialect(Spliced), seconds)
            return self.release()
        except LinkError:
            self.close()
            raise

    def prove(self, how: Callable[[float], None], seconds: float) -> None:
        """Go through the handshake within `seconds`; close the link unless that goes well."""
        with self.in_use():
            try:
                how(time.monotonic() + seconds)
            except BaseException:
                self.close()
                raise

    # The handshake ----------------------------------------------------------------------------------------------------

    def _introduce(
        self, secret: bytes, hello: dict[str, Any], encrypts: bool, expected: Mapping[str, Any], deadline: float
    ) -> None:
        """Introduce this end, as the side that connects."""
        self._exchange_hellos(hello, self._agree(handshake.introduce, secret, encrypts, deadline), deadline)
        wrong = [f"{name} {self.hello.get(name)!r}" for name in expected if self.hello.get(name) != expected[name]]
        if wrong:
            wanted = ", ".join(f"{name} {value!r}" for name, value in expected.items())
            raise UnknownPeer(f"{self.peer} is not {wanted}: it says {', '.join(wrong)}")

    def admit(self, secret: bytes, hello: dict[str, Any], encrypts: bool, deadline: float) -> None:
        """Admit the other end, as the side that listens."""
        self._exchange_hellos(hello, self._agree(handshake.admit, secret, encrypts, deadline), deadline)

    def _agree(
        self, how: Callable[..., handshake.Keys], secret: bytes, encrypts: bool, deadline: float
    ) -> handshake.Keys:
        try:
            keys = how(
                lambda size: self._hear(size, deadline), lambda data: self.write([memoryview(data)]), secret, encrypts
            )
        except handshake.Refused as error:
            raise UnknownPeer(f"{self.peer} {error}") from error
        self._out, self._in = keys.sealers("hello")
        return keys

    def _exchange_hellos(self, hello: dict[str, Any], keys: handshake.Keys, deadline: float) -> None:
        text = json.dumps(hello, separators=(",", ":")).encode()
        largest, self.largest = self.largest, HEADER_BYTES
        self.send("hello", {}, [text])
        message = self.receive(max(0.0, deadline - time.monotonic()))
        try:
            self.hello = json.loads(bytes(message.payload).decode())
            if message.kind != "hello" or not isinstance(self.hello, dict):
                raise ValueError(message.kind)
        except (ValueError, RecursionError) as error:
            raise self.blame("does not begin with hello") from error
        self.largest = largest
        said = [text, bytes(message.payload)]
        self._out, self._in = keys.sealers("run", said if keys.role == "connector" else said[::-1])

    def _hear(self, size: int, deadline: float) -> bytes:
        data = bytearray(size)
        self.fill(memoryview(data), deadline)
        return bytes(data)

    def blame(self, what: str) -> BadFrame:
        """Count what the other end has said as senseless, and close the link. The error to raise, where one is."""
        reason = f"{self.peer} {what}"
        self._rejected.count("malformed", reason)
        self.close()
        return BadFrame(reason)

    # Messages ---------------------------------------------------------------------------------------------------------

    def say(self, message: Message, payload: Sequence[Any] = ()) -> None:
        """Send a message, as `send` does."""
        self.send(message.kind, message.header, payload)

    def hear(self, dialect: Dialect, timeout: float | None, into: Any = None) -> Message:
        """Return the next message, as `receive` does.

        Raises:
            LinkTimeout, LinkClosed, BadFrame: also where it is none of `dialect`.
        """
        frame = self.receive(timeout, into)
        try:
            return dialect.read(frame)
        except InvalidMessage as error:
            raise self.blame(f"says what is no message of ours: {error}") from error

    def send(self, kind: str, header: dict[str, Any], payload: Sequence[Any] = ()) -> None:
        """Send one frame; `payload` is what lies in these buffers, one after the other, as it is while it is sent.

        Raises:
            LinkClosed: the other end is gone, or has taken nothing for `patience` seconds.
        """
        name, text = kind.encode("ascii"), json.dumps(header, separators=(",", ":"), default=plain).encode()
        views = [memoryview(part).cast("B") for part in payload]
        size = sum(map(len, views))
        if not 0 < len(name) < 256 or len(text) > HEADER_BYTES or size > self.largest:
            raise ValueError(f"no frame: kind of {len(name)}, header of {len(text)}, payload of {size} bytes")
        start = _FRAME.pack(len(name), len(text), size)
        with self._sending, self.in_use():
            try:
                self._send_records([memoryview(start)], [memoryview(name + text)], views)
            except BaseException:  # some of it may be on its way: what came next would make no sense
                self.close()
                raise

    def _send_records(self, *parts: Sequence[memoryview]) -> None:
        """Send records; each part begins one. What is small goes in one piece."""
        filled, rooms = 0, _ROOMS
        for data in (data for views in parts for data in cut(views)):
            needed = len(data) + TAG_BYTES
            if filled + needed > len(rooms.sent):
                self.write([rooms.sent[:filled]])
                filled = 0
                if needed > len(rooms.sent):
                    rooms.sent = _room(needed)
            filled += len(self._out.seal(data, rooms.sent[filled:]))
        self.write([rooms.sent[:filled]])

    def receive(self, timeout: float | None, into: Any = None) -> Frame:
        """Return the next frame. `timeout` is for its beginning, in seconds, None for no bound; once begun, it must go
        on within `patience` seconds, again and again.

        Args:
            into: a buffer for the payload, or a function that finds one for so many bytes, once they begin to come; if
                it is too small for them, the frame counts as malformed. What is in it is of no worth unless this
                returns: it is written before it is verified.

        Raises:
            LinkTimeout: nothing began in time.
            LinkClosed, BadFrame.
        """
        with self.in_use():
            try:
                return self._receive(timeout, into)
            except Forged as error:
                reason = f"what comes from {self.peer} was changed, left out, repeated or put in on its way"
                self._rejected.count("tampered", reason)
                self.close()
                raise Tampered(reason) from error
            except LinkClosed:
                self.close()
                raise

    def _receive(self, timeout: float | None, into: Any) -> Frame:
        self.wait(timeout)
        name_size, text_size, size = _FRAME.unpack(b"".join(self._records(_FRAME.size)))
        if not name_size or text_size > HEADER_BYTES or size > self.largest:
            raise self.blame(f"sent a frame beyond all bounds: header {text_size}, payload {size} bytes")
        head = bytearray()
        for piece in self._records(name_size + text_size):
            head += piece
        try:
            kind, header = head[:name_size].decode("ascii"), json.loads(head[name_size:].decode())
        except (ValueError, RecursionError) as error:
            raise self.blame("sent a frame whose header is no JSON") from error
        if not isinstance(header, dict):
            raise self.blame("sent a frame whose header is no object")
        if into is None:
            data = bytearray()
            for piece in self._records(size):
                data += piece
            return Frame(kind, header, memoryview(data))
        view = memoryview(into(size) if callable(into) else into).cast("B")
        if size > len(view):
            raise self.blame(f"sent {size} bytes of {kind} where {len(view)} fit")
        self._open_in_place(view[:size])
        return Frame(kind, header, view[:size])

    def _open_in_place(self, view: memoryview) -> None:
        """Fill `view` with the data of the next records, without a copy.

        Raises:
            Forged: `view` has what nobody has sent.
        """
        at, tag = 0, memoryview(bytearray(TAG_BYTES))
        for part in sizes(len(view)):
            place = view[at : at + part]
            if self._in.encrypts:
                record = self._room_for(part)
                self.fill(record)
                self._in.open(record, place)
            else:
                self.fill(place)
                self.fill(tag)
                self._in.verify(place, tag)
            at += part

    def _records(self, size: int) -> Iterator[memoryview]:
        """Yield the data of the next records, `size` bytes together; each good until the next is asked for.

        Raises:
            Forged.
        """
        for part in sizes(size):
            record = self._room_for(part)
            self.fill(record)
            yield self._in.open(record, _ROOMS.opened)

    def _room_for(self, part: int) -> memoryview:
        """Return room for a record of so many bytes of data, as it comes."""
        if part + TAG_BYTES > len(_ROOMS.sealed):
            _ROOMS.sealed, _ROOMS.opened = _room(part + TAG_BYTES), _room(part)
        return _ROOMS.sealed[: part + TAG_BYTES]


def _room(size: int) -> memoryview:
    """Return room for small records, or for any."""
    return memoryview(bytearray(SMALL_BYTES if size <= SMALL_BYTES else RECORD_BYTES + 64 * TAG_BYTES))


class _Rooms(threading.local):
    """Room for records of the messages that a thread sends and receives, one at a time. A host has many links that are
    silent, and few threads."""

    sealed = opened = sent = memoryview(b"")


_ROOMS = _Rooms()
