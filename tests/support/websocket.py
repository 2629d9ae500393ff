"""The client's end of a WebSocket, as RFC 6455 has it; it can also break the rules."""

import base64
import hashlib
import json
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

TEXT, BYTES, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Client:
    """An open connection to a WebSocket server."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def send(self, code: int, payload: bytes, *, last: bool = True, masked: bool = True) -> None:
        """Send a frame with this code and payload."""
        head = bytes([(0x80 if last else 0) | code])
        mark = 0x80 if masked else 0
        if len(payload) < 126:
            head += bytes([mark | len(payload)])
        elif len(payload) < 1 << 16:
            head += bytes([mark | 126]) + struct.pack(">H", len(payload))
        else:
            head += bytes([mark | 127]) + struct.pack(">Q", len(payload))
        mask = os.urandom(4) if masked else b""
        sent = _masked(payload, mask) if masked else payload
        self._link.sendall(head + mask + sent)

    def end(self) -> None:
        """Tell the server that no more samples come."""
        self.send(TEXT, b'{"type": "end"}')

    def frame(self) -> tuple[int, bytes]:
        """Return the next frame, its code and payload; a server's frames are not masked."""
        first, second = self._exactly(2)
        assert first & 0xF0 == 0x80
        assert second < 128
        length = second
        if length >= 126:
            length = int.from_bytes(self._exactly(2 if length == 126 else 8), "big")
        return first & 0x0F, self._exactly(length)

    def has_said(self, seconds: float) -> bool:
        """Return True if the server sends something within `seconds`."""
        return bool(select.select([self._link], [], [], seconds)[0])

    def told(self) -> tuple[list[dict[str, Any]], int, str]:
        """Read until the end; return the events, and the code and reason of closing."""
        events = []
        while (frame := self.frame())[0] != CLOSE:
            events.append(json.loads(frame[1]))
        code, why = struct.unpack(">H", frame[1][:2])[0], frame[1][2:].decode()
        return events, code, why

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._link.recv(count - len(data))
            assert more, "the server has hung up"
            data += more
        return data


def _masked(payload: bytes, mask: bytes) -> bytes:
    return (np.frombuffer(payload, np.uint8) ^ np.resize(np.frombuffer(mask, np.uint8), len(payload))).tobytes()


@contextmanager
def speaking(port: int, path: str, **headers: str) -> Iterator[Client]:
    """Connect to a server of this machine at `port` and `path`; close the connection after the body."""
    key = base64.b64encode(os.urandom(16)).decode()
    usual = {"Host": f"localhost:{port}", "Upgrade": "websocket", "Connection": "keep-alive, Upgrade"}
    lines = {**usual, "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key, **headers}
    with socket.create_connection(("127.0.0.1", port), 60) as link:
        asked = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        link.sendall(f"GET {path} HTTP/1.1\r\n{asked}\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            more = link.recv(1)
            assert more, head
            head += more
        digest = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest())
        assert head.startswith(b"HTTP/1.1 101 "), head
        assert b"\r\nSec-WebSocket-Accept: " + digest + b"\r\n" in head
        yield Client(link)
