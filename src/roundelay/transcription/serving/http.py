"""As much of HTTP/1.1 as a page and an endpoint need: one request a connection, everything bounded in size and time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import final

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
    """A request; names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@final
@dataclass(frozen=True)
class Response:
    """A response; its length is sent with it."""

    status: HTTPStatus
    kind: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """The request cannot be answered."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


Answer = Callable[[Request], Awaitable[Response]]
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

    async def answered(request: Request) -> Response:
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
        response = await answer(request)
    except Refused as refused:
        response = refusal(refused)
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        return  # nobody is there any more
    headers = {
        "Content-Type": response.kind,
        "Content-Length": str(len(response.body)),
        "Connection": "close",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    first = f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(f"{first}{head}\r\n".encode("latin-1", "replace") + (b"" if method == "HEAD" else response.body))
        await asyncio.wait_for(writer.drain(), limits.seconds)
        writer.write_eof()
        # What a refused client still sends is read, for a while: a reset would take the reply from it.
        while await asyncio.wait_for(reader.read(1 << 16), 1.0):
            pass


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
    request = Request(parts[0], parts[1].partition("?")[0], headers)
    if request.method != "POST":
        return request
    return Request(request.method, request.path, headers, await _body(reader, writer, headers, limits))


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
