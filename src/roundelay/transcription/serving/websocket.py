"""Messages both ways over one connection: the WebSocket protocol (RFC 6455), whose frames wsproto reads and writes.
Messages are of bounded size, without extensions."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, final
from urllib.parse import urlsplit

from roundelay.core.extras import Binding
from roundelay.transcription.serving.http import Refused, Request

wsproto = Binding("wsproto", "speech")
MESSAGE_BYTES = 1 << 20
"""Of a message."""
NORMAL, GOING_AWAY, BROKEN, NOT_TEXT, AGAINST_THE_RULES, TOO_LARGE = 1000, 1001, 1002, 1007, 1008, 1009
"""Codes of closing."""
_READ_BYTES = 1 << 16


def accepted(request: Request) -> Mapping[str, str]:
    """Headers of the reply to a request that asks for a WebSocket.

    Raises:
        Refused: it does not; or a page of another origin asks, which no browser keeps from it.
    """
    headers = request.headers
    key = headers.get("sec-websocket-key", "")
    if "websocket" not in headers.get("upgrade", "").lower() or "upgrade" not in headers.get("connection", "").lower():
        raise Refused(HTTPStatus.BAD_REQUEST, f"{request.path} is for a WebSocket.")
    if headers.get("sec-websocket-version") != "13" or len(key) != 24:
        raise Refused(HTTPStatus.BAD_REQUEST, "This is no WebSocket of version 13.")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        raise Refused(HTTPStatus.FORBIDDEN, "This page is not from here.")
    token = wsproto.utilities.generate_accept_token(key.encode("latin-1", "replace"))
    return {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": token.decode()}


class Closing(Exception):
    """Asks for the connection to be closed, with this code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


@final
class WebSocket:
    """The server's end of a connection.

    Args:
        seconds: that the other end may send nothing, or take nothing.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
        self._reader, self._writer, self._seconds = reader, writer, seconds
        self._frames = wsproto.connection.Connection(wsproto.ConnectionType.SERVER)
        self._events: Iterator[Any] = iter(())  # of what has come

    async def receive(self) -> bytes | str | None:
        """The next message; None once the other end closes.

        Raises:
            Closing: it breaks the rules, sends too much at once, or nothing for too long.
            ConnectionError: it is gone.
        """
        parts, size = list[Any](), 0
        while True:
            event = await self._event()
            if isinstance(event, wsproto.events.CloseConnection):
                if self._open:  # it has not asked for it: this is what its frames come to
                    why = "A message is not UTF-8." if event.code == NOT_TEXT else f"A frame is broken: {event.reason}."
                    raise Closing(int(event.code), why)
                return None
            if isinstance(event, wsproto.events.Ping):
                await self._send(event.response())
            elif isinstance(event, wsproto.events.Message):
                size += len(event.data)
                if size > MESSAGE_BYTES:
                    raise Closing(TOO_LARGE, f"A message is larger than {MESSAGE_BYTES:,} bytes.")
                parts.append(event.data)
                if event.message_finished:
                    return ("" if isinstance(event, wsproto.events.TextMessage) else b"").join(parts)

    async def send(self, text: str) -> None:
        """Send a message; nothing, to somebody who has closed.

        Raises:
            ConnectionError, TimeoutError: nobody takes it.
        """
        if self._open:
            await self._send(wsproto.events.TextMessage(text))

    async def close(self, code: int, why: str = "") -> None:
        """Say that nothing follows."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self._send(wsproto.events.CloseConnection(code, why))

    @property
    def _open(self) -> bool:
        return bool(self._frames.state is wsproto.connection.ConnectionState.OPEN)

    async def _send(self, event: Any) -> None:
        self._writer.write(self._frames.send(event))
        await asyncio.wait_for(self._writer.drain(), self._seconds)

    async def _event(self) -> Any:
        while (event := next(self._events, None)) is None:
            try:
                data = await asyncio.wait_for(self._reader.read(_READ_BYTES), self._seconds)
            except TimeoutError:
                raise Closing(AGAINST_THE_RULES, f"Nothing has come for {self._seconds:g} s.") from None
            if not data:
                raise ConnectionError
            self._frames.receive_data(data)
            self._events = self._frames.events()
        return event
