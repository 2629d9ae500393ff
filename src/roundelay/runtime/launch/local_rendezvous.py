"""Rendezvous of the learners of one host that a launcher has started: a Unix socket, at the start only.

Learners that share memory run on one host, so none of them needs to listen on a network. The first of them, rank 0
where there is one host, listens at an abstract Unix socket (no file is left behind) until all have attached; the others
connect, say their ranks, and are given its facts and a descriptor of the arena. The name of the socket is derived from
facts that only the learners of a job have in common: the key that `roundelay launch` gives them, or the address and
port of `torchrun`, and the run's secret where there is one. The kernel names the user of the process at the other end,
and only processes of the same user are believed. No learner opens a path that another has named.

A message is its length in 8 bytes, and JSON.
"""

import hashlib
import json
import os
import select
import socket
import struct
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from roundelay.core.errors import UserError
from roundelay.core.files import parse_json
from roundelay.runtime.launch.world import HostPlace, World

SOCKET_LOOK_SECONDS = 0.02
MESSAGE_BYTES = 1 << 20
"""Length in bytes of the longest message."""
MESSAGE_SECONDS = 10.0
"""Seconds within which the rest of a message must come once it has begun."""
LENGTH = struct.Struct("<Q")
CREDENTIALS = struct.Struct("3i")
"""Layout of a peer's credentials: process, user and group."""
ATTACHED = b"\1"
"""Last byte on a connection from a learner that needs the other no more; one that ends without it has died."""

Fact = dict[str, Any]


class SessionRuns(Exception):
    """Raised if the session runs already, and one of its learners listens for learners that come back."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__("the session runs already")
        self.connection = connection


class LocalRendezvous:
    """The meeting point of one host's learners at the start of a session, to be left when all have attached.

    Args:
        number: number of the session; learners attach in the same order everywhere.

    Raises:
        UserError: from every method, if a learner does not come within the patience, or ends before; names the learner
            that waits, those it waits for, and the place.
    """

    def __init__(self, world: World, number: int, patience_seconds: float) -> None:
        self._world, self._seconds = world, patience_seconds
        self._first, self._others = world.here[0], world.here[1:]
        self._name, self._returning = _socket_name(world, number), returning_name(world, number)
        self._connections: dict[int, socket.socket] = {}

    def collect(self) -> list[Fact]:
        """Wait, as the first learner, for all others; return their facts by rank."""
        facts: dict[int, Fact] = {}
        if not self._others:
            return []
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                listener.bind(self._name)
            except OSError as error:
                raise UserError(
                    f"rank {self._first}: another learner on this host says that it is rank {self._first} of "
                    f"{self._where} ({error.strerror}). Wait for the end of the other job, or choose another "
                    "MASTER_PORT."
                ) from error
            listener.listen(self._world.learners)
            deadline = time.monotonic() + self._seconds
            while missing := [rank for rank in self._others if rank not in facts]:
                self._wait(listener, deadline, f"ranks {missing} did not come")
                connection, _ = listener.accept()
                rank, fact = self._welcome(connection)
                if rank in facts:
                    connection.close()
                    raise UserError(
                        f"rank {self._first}: two learners say that they are rank {rank}: start each rank once."
                    )
                if rank >= 0:
                    facts[rank], self._connections[rank] = fact, connection
        return [facts[rank] for rank in sorted(facts)]

    def _welcome(self, connection: socket.socket) -> tuple[int, Fact]:
        """Return rank and facts of a learner that has connected; rank -1 if it is no learner of this session."""
        try:
            if peer_user(connection) == os.geteuid():
                fact, descriptors = receive_fact(connection)
                close_all(descriptors)
                rank = fact.pop("rank", None)
                if type(rank) is int and rank in self._others:
                    return rank, fact
        except (OSError, EOFError, ValueError):
            pass
        connection.close()
        return -1, {}

    def tell(self, rank: int, fact: Fact, descriptor: int) -> None:
        """Send, as the first learner, the session's facts and a descriptor of the arena to learner `rank`."""
        try:
            send_fact(self._connections[rank], fact, descriptor)
        except OSError as error:
            raise self._ended(rank) from error

    def enter(self, fact: Fact) -> tuple[Fact, int]:
        """Tell the first learner this one's rank and facts; return its facts, and a descriptor of the arena."""
        first = self._first
        deadline = time.monotonic() + self._seconds * (1 if self._world.place is None else 2)  # it waits for others
        connection = self._connections[first] = self._connect(deadline)
        if (user := peer_user(connection)) != os.geteuid():
            raise UserError(
                f"rank {self._world.rank}: a process of user {user}, not of this one, is at the meeting point of "
                f"{self._where}. Choose another MASTER_PORT, and set ROUNDELAY_SECRET on all learners."
            )
        try:
            send_fact(connection, {"rank": self._world.rank, **fact})
            self._wait(connection, deadline, f"rank {first} said nothing")
            answer, descriptors = receive_fact(connection)
        except (EOFError, ConnectionError) as error:
            raise self._ended(first) from error
        except (OSError, ValueError) as error:
            raise self._nobody(f"what rank {first} says cannot be understood ({error})") from error
        if len(descriptors) != 1:
            close_all(descriptors)
            raise self._nobody(f"rank {first} gave no descriptor of its memory")
        return answer, descriptors[0]

    def come_back(self, running: SessionRuns, fact: Fact) -> tuple[Fact, int]:
        """Tell a running session that this learner comes back; return the session's facts, and a descriptor of the
        arena. A session that has not yet noticed this learner's death refuses at first, and is asked again."""
        deadline = time.monotonic() + self._seconds
        while True:
            with running.connection as connection:
                if peer_user(connection) != os.geteuid():
                    raise self._nobody("a process of another user is at the meeting point")
                try:
                    send_fact(connection, {"rank": self._world.rank, **fact})
                    answer, descriptors = receive_fact(connection, self._seconds)
                    break
                except (ConnectionError, EOFError) as error:
                    running = self._running_again(deadline, error)
                except (OSError, ValueError) as error:
                    raise self._nobody(f"the learner that should let it in does not answer ({error})") from error
        if "problem" in answer or len(descriptors) != 1:
            close_all(descriptors)
            why = answer.get("problem", "it was given no memory")
            raise UserError(f"rank {self._world.rank} cannot come back: {why}.")
        return answer, descriptors[0]

    def _running_again(self, deadline: float, gone: Exception) -> SessionRuns:
        while time.monotonic() < deadline:
            self._check_launcher()
            try:
                self._look_for_running()
            except SessionRuns as running:
                return running
            time.sleep(SOCKET_LOOK_SECONDS)
        raise self._nobody(f"the learner that should let it in has ended ({gone})") from gone

    def _look_for_running(self) -> None:
        """Raise `SessionRuns` if the session runs already."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._returning)
        except OSError:
            connection.close()
            return
        raise SessionRuns(connection)

    def _connect(self, deadline: float) -> socket.socket:
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self._name)
            except OSError:  # no learner listens yet
                connection.close()
                self._look(deadline, "no answer")
                time.sleep(SOCKET_LOOK_SECONDS)
                continue
            return connection

    def _wait(self, socket_: socket.socket, deadline: float, otherwise: str) -> None:
        """Wait until a socket has something to read, or a connection to accept."""
        while not select.select([socket_], [], [], SOCKET_LOOK_SECONDS)[0]:
            if self._world.rank == self._first:
                self.check()
            self._look(deadline, otherwise)

    def _look(self, deadline: float, otherwise: str) -> None:
        self._check_launcher()
        if not self._connections:
            self._look_for_running()
        if time.monotonic() > deadline:
            raise self._nobody(f"{otherwise} within {self._seconds:.0f} s")

    def check(self) -> None:
        """Check that no learner has ended that has connected or is still to connect."""
        self._check_launcher()
        for rank, connection in list(self._connections.items()):
            if select.select([connection], [], [], 0)[0]:
                with suppress(OSError):
                    if connection.recv(1) == ATTACHED:
                        connection.close()
                        del self._connections[rank]
                        continue
                raise self._ended(rank)

    def _check_launcher(self) -> None:
        for rank, status in self._world.ended().items():
            raise UserError(
                f"rank {self._world.rank}: learner {rank} ended with status {status} before all had attached."
            )

    def _ended(self, rank: int) -> UserError:
        self._check_launcher()
        return UserError(f"rank {self._world.rank}: learner {rank} ended before all had attached; see its output.")

    @property
    def _where(self) -> str:
        world = self._world
        return f"{world.address}:{world.port}" if world.address else "roundelay launch"

    def _nobody(self, why: str) -> UserError:
        hint = f"Is rank {self._first} running"
        if self._world.address:
            hint += ", and do all learners have the same MASTER_ADDR, MASTER_PORT and ROUNDELAY_SECRET"
        return UserError(
            f"rank {self._world.rank} of {self._world.learners} could not meet the others of {self._where}: {why}. "
            f"{hint}? They meet by a Unix socket: all must run in the same containers, as the same user."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            if error is None:
                with suppress(OSError):
                    connection.send(ATTACHED)
            connection.close()
        self._connections.clear()


def returning_name(world: World, number: int) -> str:
    """Return the name of the socket at which learners that come back find a running session."""
    return _socket_name(world, number, " returning")


def given_name(world: World, number: int) -> str:
    """Return the name, to be followed by a dash and the rank, of the socket on this host at which a learner that comes
    back to a session gets its state."""
    return _socket_name(world, number, " given")


def _socket_name(world: World, number: int, purpose: str = "") -> str:
    host = "" if world.place is None else f" {world.here[0]}"
    job = f"{os.geteuid()} {world.address} {world.port} {world.attempt} {world.learners}{host} {number}{purpose}"
    key = hashlib.blake2b(world.secret).digest()
    return "\0roundelay-" + hashlib.blake2b(job.encode(), key=key, digest_size=16).hexdigest()


def send_fact(connection: socket.socket, fact: Fact, *descriptors: int) -> None:
    """Send a message over a Unix socket, with file descriptors."""
    connection.settimeout(MESSAGE_SECONDS)
    body = json.dumps(fact).encode()
    socket.send_fds(connection, [LENGTH.pack(len(body))], list(descriptors))
    connection.sendall(body)


def receive_fact(connection: socket.socket, seconds: float = MESSAGE_SECONDS) -> tuple[Fact, list[int]]:
    """Receive a message over a Unix socket within `seconds`; return it and the file descriptors sent with it.

    Raises:
        EOFError: the other end has closed.
        OSError, ValueError: no message comes in time, or an invalid one.
    """
    connection.settimeout(seconds)
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, 1)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    try:
        head += _receive_exactly(connection, LENGTH.size - len(head))
        (length,) = LENGTH.unpack(head)
        if length > MESSAGE_BYTES:
            raise ValueError(f"a message of {length:,} bytes is too long")
        fact = parse_json(_receive_exactly(connection, length))
        if not isinstance(fact, dict):
            raise ValueError("a message that is not a JSON object")
    except BaseException:
        close_all(descriptors)
        raise
    return fact, descriptors


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise EOFError("the connection was closed")
        found += piece
    return bytes(found)


def close_all(descriptors: list[int]) -> None:
    """Close file descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end, as the kernel knows it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(raw)[1])


def _leader_name(place: HostPlace) -> str:
    run = hashlib.blake2b(place.job, digest_size=16).hexdigest() if place.job else f"{place.address}-{place.port}"
    return f"\0roundelay-{os.geteuid()}-{run}-{place.ranks[0]}"


class LocalLeader:
    """The socket of the process with local rank 0, which leads all learners of its host: the launcher's other processes
    there wait for its end, and end with its status."""

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
        """Number of processes that are known to wait for this one's end."""
        return len(self._waiting)

    def look(self) -> None:
        """Accept the connections of processes that have come to wait for this one's end."""
        if self._socket is not None:
            self._socket.setblocking(False)
            with suppress(OSError):
                while True:
                    self._waiting.append(self._socket.accept()[0])

    def release(self, status: int) -> None:
        """Tell waiting processes this one's exit status; that of a killed process they notice by its silence."""
        self.look()
        for waiting in self._waiting:
            with suppress(OSError):
                waiting.sendall(bytes([status & 255]))
            waiting.close()
        if self._socket is not None:
            self._socket.close()


def wait_for_leader(place: HostPlace, patience: float = 300.0) -> int:
    """Wait for the end of this host's local rank 0, which leads the learner of this rank too; return its exit status.

    Raises:
        UserError: local rank 0 does not begin within `patience` seconds.
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
