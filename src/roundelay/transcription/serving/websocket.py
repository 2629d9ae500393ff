"""As much of the WebSocket protocol (RFC 6455) as live speech needs: messages of bounded size, without extensions."""

import asyncio
import base64
import contextlib
import hashlib
import struct
from collections.abc import Mapping
from http import HTTPStatus
from typing import final
from urllib.parse import urlsplit

import numpy as np

from roundelay.transcription.serving.http import Refused, Request

MESSAGE_BYTES = 1 << 20
"""Of a message."""
NORMAL, GOING_AWAY, BROKEN, NOT_TEXT, AGAINST_THE_RULES, TOO_LARGE = 1000, 1001, 1002, 1007, 1008, 1009
"""Codes of closing."""
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MORE, _TEXT, _BYTES, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_LAST, _MASKED, _SHORT, _LONG = 0x80, 0x80, 126, 127
_CONTROL_BYTES = 125


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
    digest = base64.b64encode(hashlib.sha1((key + _GUID).encode("latin-1", "replace")).digest()).decode()
    return {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": digest}


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

    async def receive(self) -> bytes | str | None:
        """The next message; None once the other end closes.

        Raises:
            Closing: it breaks the rules, sends too much at once, or nothing for too long.
            ConnectionError, asyncio.IncompleteReadError: it is gone.
        """
        kind, message = _MORE, bytearray()
        while True:
            code, last, payload = await self._frame(MESSAGE_BYTES - len(message))
            if code == _CLOSE:
                return None
            if code == _PING:
                await self._send(_PONG, payload)
            if code in (_PING, _PONG):
                continue
            if (code == _MORE) == (kind == _MORE):
                raise Closing(BROKEN, "A message begins inside another, or goes on without a beginning.")
            kind = kind or code
            message += payload
            if last:
                break
        if kind == _BYTES:
            return bytes(message)
        try:
            return message.decode()
        except UnicodeDecodeError:
            raise Closing(NOT_TEXT, "A message is not UTF-8.") from None

    async def send(self, text: str) -> None:
        """Send a message.

        Raises:
            ConnectionError, TimeoutError: nobody takes it.
        """
        await self._send(_TEXT, text.encode())

    async def close(self, code: int, why: str = "") -> None:
        """Say that nothing follows."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self._send(_CLOSE, struct.pack(">H", code) + why.encode()[: _CONTROL_BYTES - 2])

    async def _send(self, code: int, payload: bytes) -> None:
        head = bytes([_LAST | code])
        if len(payload) < _SHORT:
            head += bytes([len(payload)])
        elif len(payload) < 1 << 16:
            head += struct.pack(">BH", _SHORT, len(payload))
        else:
            head += struct.pack(">BQ", _LONG, len(payload))
        self._writer.write(head + payload)
        await asyncio.wait_for(self._writer.drain(), self._seconds)

    async def _frame(self, most: int) -> tuple[int, bool, bytes]:
        """Kind of the next frame, whether it is the last of its message, and what is in it."""
        first, second = await self._exactly(2)
        code, last, length = first & 0x0F, bool(first & _LAST), second & 0x7F
        control = code >= _CLOSE
        known = code in (_MORE, _TEXT, _BYTES, _CLOSE, _PING, _PONG)
        if first & 0x70 or not known or not second & _MASKED or (control and (not last or length > _CONTROL_BYTES)):
            raise Closing(BROKEN, "A frame is broken.")
        if length >= _SHORT:
            length = int.from_bytes(await self._exactly(2 if length == _SHORT else 8), "big")
        if not control and length > most:
            raise Closing(TOO_LARGE, f"A message is larger than {MESSAGE_BYTES:,} bytes.")
        mask = np.frombuffer(await self._exactly(4), np.uint8)
        masked = np.frombuffer(await self._exactly(length), np.uint8)
        return code, last, (masked ^ np.resize(mask, length)).tobytes()

    async def _exactly(self, count: int) -> bytes:
        try:
            return await asyncio.wait_for(self._reader.readexactly(count), self._seconds)
        except TimeoutError:
            raise Closing(AGAINST_THE_RULES, f"Nothing has come for {self._seconds:g} s.") from None
