"""Handover of a learner's state to one that comes back, where learners wait for each other.

A learner that has come back waits to be let in at a meeting. There one that lives gives it all that it would save: row,
memory, optimizers, buffers, position in the data. The receiver listens at an abstract Unix socket of its own; the giver
leaves a descriptor of a memory file there and goes on, even if the other dies.

Where no other learner of its host lives, a learner of the host that leads gives it: to the process of its own host,
which receives in the other's place and passes it on (hosts/admission.py).
"""

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Self, final

from roundelay.runtime.launch.local_rendezvous import close_all, peer_user, receive_fact, send_fact


class Giver(ABC):
    """The part of a learner that knows the state of its data and optimizers, and gives it to one that comes back."""

    @property
    @abstractmethod
    def cut(self) -> int:
        """The segment in which the newest pass under way over data has begun; 0 if no pass is under way."""

    @abstractmethod
    def state_for(self, rank: int) -> bytes:
        """Return the state that learner `rank` is to begin with, in a meeting."""


def give(name: str, rank: int, state: Callable[[], bytes]) -> bool:
    """Give learner `rank` on this host its state, if it waits for one. Return False if no process receives it.

    Args:
        name: `given_name` of the session.
        state: returns the state; called only if a process receives it.
    """
    file = os.memfd_create("roundelay-handover", os.MFD_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(_place(name, rank))
            if peer_user(connection) != os.geteuid():
                return False
            with open(file, "wb", closefd=False) as whole:
                whole.write(state())
            send_fact(connection, {}, file)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _place(name: str, rank: int) -> str:
    return f"{name}-{rank}"


@final
class Receiver:
    """The place where learner `rank` is given its state; use as a context manager.

    Args:
        name: `given_name` of the session.
    """

    def __init__(self, name: str, rank: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(_place(name, rank))
        self._listener.listen()
        self._listener.setblocking(False)

    def take(self) -> bytes:
        """Return the state that was given last; empty bytes if no state was given."""
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

    def close(self) -> None:
        """Stop receiving."""
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
