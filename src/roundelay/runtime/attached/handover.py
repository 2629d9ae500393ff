"""Handover of a learner's state to one that comes back, where learners wait for each other.

A learner that has come back waits to be let in at a meeting. There one that lives gives it what a save would have of
itself: row, memory, optimizers, buffers, position in the data. The receiver listens at an abstract Unix socket of its
own; the giver leaves a descriptor of a memory file there and goes on, whatever becomes of the other.
"""

import os
import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import Self, final

from roundelay.runtime.launch.local_rendezvous import close_all, given_name, peer_user, receive_fact, send_fact
from roundelay.runtime.launch.world import World


class Giver(ABC):
    """The loop of a learner, which knows what learners know of their data and optimizers."""

    @property
    @abstractmethod
    def cut(self) -> int:
        """The segment in which the newest pass over data under way has begun; 0: none is under way."""

    @abstractmethod
    def state_for(self, rank: int) -> bytes:
        """Return the state that learner `rank` is to begin with, in a meeting."""


def give(world: World, session: int, rank: int, state: bytes) -> bool:
    """Leave the state with learner `rank` of this host, which waits for it; False: it does no more."""
    file = os.memfd_create("roundelay-handover", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as whole:
            whole.write(state)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(given_name(world, session, rank))
            if peer_user(connection) != os.geteuid():
                return False
            send_fact(connection, {"from": world.rank}, file)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


@final
class Receiver:
    """The place where this learner is given its state; use as a context manager.

    Args:
        session: its number.
    """

    def __init__(self, world: World, session: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(given_name(world, session, world.rank))
        self._listener.listen()
        self._listener.setblocking(False)

    def take(self) -> bytes:
        """Return the state that was given last; none, if none was."""
        found = b""
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return found
            with connection, suppress(OSError, EOFError, ValueError):
                if peer_user(connection) == os.geteuid():
                    _, descriptors = receive_fact(connection)
                    try:
                        with open(descriptors[0], "rb", closefd=False) as whole:
                            whole.seek(0)
                            found = whole.read()
                    finally:
                        close_all(descriptors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
