"""Connections between hosts: who may speak, and how a message looks on the wire.

A connection begins with a challenge. The side that listens sends a nonce; the side that connects answers with one of
its own and a proof, a keyed hash (HMAC-SHA256) over both; then the listener proves itself in the same way. The two
proofs name the role they are made in, so that neither can be sent back as the other, and nonces are fresh, so that a
recorded conversation opens nothing. Only then do both say who they are. What follows is neither hidden nor signed: the
secret keeps strangers out of a run; it is no substitute for a network one can trust.

A message is a frame:
    magic     4 bytes, "RNDL"
    version   1 byte
    kind      its length in 1 byte
    header    its length in 4 bytes, at most HEADER_BYTES
    payload   its length in 8 bytes, at most the link's `largest`
    then kind (ASCII), header (a JSON object, UTF-8) and payload (raw)
All numbers are big-endian. Nothing is ever unpickled. A frame that is none closes its connection, and is counted.
"""

import hmac
import json
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

Address = tuple[str, int]

MAGIC = b"RNDL"
VERSION = 1
HEADER_BYTES = 1 << 20
"""Of JSON in one frame."""
PAYLOAD_BYTES = 1 << 33
"""Of one frame, unless a link says otherwise."""
HANDSHAKE_SECONDS = 10.0
"""In which whoever connects must have proved itself."""
MOST_PIECES = 256
"""Of one message in one system call."""

RTO_MAX_MS = 44
"""Linux' TCP_RTO_MAX_MS (6.15 and newer): how long it waits at most before it sends again what was lost."""

_FRAME = struct.Struct("!4sBBIQ")
_NONCE = 32
_PROOF = 32
_GREETING = struct.Struct(f"!4sB{_NONCE}s")
_ANSWER = struct.Struct(f"!4sB{_NONCE}s{_PROOF}s")


class LinkError(Exception):
    """Something is wrong with a link; says with whom."""


class LinkClosed(LinkError):
    """The link is closed: by either end, or because the other stood still in the middle of a frame."""


class LinkTimeout(LinkError):
    """Nothing came in time. The link is as good as before."""


class BadFrame(LinkError):
    """What came is no frame of ours. The link is closed."""


class Stranger(LinkError):
    """The other end does not know the secret. The link is closed."""


@dataclass(frozen=True)
class Message:
    """What came in one frame."""

    kind: str
    header: dict[str, Any]
    payload: memoryview


@dataclass
class Tally:
    """Connections that were closed because of what came over them."""

    strangers: int = 0  # that did not prove themselves: wrong secret, noise, silence
    malformed: int = 0  # by a frame that was none, from somebody who had
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count_stranger(self) -> None:
        """One more."""
        with self.lock:
            self.strangers += 1

    def count_malformed(self) -> None:
        """One more."""
        with self.lock:
            self.malformed += 1


def _prove(secret: bytes, role: bytes, greeting: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, b"roundelay " + role + bytes([VERSION]) + greeting + nonce, "sha256")


class Link:
    """One connection, after both ends have proved that they know the secret.

    One thread may send while another receives; any may close.
    """

    def __init__(self, socket_: socket.socket, patience: float, tally: Tally, largest: int = PAYLOAD_BYTES) -> None:
        """Not proved yet: see `connect` and `Listener`."""
        socket_.setblocking(False)
        _tune(socket_, patience)
        self._socket, self._descriptor, self._tally = socket_, socket_.fileno(), tally
        self._gate, self._inside, self._closed = threading.Lock(), 0, False
        self.patience, self.largest = patience, largest
        self.hello: dict[str, Any] = {}
        """What the other end has said of itself."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.peer = _name(socket_)
        """Address and port of the other end, for people."""

    @classmethod
    def connect(
        cls, address: Address, secret: bytes, hello: dict[str, Any], patience: float, tally: Tally | None = None,
        largest: int = PAYLOAD_BYTES, within: float | None = None,
    ) -> Self:  # fmt: skip
        """A link to whoever listens at `address`, tried again and again for `within` seconds.

        Args:
            hello: what this end says of itself.
            patience: how long the other may stand still in the middle of a frame; what `within` is where it is None.

        Raises:
            LinkTimeout: nobody listens there, or nothing answers.
            LinkClosed, Stranger, BadFrame: somebody does, but not one of ours; or it takes us for a stranger.
        """
        seconds = patience if within is None else within
        deadline, pause = time.monotonic() + seconds, 0.02
        while True:
            try:
                socket_ = socket.create_connection(address, timeout=max(0.01, deadline - time.monotonic()))
                break
            except OSError as error:
                if time.monotonic() + pause >= deadline:
                    where = f"{address[0]}:{address[1]}"
                    raise LinkTimeout(f"nobody answers at {where} for {seconds:.0f} s ({error})") from error
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
        try:
            link = cls(socket_, patience, tally or Tally(), largest)
        except OSError as error:
            socket_.close()
            raise LinkClosed(f"{address[0]}:{address[1]} has closed the link ({error})") from error
        link.prove(partial(link._introduce, secret, hello), seconds)
        return link

    def prove(self, how: Callable[[float], None], seconds: float) -> None:
        """Go through the handshake within `seconds`; close the link unless that goes well."""
        self._enter()
        try:
            how(time.monotonic() + seconds)
        except BaseException:
            self.close()
            raise
        finally:
            self._leave()

    # The handshake ----------------------------------------------------------------------------------------------------

    def _introduce(self, secret: bytes, hello: dict[str, Any], deadline: float) -> None:
        """The part of the side that connects."""
        magic, version, greeting = _GREETING.unpack(self._hear(_GREETING.size, deadline))
        if (magic, version) != (MAGIC, VERSION):
            raise Stranger(f"{self.peer} does not speak this version of our language")
        nonce = os.urandom(_NONCE)
        proof = _prove(secret, b"connects", greeting, nonce)
        self._write([memoryview(_ANSWER.pack(MAGIC, VERSION, nonce, proof))])
        try:
            expected, found = _prove(secret, b"listens", greeting, nonce), self._hear(_PROOF, deadline)
        except LinkClosed as error:
            raise Stranger(f"{self.peer} takes us for a stranger: is the run's secret the same there?") from error
        if not hmac.compare_digest(expected, found):
            raise Stranger(f"{self.peer} does not know the run's secret")
        self._greet(hello, deadline)

    def admit(self, secret: bytes, hello: dict[str, Any], deadline: float) -> None:
        """The part of the side that listens."""
        greeting = os.urandom(_NONCE)
        self._write([memoryview(_GREETING.pack(MAGIC, VERSION, greeting))])
        magic, version, nonce, proof = _ANSWER.unpack(self._hear(_ANSWER.size, deadline))
        known = hmac.compare_digest(_prove(secret, b"connects", greeting, nonce), proof)
        if (magic, version) != (MAGIC, VERSION) or not known:
            raise Stranger(f"{self.peer} does not know the run's secret")
        self._write([memoryview(_prove(secret, b"listens", greeting, nonce))])
        self._greet(hello, deadline)

    def _greet(self, hello: dict[str, Any], deadline: float) -> None:
        self.send("hello", hello)
        try:
            message = self.receive(max(0.0, deadline - time.monotonic()))
        except LinkTimeout as error:
            raise Stranger(f"{self.peer} does not say who it is") from error
        if message.kind != "hello":
            self._tally.count_malformed()
            raise BadFrame(f"{self.peer} does not begin with hello")
        self.hello = message.header

    def _hear(self, size: int, deadline: float) -> bytes:
        data = bytearray(size)
        try:
            self._fill(memoryview(data), deadline)
        except LinkTimeout as error:
            raise Stranger(f"{self.peer} does not answer in the handshake") from error
        return bytes(data)

    # Messages ---------------------------------------------------------------------------------------------------------

    def send(self, kind: str, header: dict[str, Any], payload: Sequence[Any] = ()) -> None:
        """Send one frame; `payload` is what lies in these buffers, one after the other, as it is while it is sent.

        Raises:
            LinkClosed: the other end is gone, or has taken nothing for `patience` seconds.
        """
        name, text = kind.encode("ascii"), json.dumps(header, separators=(",", ":")).encode()
        views = [memoryview(part).cast("B") for part in payload]
        size = sum(map(len, views))
        if not 0 < len(name) < 256 or len(text) > HEADER_BYTES or size > self.largest:
            raise ValueError(f"no frame: kind of {len(name)}, header of {len(text)}, payload of {size} bytes")
        start = _FRAME.pack(MAGIC, VERSION, len(name), len(text), size) + name + text
        self._enter()
        try:
            self._write([memoryview(start), *views])
        except LinkClosed:
            self.close()
            raise
        finally:
            self._leave()

    def receive(self, timeout: float | None, into: Any = None) -> Message:
        """The next frame. `timeout` is for its beginning, in seconds, None for no bound; once begun, it must go on
        within `patience` seconds, again and again.

        Args:
            into: a buffer for the payload; if it is too small for it, the frame counts as malformed.

        Raises:
            LinkTimeout: nothing began in time.
            LinkClosed, BadFrame.
        """
        self._enter()
        try:
            return self._receive(timeout, into)
        except BadFrame:
            self._tally.count_malformed()
            self.close()
            raise
        except LinkClosed:
            self.close()
            raise
        finally:
            self._leave()

    def _receive(self, timeout: float | None, into: Any) -> Message:
        start = bytearray(_FRAME.size)
        self._wait(select.POLLIN, timeout)
        self._fill(memoryview(start))
        magic, version, name_size, text_size, size = _FRAME.unpack(start)
        if magic != MAGIC or version != VERSION:
            raise BadFrame(f"{self.peer} sent what is no frame of version {VERSION}")
        if not name_size or text_size > HEADER_BYTES or size > self.largest:
            raise BadFrame(f"{self.peer} sent a frame beyond all bounds: header {text_size}, payload {size} bytes")
        head = bytearray(name_size + text_size)
        self._fill(memoryview(head))
        try:
            kind, header = head[:name_size].decode("ascii"), json.loads(head[name_size:].decode())
        except (ValueError, RecursionError) as error:
            raise BadFrame(f"{self.peer} sent a frame whose header is no JSON") from error
        if not isinstance(header, dict):
            raise BadFrame(f"{self.peer} sent a frame whose header is no object")
        view = memoryview(bytearray(size) if into is None else into).cast("B")
        if size > len(view):
            raise BadFrame(f"{self.peer} sent {size} bytes of {kind} where {len(view)} fit")
        view = view[:size]
        self._fill(view)
        return Message(kind, header, view)

    # Bytes ------------------------------------------------------------------------------------------------------------

    def _write(self, views: list[memoryview]) -> None:
        """All of `views`; whatever is wrong, the link is of no more use."""
        pieces = deque(view for view in views if len(view))
        while pieces:
            try:
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

    def _fill(self, view: memoryview, deadline: float | None = None) -> None:
        """All of `view`, by `deadline`; without one, some of it every `patience` seconds."""
        while len(view):
            try:
                got = self._socket.recv_into(view)
            except BlockingIOError:
                seconds = self.patience if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    self._wait(select.POLLIN, seconds)
                except LinkTimeout as error:
                    if deadline is not None:
                        raise
                    raise LinkClosed(f"{self.peer} stands still in the middle of a frame") from error
                continue
            except OSError as error:
                raise LinkClosed(f"the link to {self.peer} is broken ({error.strerror})") from error
            if not got:
                raise LinkClosed(f"{self.peer} has closed the link")
            self.received_bytes += got
            view = view[got:]

    def _wait(self, for_: int, seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._descriptor, for_)
        if not poll.poll(None if seconds is None else max(0.0, seconds * 1000)):
            raise LinkTimeout(f"nothing from {self.peer} for {seconds:.1f} s")

    # The end ----------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """By this end: on request, or because of what came."""
        return self._closed

    def _enter(self) -> None:
        with self._gate:
            if self._closed:
                raise LinkClosed(f"the link to {self.peer} is closed")
            self._inside += 1

    def _leave(self) -> None:
        with self._gate:
            self._inside -= 1
            if self._closed and not self._inside:
                self._socket.close()

    def close(self) -> None:
        """Whoever is sending or receiving, here or there, gets `LinkClosed`. Safe to call twice."""
        with self._gate:
            if not self._closed:
                self._closed = True
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            if not self._inside:  # else the last who leaves does it: the descriptor's number must not be used anew
                self._socket.close()


def _tune(socket_: socket.socket, patience: float) -> None:
    """Small messages go at once; the kernel notices by itself when the other host is gone."""
    socket_.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    socket_.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe = max(1, int(patience / 4))
    for option, value in (
        (socket.TCP_KEEPIDLE, probe), (socket.TCP_KEEPINTVL, probe), (socket.TCP_KEEPCNT, 4),
        (socket.TCP_USER_TIMEOUT, max(1000, int(2 * patience * 1000))),
    ):  # fmt: skip
        socket_.setsockopt(socket.IPPROTO_TCP, option, value)
    with suppress(OSError):  # older kernels: a link that was cut for 10 s may take 20 to go on
        socket_.setsockopt(socket.IPPROTO_TCP, RTO_MAX_MS, 1000)


def _name(socket_: socket.socket) -> str:
    try:
        host, port = socket_.getpeername()[:2]
    except OSError:
        return "somebody who is gone"
    return f"{host}:{port}"
