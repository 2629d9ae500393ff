"""One process leads all learners of a host; others that a launcher has started there wait for its end."""

import hashlib
import os
import socket
import time
from contextlib import suppress

from roundelay.core.errors import UserError
from roundelay.runtime.launch.local_rendezvous import peer_user
from roundelay.runtime.launch.world import HostPlace


def _leader_name(place: HostPlace) -> str:
    run = hashlib.blake2b(place.job, digest_size=16).hexdigest() if place.job else f"{place.address}-{place.port}"
    return f"\0roundelay-{os.geteuid()}-{run}-{place.ranks[0]}"


class LocalLeader:
    """Held by the process with local rank 0, which leads all learners of its host: the launcher's other processes there
    wait for its end, and end with its status."""

    def __init__(self, place: HostPlace) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) if len(place.ranks) > 1 else None
        self._waiting: list[socket.socket] = []
        if self._socket is not None:
            try:
                self._socket.bind(_leader_name(place))
            except OSError as error:
                self._socket.close()
                raise UserError(
                    f"rank {place.ranks[0]}: another run on this host has the same MASTER_ADDR and MASTER_PORT "
                    f"({place.address}:{place.port}). Wait for its end, or choose another MASTER_PORT."
                ) from error
            self._socket.listen(len(place.ranks))

    @property
    def waiting(self) -> int:
        """Number of processes that wait, as far as is known."""
        return len(self._waiting)

    def look(self) -> None:
        """Look for processes that have come."""
        if self._socket is not None:
            self._socket.setblocking(False)
            with suppress(OSError):
                while True:
                    self._waiting.append(self._socket.accept()[0])

    def release(self, status: int) -> None:
        """Tell the others how this ended. Who is killed tells them too: by saying nothing."""
        self.look()
        for waiting in self._waiting:
            with suppress(OSError):
                waiting.sendall(bytes([status & 255]))
            waiting.close()
        if self._socket is not None:
            self._socket.close()


def wait_for_leader(place: HostPlace, patience: float = 300.0) -> int:
    """Wait for the end of this host's local rank 0, which leads the learner of this rank too; its exit status.

    Raises:
        UserError: it does not begin within `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
            try:
                waiting.connect(_leader_name(place))
            except OSError:
                if time.monotonic() > deadline:
                    rank = place.ranks[place.local_rank]
                    raise UserError(
                        f"rank {rank}: rank {place.ranks[0]}, which is to lead the learners of this host, did not "
                        f"start within {patience:.0f} s."
                    ) from None
                time.sleep(0.1)
                continue
            if (user := peer_user(waiting)) != os.geteuid():
                raise UserError(
                    f"a process of user {user} has taken the name by which the learners of this host meet: choose "
                    "another MASTER_PORT."
                )
            return (waiting.recv(1) or b"\1")[0]
