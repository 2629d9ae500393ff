"""Links between hosts: connections on which both ends have proved that they know the run's secret (handshake.py), and
on which nothing can be changed, left out, repeated or put in unnoticed (handshake.py).

A message is a frame:
    sizes     of the kind in 1 byte, of the header in 4, of the payload in 8, big-endian
    kind      ASCII
    header    a JSON object, UTF-8, at most HEADER_BYTES
    payload   raw, at most the link's `largest`
The sizes are one record; kind and header follow in records of their own, and so does the payload. No size is believed
that is not sealed, and memory grows with the bytes that have come, not with those announced. Records are opened where
they belong in a buffer of the receiver, which is of no worth until all of them have come. Nothing is ever unpickled. A
record without its tag, and a frame that makes no sense, close their connection, and are counted.
"""

import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self, final

from roundelay.runtime.base import Traffic
from roundelay.runtime.hosts.transport import handshake
from roundelay.runtime.hosts.transport.handshake import RECORD_BYTES, TAG_BYTES, Forged, Sealer, cut, sizes
from roundelay.runtime.hosts.transport.stream import LinkClosed, LinkError, LinkTimeout, Stream
from roundelay.runtime.messages import Address, Dialect, Frame, InvalidMessage, Message, plain

Reading = tuple[int, int, int, float]
"""Traffic of a link: the host at the other end; bytes sent, bytes received, and seconds of waits for it, so far."""


class TrafficCounters:
    """Counters of the traffic of all links of a host, between one look and the next.

    Args:
        host: number of the host.
        read: returns a reading of each link there is now.
    """

    def __init__(self, host: int, read: Callable[[], Iterable[Reading]]) -> None:
        self._host, self._read = host, read
        self._before: dict[int, tuple[int, int, float]] = {}

    def bytes(self) -> dict[int, tuple[int, int]]:
        """Return the bytes sent and received so far over the present links, by the host at the other end."""
        return {peer: (sent, received) for peer, (sent, received, _) in self._totals().items()}

    def _totals(self) -> dict[int, tuple[int, int, float]]:
        now: dict[int, tuple[int, int, float]] = {}
        for peer, sent, received, waited in self._read():
            old = now.get(peer, (0, 0, 0.0))
            now[peer] = (old[0] + sent, old[1] + received, old[2] + waited)
        return now

    def since(self) -> tuple[Traffic, ...]:
        """Return the traffic with each other host since the last call."""
        now, found = self._totals(), []
        for peer, values in sorted(now.items()):
            before = self._before.get(peer, (0, 0, 0.0))
            if values[0] < before[0]:  # a new link, after the old one was lost
                before = (0, 0, 0.0)
            sent, received, waited = values[0] - before[0], values[1] - before[1], values[2] - before[2]
            found.append(Traffic(self._host, peer, sent, received, round(waited, 6)))
        self._before = now
        return tuple(found)


REASONS = 8
"""Number of reasons for refused connections that are kept, for people."""


@dataclass
class RejectedConnections:
    """Counts of connections that were closed for a failed proof, a malformed message, or tampering."""

    strangers: int = 0  # that did not prove themselves: wrong secret, noise, silence
    malformed: int = 0  # by a message that made no sense, from a host of ours
    tampered: int = 0  # by something that was changed, left out, repeated or put in on the way
    reasons: deque[str] = field(default_factory=lambda: deque(maxlen=REASONS))  # of the last ones, for people
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def all(self) -> int:
        """Number of connections refused or closed, of every kind."""
        return self.strangers + self.malformed + self.tampered

    def count(self, kind: Literal["strangers", "malformed", "tampered"], reason: str) -> None:
        """Count one more connection of this kind, with the reason."""
        with self.lock:
            setattr(self, kind, getattr(self, kind) + 1)
            self.reasons.append(reason)


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
"""Most bytes of payload in one frame, unless a link is for more."""
HANDSHAKE_SECONDS = 10.0
"""Seconds in which a connector must have proved itself."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Bounds of the seconds between attempts to connect: each pause is twice the one before."""
RELAY = "relay"
"""Role of links to a relay (relay.py)."""
TAKEN = "taken"
"""First message of the connector. One that has given the connection up never sends it, however late the rest comes."""
SMALL_BYTES = 1 << 12
"""Bytes of a thread's buffer for records as long as all are small."""

_FRAME = struct.Struct("!BIQ")


class BadFrame(LinkError, InvalidMessage):
    """Error: the bytes that came are no frame, or no message. The link is closed."""


class Tampered(BadFrame):
    """Error: the bytes that came are not those that the other end has sent, in its order: a process between the two has
    changed some, left some out, or put some in. The link is closed."""


class UnknownPeer(LinkError):
    """Error: the other end does not know the secret, is not as expected, or has another mode. The link is closed."""


class Spliced(Message):
    """Last message of a relay: from now on bytes come from the other end, and go there."""


@final
@dataclass(frozen=True)
class LinkOptions:
    """Options of links that serve one purpose."""

    encrypts: bool = True  # False: what is said is authenticated and not hidden. Both ends must agree.
    largest: int = PAYLOAD_BYTES  # bytes of a payload
    rejected: RejectedConnections | None = None  # counts refused connections; None: they are not counted


USUAL_LINKS = LinkOptions()


class Link(Stream):
    """One connection, after both ends have proved that they know the secret.

    One thread may receive while others send; any may close.
    """

    def __init__(
        self, socket_: socket.socket, patience: float, rejected: RejectedConnections, largest: int = PAYLOAD_BYTES
    ) -> None:
        """Wrap a connection whose ends have not proved themselves yet: see `connect` and `Listener`."""
        super().__init__(socket_, patience)
        self._rejected = rejected
        self.address = self.peer.rpartition(":")[0]
        """Address of the other end."""
        self._sending = threading.Lock()
        self._out: Sealer
        self._in: Sealer
        self._unread: Message | None = None
        self.largest = largest
        """Bytes of a payload, either way: this link's purpose needs no more."""
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
        """Return a link to the process that listens at `address`, tried again and again for `within` seconds: also when
        the other end is there and closes the connection before both have proved themselves, as it does in a crowd.

        Args:
            address: NAME@ADDRESS and a port: that of the relay at which a host has this name (relay.py).
            hello: this end's words about itself.
            patience: seconds that the other end may stand still in the middle of a frame; the value of `within` where
                that is None.
            expected: entries that the hello of the other end must have, even if it knows the secret.

        Raises:
            LinkTimeout: no process listens there, or none has answered well in time; says the last error.
            UnknownPeer: a process listens that does not know the secret, is not as expected, or refuses this end.
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
                    raise LinkTimeout(f"no host answers at {where}{sought} ({error})") from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    @classmethod
    def _reach(
        cls, address: Address, secret: bytes, patience: float, options: LinkOptions, seconds: float
    ) -> socket.socket:
        """Return a connection to the listener at `address`, perhaps by a relay.

        Raises:
            OSError, LinkError: no connection could be made.
        """
        name, at, host = address[0].rpartition("@")
        if not at:
            return socket.create_connection(address, timeout=seconds)
        own = replace(options, rejected=None)
        hello = {"what": RELAY, "wants": name}
        return cls.connect((host, address[1]), secret, hello, patience, own, seconds).spliced(seconds)

    def spliced(self, seconds: float) -> socket.socket:
        """Return the connection as a socket, once the relay passes it on to the other end.

        Raises:
            LinkError: the relay does not say `Spliced` within `seconds`; the link is closed.
        """
        try:
            self.hear(Dialect(Spliced), seconds)
            return self.release()
        except LinkError:
            self.close()
            raise

    def prove(self, how: Callable[[float], None], seconds: float) -> None:
        """Do the handshake by `how`, which takes the deadline, within `seconds`; close the link if that fails."""
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
        self.send(TAKEN, {})

    def admit(self, secret: bytes, hello: dict[str, Any], encrypts: bool, deadline: float) -> None:
        """Admit the other end, as the side that listens."""
        self._exchange_hellos(hello, self._agree(handshake.admit, secret, encrypts, deadline), deadline)
        if (kind := self.receive(max(0.0, deadline - time.monotonic())).kind) != TAKEN:
            raise self.blame(f"says {kind!r} before it has taken the link")

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
        """Count the other end's message as malformed, and close the link; return the error to raise."""
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
            LinkTimeout, LinkClosed, BadFrame: as `receive`; BadFrame also for a message that is not of `dialect`.
        """
        if (unread := self._unread) is not None:
            self._unread = None
            return unread
        frame = self.receive(timeout, into)
        try:
            return dialect.read(frame)
        except InvalidMessage as error:
            raise self.blame(f"says what is no message of ours: {error}") from error

    def unread(self, message: Message) -> None:
        """Put back a message that was heard and has no payload: it is the next that `hear` returns."""
        self._unread = message

    def send(self, kind: str, header: dict[str, Any], payload: Sequence[Any] = ()) -> None:
        """Send one frame; `payload` is the bytes of these buffers, one after the other, as they are while they are
        sent.

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
            except BaseException:  # some of it may be on its way: the next would make no sense
                self.close()
                raise

    def _send_records(self, *parts: Sequence[memoryview]) -> None:
        """Send records; each part begins one. Small ones go in one piece."""
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
                it is too small for them, the frame counts as malformed. Its bytes are of no worth unless this returns:
                it is written before it is verified.

        Raises:
            LinkTimeout: nothing began in time.
            LinkClosed, BadFrame: the link is closed, or the bytes that came are no frame.
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
            Forged: `view` has bytes that the other end has not sent.
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
            Forged: a record is not the next that was sent.
        """
        for part in sizes(size):
            record = self._room_for(part)
            self.fill(record)
            yield self._in.open(record, _ROOMS.opened)

    def _room_for(self, part: int) -> memoryview:
        """Return a buffer for a sealed record of `part` bytes of data."""
        if part + TAG_BYTES > len(_ROOMS.sealed):
            _ROOMS.sealed, _ROOMS.opened = _room(part + TAG_BYTES), _room(part)
        return _ROOMS.sealed[: part + TAG_BYTES]


def _room(size: int) -> memoryview:
    """Return a new buffer for small records, or, where `size` is larger, for any."""
    return memoryview(bytearray(SMALL_BYTES if size <= SMALL_BYTES else RECORD_BYTES + 64 * TAG_BYTES))


class _Rooms(threading.local):
    """Buffers of one thread for records of messages that it sends and receives, one at a time. They belong to threads
    and not to links, since a host has many links that are silent, and few threads."""

    sealed = opened = sent = memoryview(b"")


_ROOMS = _Rooms()
