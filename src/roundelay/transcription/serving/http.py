"""As much of HTTP/1.1 as a page and an endpoint need: one request a connection, everything bounded in size and time."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import final
from urllib.parse import parse_qsl

_HEAD_BYTES = 1 << 15  # of request line and headers
_METHODS = frozenset({"GET", "HEAD", "POST"})


@final
@dataclass(frozen=True)
class Limits:
    """Limits of a request.

    Attributes:
        body: bytes.
        seconds: that a client may send nothing.
        connections: at a time.
    """

    body: int = 100 << 20
    seconds: float = 30.0
    connections: int = 64


@final
@dataclass(frozen=True)
class Request:
    """A request; names of headers are in lower case. `asked` is what is behind the ? of its address."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    asked: Mapping[str, str] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Response:
    """A response; its length is sent with it."""

    status: HTTPStatus
    kind: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Pieces:
    """A response that is sent piece by piece, as it is found.

    Attributes:
        pieces: may raise `Refused` in the place of the first.
    """

    kind: str
    pieces: AsyncGenerator[bytes, None]


@final
@dataclass(frozen=True)
class Upgrade:
    """A connection that goes on in another protocol (RFC 9110, 7.8), which `talk` speaks to its end."""

    headers: Mapping[str, str]
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter, Limits], Awaitable[None]]


class Refused(Exception):
    """The request cannot be answered."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


Reply = Response | Pieces | Upgrade
Answer = Callable[[Request], Awaitable[Reply]]
"""Raises `Refused`."""
Refusal = Callable[[Refused], Response]


async def listen(
    host: str, port: int, limits: Limits, answer: Answer, refusal: Refusal, ready: Callable[[int], None]
) -> None:
    """Serve until it is cancelled; requests that have come are answered first.

    Args:
        port: 0 for any that is free.
        ready: told the port.

    Raises:
        OSError: the address cannot be listened on.
    """
    places = asyncio.Semaphore(limits.connections)
    reading, answering = set[asyncio.Task[None]](), set[asyncio.Task[None]]()

    async def answered(request: Request) -> Reply:
        answering.add(_this_task())
        return await answer(request)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reading.add(task := _this_task())
        try:
            async with places:
                await _conversation(reader, writer, limits, answered, refusal)
        except asyncio.CancelledError:
            pass  # the server ends, and nothing was asked yet
        finally:
            reading.discard(task)
            answering.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, host, port, limit=_HEAD_BYTES)
    try:
        ready(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()
    finally:
        server.close()
        for task in reading - answering:
            task.cancel()
        if reading:
            await asyncio.wait(set(reading))


def _this_task() -> "asyncio.Task[None]":
    task: asyncio.Task[None] | None = asyncio.current_task()
    assert task is not None
    return task


async def _conversation(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits, answer: Answer, refusal: Refusal
) -> None:
    method = ""
    try:
        request = await _request(reader, writer, limits)
        method = request.method
        reply = await answer(request)
        if isinstance(reply, Pieces):
            await _send_pieces(reply, writer, limits)
        elif isinstance(reply, Upgrade):
            writer.write(_head(HTTPStatus.SWITCHING_PROTOCOLS, reply.headers))
            await reply.talk(reader, writer, limits)
    except Refused as refused:
        reply = refusal(refused)
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        return  # nobody is there any more
    with contextlib.suppress(ConnectionError, TimeoutError):
        if isinstance(reply, Response):
            length = {"Content-Length": str(len(reply.body)), **reply.headers}
            head = _head(reply.status, {**_usual(reply.kind), **length})
            writer.write(head + (b"" if method == "HEAD" else reply.body))
        await asyncio.wait_for(writer.drain(), limits.seconds)
        writer.write_eof()
        # What a refused client still sends is read, for a while: a reset would take the reply from it.
        while await asyncio.wait_for(reader.read(1 << 16), 1.0):
            pass


async def _send_pieces(reply: Pieces, writer: asyncio.StreamWriter, limits: Limits) -> None:
    """The end of the connection is the end of the response: how long it is, nobody knows before."""
    async with contextlib.aclosing(reply.pieces) as pieces:
        begun = False
        async for piece in pieces:
            writer.write(piece if begun else _head(HTTPStatus.OK, _usual(reply.kind)) + piece)
            begun = True
            await asyncio.wait_for(writer.drain(), limits.seconds)


def _usual(kind: str) -> Mapping[str, str]:
    return {
        "Content-Type": kind,
        "Connection": "close",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }


def _head(status: HTTPStatus, headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{lines}\r\n".encode("latin-1", "replace")


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> Request:
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), limits.seconds)
    except asyncio.LimitOverrunError:
        raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The headers are too long.") from None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise Refused(HTTPStatus.BAD_REQUEST, "This is no request of HTTP/1.1.")
    if parts[0] not in _METHODS:
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{parts[0]} is not answered here.")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip() or not name:
            raise Refused(HTTPStatus.BAD_REQUEST, "A header is broken.")
        headers[name.lower()] = value.strip()
    path, _, asked = parts[1].partition("?")
    body = await _body(reader, writer, headers, limits) if parts[0] == "POST" else b""
    return Request(parts[0], path, headers, body, dict(parse_qsl(asked)))


async def _body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Mapping[str, str], limits: Limits
) -> bytes:
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "Send the body with its Content-Length.")
    if len(length) > 15 or int(length) > limits.body:
        raise Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is larger than {limits.body:,} bytes. Send a shorter file."
        )
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = bytearray()
    while len(body) < int(length):
        more = await asyncio.wait_for(reader.read(min(1 << 20, int(length) - len(body))), limits.seconds)
        if not more:
            raise ConnectionError
        body += more
    return bytes(body)
