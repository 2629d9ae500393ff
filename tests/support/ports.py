"""Ports of this machine that tests listen at."""

import os
import socket
from contextlib import ExitStack
from itertools import count
from typing import Final

FIRST, LAST = 16_000, 32_000
"""Bounds of the ports taken: an outgoing connection takes none of them (Linux gives it one from 32768 on), so that none
is lost between the moment when it is found free and the moment when a process listens at it."""
TOGETHER: Final = 4
"""Ports that follow each other: the sessions of a group's processes meet at those after the first."""
WORKERS: Final = 8
"""Processes of pytest side by side that have ports of their own."""
_EACH: Final = (LAST - FIRST) // WORKERS
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
_next = count(int.from_bytes(os.urandom(2), "big"))


def free_port() -> int:
    """Return a port that is free, with the three that follow it, and that this process has not returned of late."""
    while True:
        port = FIRST + _worker * _EACH + TOGETHER * next(_next) % _EACH
        if _are_free(range(port, port + TOGETHER)):
            return port


def _are_free(ports: range) -> bool:
    with ExitStack() as opened:
        try:
            for port in ports:
                opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
