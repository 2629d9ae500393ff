"""Serves until a signal ends it: SIGINT or SIGTERM, also where a shell has started it in the background with SIGINT
ignored. Its connections are uvicorn's own, with the bounds that it lacks.

uvicorn bounds neither how long a request may take to come, nor how many connections an address may hold, nor the bytes
it writes to a client who reads nothing; it takes two equal Content-Length headers for one, and a client whose request
it refuses while that is still coming loses the answer to a reset. One request is answered for each connection: the
first bytes are its head, and nothing can hide behind another request.
"""

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Protocol, cast, final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from roundelay.core.errors import UserError
from roundelay_speech.transcription.serving.endpoint import MESSAGE_BYTES, Endpoint
from roundelay_speech.transcription.serving.wanted import Limits, Refused, refusal

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 2.0
"""Seconds that work under way may take at the server's end."""


@final
class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone, since `serve` answers them."""
        yield


def server_of(endpoint: Endpoint) -> uvicorn.Server:
    """Return a uvicorn server for an endpoint; its `should_exit` ends it."""
    http, messages = protocols(endpoint.limits)
    config = uvicorn.Config(
        endpoint,
        http=cast(type[asyncio.Protocol], http),
        ws=messages,
        ws_max_size=MESSAGE_BYTES,
        ws_per_message_deflate=False,  # a message that is small when packed may be large
        ws_ping_interval=None,  # who sends nothing is not waited for, and answers no ping
        h11_max_incomplete_event_size=2 * MOST_HEAD,
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",  # it tells of every client that hangs up; defects are told by the endpoint
        access_log=False,
        proxy_headers=False,  # an address that a client may give itself
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return _Server(config)


def listening(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host.

    Args:
        port: port to listen on; 0: any free one.

    Raises:
        UserError: the address cannot be listened on.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            where = (address[0], port, *address[2:])
            sockets.append(socket.create_server(where, family=family, backlog=256))
            port = port or sockets[0].getsockname()[1]
    except OSError as error:
        for one in sockets:
            one.close()
        raise UserError(
            f"{host}:{port} cannot be listened on ({error.strerror or error}). Give another --port, or "
            "end the program that uses it."
        ) from None
    return sockets


def serve(
    endpoint: Endpoint,
    sockets: Sequence[socket.socket],
    ready: Callable[[int], None],
    remark: Callable[[str], None],
    kill: Callable[[], None],
) -> signal.Signals:
    """Serve until a signal comes, and return it. Requests under way get some seconds; then they are ended, with an
    error as their reply. A second signal ends the process at once.

    Args:
        sockets: listening sockets.
        ready: called with the port.
        remark: called with words on the work waited for.
        kill: ends all processes that recognise.
    """
    ended: list[signal.Signals] = []

    async def until_a_signal() -> None:
        server, loop, signalled = server_of(endpoint), asyncio.get_running_loop(), asyncio.Event()

        def end(number: signal.Signals) -> None:
            if ended:
                kill()
                os._exit(128 + number)
            ended.append(number)
            if endpoint.at_hand:
                remark(f"ending; {endpoint.at_hand} has {PATIENCE:g} s. The same again ends it at once.")
            endpoint.end()
            signalled.set()

        for number in ENDING_SIGNALS:
            loop.add_signal_handler(number, end, number)
        serving = asyncio.create_task(server.serve(list(sockets)))
        ready(sockets[0].getsockname()[1])
        await asyncio.wait([serving, asyncio.ensure_future(signalled.wait())], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            for one in server.servers:
                one.close()
            await endpoint.finished(PATIENCE)
            server.should_exit = True
            await asyncio.wait([serving], timeout=2.0)
        if serving.done():
            serving.result()

    try:
        asyncio.run(until_a_signal())
    finally:
        for one in sockets:
            one.close()
    return ended[0]


MOST_HEAD = 1 << 15
"""Most bytes of request line and headers."""
_MOST_UNREAD = 1 << 22  # bytes that wait for a client to take them, when more are to be written
_LINGERING = 1.0  # s, after the last byte of a client that has its answer and still sends
_PACE = 1000.0  # bytes a second: a request that comes more slowly is the first to give way
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_LENGTH = re.compile(rb"^content-length[ \t]*:", re.IGNORECASE | re.MULTILINE)


class Connection(Protocol):
    """A connection that holds one of the server's places."""

    @property
    def address(self) -> str:
        """Address of the client."""

    @property
    def gone(self) -> bool:
        """True once the connection is closed."""

    @property
    def lead(self) -> float | None:
        """Bytes by which the client is ahead of the slowest pace allowed; None once its request is complete."""

    def drop(self) -> None:
        """Close the connection at once."""


@final
class Places:
    """The places for connections. If all are taken, the slowest incoming request gives way to a new one, so that no
    client keeps others out by sending little."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._taken: list[Connection] = []

    def take(self, new: Connection) -> bool:
        """Find a place for a connection; return False if all are taken by clients that wait for answers."""
        self._taken = [one for one in self._taken if not one.gone]
        same = [one for one in self._taken if one.address == new.address]
        for taken, most in ((same, self.limits.of_an_address), (self._taken, self.limits.connections)):
            if len([one for one in taken if not one.gone]) >= most and not _one_gives_way(taken):
                return False
        self._taken.append(new)
        return True


def _one_gives_way(taken: list[Connection]) -> bool:
    slow = [(one.lead, one) for one in taken if not one.gone and one.lead is not None]
    if not slow:
        return False
    min(slow, key=lambda pair: pair[0])[1].drop()
    return True


@final
class _Link:
    """A transport that gives a client time to take the last answer, and closes on one that does not."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._transport, self._loop, self._seconds = transport, loop, seconds
        self._closed_at: float | None = None
        self.last_byte = loop.time()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._transport.get_write_buffer_size() > _MOST_UNREAD:
            self._transport.abort()
        elif not self.is_closing():
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._closed_at is not None or self._transport.is_closing()

    @property
    def gone(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the sending side; bytes that still come are read and dropped for a while."""
        if self.is_closing():
            return
        self._closed_at = self._loop.time()
        try:
            self._transport.write_eof()
        except OSError:  # the client has hung up
            self._transport.abort()
            return
        self._transport.resume_reading()
        self._loop.call_later(_LINGERING, self._end)

    def _end(self) -> None:
        now, closed = self._loop.time(), self._closed_at
        assert closed is not None
        busy = self._transport.get_write_buffer_size() or now - self.last_byte < _LINGERING
        if busy and now - closed < self._seconds and not self.gone:
            self._loop.call_later(_LINGERING, self._end)
        else:
            self._transport.abort()


@final
class Conversation(H11Protocol):
    """A connection (HTTP) on which one request is answered."""

    def __init__(self, *, places: Places, **given: Any) -> None:
        super().__init__(**given)
        self._places, self._head = places, bytearray()
        self._upgraded, self._received, self._begun = False, 0, self.loop.time()
        self._deadline = self.loop.call_later(places.limits.head_seconds, self._late)

    @property
    def _asked(self) -> bool:
        """True once there is a request; uvicorn's types do not allow for none."""
        return cast(object, self.cycle) is not None

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def gone(self) -> bool:
        return self._link.gone

    @property
    def lead(self) -> float | None:
        if self._upgraded or (self._asked and not self.cycle.more_body and not self._link.is_closing()):
            return None
        return self._received - _PACE * (self.loop.time() - self._begun)

    def drop(self) -> None:
        self._link.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._link = _Link(transport, self.loop, self._places.limits.seconds)
        super().connection_made(cast(asyncio.Transport, self._link))
        if not self._places.take(self):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many requests are being answered. Try again later.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._link.last_byte = self.loop.time()
        self._received += len(data)
        if self._link.is_closing():
            return
        if self._asked:
            super().data_received(data)
            return
        self._head += data
        end = _END_OF_HEAD.search(self._head)
        if (end.start() if end else len(self._head)) > MOST_HEAD:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The headers are too long.")
        elif end is not None:
            self._deadline.cancel()
            if len(_LENGTH.findall(self._head, 0, end.start())) > 1:
                self._refuse(HTTPStatus.BAD_REQUEST, "Content-Length is given twice.")
                return
            head, self._head = bytes(self._head), bytearray()
            super().data_received(head)

    def send_400_response(self, msg: str) -> None:
        """Reply with an error to bytes that h11 does not accept as a request."""
        self._refuse(HTTPStatus.BAD_REQUEST, "This is no request of HTTP/1.1.")

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def _late(self) -> None:
        if self._head:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The request did not come in time.")
        else:  # browsers open connections that they may never use
            self._link.close()

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        if self._asked:  # and its body is broken
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self._link.abort()
                return
        self._link.write(answer(status, why))
        self._link.close()


@final
class Conversing(WebSocketsSansIOProtocol):
    """A connection (WebSocket) with messages both ways."""

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if (
            self.conn.handshake_exc is not None and not self.handshake_initiated
        ):  # which uvicorn leaves without an answer
            self.transport.write(answer(HTTPStatus.BAD_REQUEST, "This is no request for a WebSocket."))
            self.transport.close()


def answer(status: HTTPStatus, why: str) -> bytes:
    """Return a whole HTTP/1.1 error reply to bytes that are no request."""
    reply = refusal(Refused(status, why))
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {reply.kind}\r\n"
    return f"{head}Content-Length: {len(reply.body)}\r\nConnection: close\r\n\r\n".encode() + reply.body


def protocols(limits: Limits) -> tuple[Callable[..., Conversation], type[Conversing]]:
    """Return the protocols that uvicorn gives a connection: for requests, and for messages both ways."""
    places = Places(limits)
    return lambda **given: Conversation(places=places, **given), Conversing
