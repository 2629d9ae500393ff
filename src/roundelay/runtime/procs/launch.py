"""Learners that somebody else starts: what the environment says of them, and of hosts; and a launcher for one host.

This is the only place that reads the environment for it. The variables are those of `torchrun`, so the same script runs
under either. Nothing here imports torch: the launcher must start at once.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

from roundelay.core.cores import cores
from roundelay.core.errors import UserError
from roundelay.runtime.procs.heap import keep_freed_in
from roundelay.runtime.procs.threads import wait_politely

ENDED = "ROUNDELAY_ENDED"
"""Names a file in which the launcher notes learners that have ended, so that nobody waits for them at the start."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
GRACE_SECONDS = 10.0
"""How long learners may take to end after the launcher was told to."""


# What the environment says --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Who this process is among the learners, and where they meet."""

    rank: int = 0
    learners: int = 1
    address: str = ""
    port: int = 0
    hosted: bool = False  # the launcher holds the meeting point; else the process of rank 0 does
    ended_file: str = ""

    def ended(self) -> dict[int, int]:
        """Exit status by rank of learners that the launcher knows to have ended."""
        try:
            with open(self.ended_file, encoding="utf-8") as file:
                lines = file.read().split("\n")[:-1]
        except OSError:
            return {}
        return dict(json.loads(line) for line in lines)


def read_world(environment: Mapping[str, str] = os.environ) -> World:
    """The world that `torchrun`, `roundelay launch`, or nobody has made.

    Raises:
        UserError: a variable is missing or no number, or the learners are on several hosts.
    """
    if "WORLD_SIZE" not in environment:
        return World()
    learners, rank = _number(environment, "WORLD_SIZE"), _number(environment, "RANK")
    if not 0 <= rank < learners:
        raise UserError(f"RANK is {rank} and WORLD_SIZE is {learners}: ranks go from 0 to WORLD_SIZE - 1.")
    if "LOCAL_WORLD_SIZE" in environment and _number(environment, "LOCAL_WORLD_SIZE") != learners:
        raise UserError(
            f"rank {rank}: of {learners} learners (WORLD_SIZE) {environment['LOCAL_WORLD_SIZE']} are on this host "
            "(LOCAL_WORLD_SIZE): attach works on one host, whose learners share memory. Start all of them there, "
            "for example by `roundelay launch -n N script.py`."
        )
    if learners == 1:
        return World()
    if not environment.get("MASTER_ADDR"):
        raise UserError(f"rank {rank}: WORLD_SIZE is {learners} but MASTER_ADDR is not set: where do learners meet?")
    return World(
        rank, learners, environment["MASTER_ADDR"], _number(environment, "MASTER_PORT"),
        environment.get("TORCHELASTIC_USE_AGENT_STORE") == str(True), environment.get(ENDED, ""),
    )  # fmt: skip


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except KeyError:
        raise UserError(
            f"WORLD_SIZE is set but {name} is not: start the learners with `roundelay launch` or `torchrun`, which set "
            "both, or unset WORLD_SIZE."
        ) from None
    except ValueError:
        raise UserError(f"{name} is {environment[name]!r}: it must be a whole number.") from None


# Hosts ----------------------------------------------------------------------------------------------------------------

SECRET, SECRET_FILE = "ROUNDELAY_SECRET", "ROUNDELAY_SECRET_FILE"
SECRET_BYTES = 16
"""The shortest secret that is one."""


@dataclass(frozen=True)
class Place:
    """Which host this is, of those that train together, and how they meet."""

    ranks: tuple[int, ...]  # of its learners
    learners: int  # on all hosts
    local_rank: int = 0  # of this process; only 0 does anything
    address: str = ""  # where the first host is to be found
    port: int = 0
    hosted: bool = False  # the launcher has a store there, which knows; else the first host itself is there
    listen: tuple[str, int] = ("", 0)
    secret: bytes = field(default=b"", repr=False)

    @property
    def alone(self) -> bool:
        """Are all learners on this host?"""
        return len(self.ranks) == self.learners

    @property
    def conducts(self) -> bool:
        """Is this the host that leads the others?"""
        return self.ranks[0] == 0

    @property
    def world(self) -> World:
        """Where hosts meet, for the store."""
        return World(self.ranks[0], self.learners, self.address, self.port, self.hosted)


def read_place(listen: str | None = None, environment: Mapping[str, str] = os.environ) -> Place | None:
    """The place that `torchrun`, or anything else that sets its variables, has given this process; None: nobody has.

    LOCAL_RANK and LOCAL_WORLD_SIZE may both be missing: then each process is a host with one learner.

    Args:
        listen: ADDRESS or ADDRESS:PORT to listen at; None: the address of this host on the way to MASTER_ADDR.

    Raises:
        UserError: a variable is missing or no number, several hosts have no secret, or the address is not ours.
    """
    if environment.get("WORLD_SIZE", "1") == "1":
        return None
    learners, rank = _number(environment, "WORLD_SIZE"), _number(environment, "RANK")
    if not 0 <= rank < learners:
        raise UserError(f"RANK is {rank} and WORLD_SIZE is {learners}: ranks go from 0 to WORLD_SIZE - 1.")
    local = {name: environment.get(name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    if None in local.values() and set(local.values()) != {None}:
        raise UserError(f"rank {rank}: of LOCAL_RANK and LOCAL_WORLD_SIZE only one is set; set both, or neither.")
    given = local["LOCAL_RANK"] is not None
    local_rank = _number(environment, "LOCAL_RANK") if given else 0
    local_size = _number(environment, "LOCAL_WORLD_SIZE") if given else 1
    first = rank - local_rank
    if not 0 <= local_rank < local_size or not 0 <= first <= learners - local_size:
        raise UserError(
            f"rank {rank} of {learners} is learner {local_rank} of {local_size} on its host: ranks of a host follow "
            "each other, and LOCAL_RANK goes from 0 to LOCAL_WORLD_SIZE - 1."
        )
    ranks = tuple(range(first, first + local_size))
    address = environment.get("MASTER_ADDR", "")
    if local_size == learners:
        port = _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else 0
        return Place(ranks, learners, local_rank, address, port)
    if not address:
        raise UserError(f"rank {rank}: WORLD_SIZE is {learners} but MASTER_ADDR is not set: where do hosts meet?")
    port, hosted = _number(environment, "MASTER_PORT"), environment.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    if local_rank:
        return Place(ranks, learners, local_rank, address, port)
    secret = _read_secret(environment, rank)
    default_port = port if rank == 0 and not hosted else 0
    at = _listening(listen, default_port) if listen else (_own_address(address, rank), default_port)
    return Place(ranks, learners, 0, address, port, hosted, at, secret)


def _read_secret(environment: Mapping[str, str], rank: int) -> bytes:
    how = (
        f"make one, for example by `head -c 32 /dev/urandom | base64 > secret`, and set {SECRET_FILE} to that file, "
        f"or {SECRET} to what is in it, on every host."
    )
    if environment.get(SECRET_FILE):
        try:
            with open(environment[SECRET_FILE], "rb") as file:
                secret = file.read().strip()
        except OSError as error:
            raise UserError(
                f"{SECRET_FILE} is {environment[SECRET_FILE]!r}: cannot be read ({error.strerror})."
            ) from error
    else:
        secret = environment.get(SECRET, "").encode().strip()
    if not secret:
        raise UserError(f"rank {rank}: several hosts need a secret that keeps strangers out: {how}")
    if len(secret) < SECRET_BYTES:
        raise UserError(
            f"rank {rank}: the secret has {len(secret)} characters, and {SECRET_BYTES} are the least: {how}"
        )
    return secret


def _listening(text: str, port: int) -> tuple[str, int]:
    """`10.0.0.1`, `10.0.0.1:4000`, `[fd00::1]:4000`."""
    host, colon, number = text.rpartition(":") if "]:" in text or text.count(":") == 1 else (text, "", "")
    if colon and not number.isdigit():
        raise UserError(f"--listen {text!r}: write ADDRESS or ADDRESS:PORT.")
    return host.strip("[]"), int(number) if colon else port


def secret_file(environment: Mapping[str, str] = os.environ) -> str:
    """The file that the run's secret is read from; empty where it is in the environment itself."""
    return environment.get(SECRET_FILE, "")


def read_by_hand(
    listen: str | None, others: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> tuple[tuple[str, int], list[tuple[str, int]], bytes]:
    """Where to listen, where `others` do, and the secret, for a command that is told so by options.

    Raises:
        UserError: no secret, or no addresses.
    """
    secret, there = _read_secret(environment, 0), [_listening(text, 0) for text in others]
    for text, (_, port) in zip(others, there, strict=True):
        if not port:
            raise UserError(f"{text!r}: write ADDRESS:PORT, as the one who listens there says it.")
    if listen is None and not there:
        raise UserError("say by --listen ADDRESS where to listen.")
    return _listening(listen, 0) if listen is not None else (_own_address(there[0][0], 0), 0), there, secret


def launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Has `torchrun`, or anything else that sets its variables, started this process?"""
    return "WORLD_SIZE" in environment


def _own_address(master: str, rank: int) -> str:
    """The address this host has on its way to `master`. Nothing is sent."""
    try:
        family, _, _, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(
            f"rank {rank}: MASTER_ADDR is {master!r}, which cannot be reached from here ({error.strerror}). Mend it, "
            "or say by --listen ADDRESS which address of this host the others are to use."
        ) from error


def _slot_name(place: Place) -> str:
    return f"\0roundelay-{os.getuid()}-{place.address}-{place.port}-{place.ranks[0]}"


class Slots:
    """Held by the process with local rank 0, which leads all learners of its host: the launcher's other processes there
    wait for its end, and end with its status."""

    def __init__(self, place: Place) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) if len(place.ranks) > 1 else None
        self._waiting: list[socket.socket] = []
        if self._socket is not None:
            try:
                self._socket.bind(_slot_name(place))
            except OSError as error:
                self._socket.close()
                raise UserError(
                    f"rank {place.ranks[0]}: another run on this host has the same MASTER_ADDR and MASTER_PORT "
                    f"({place.address}:{place.port}). Wait for its end, or choose another MASTER_PORT."
                ) from error
            self._socket.listen(len(place.ranks))

    @property
    def waiting(self) -> int:
        """How many wait, as far as is known."""
        return len(self._waiting)

    def look(self) -> None:
        """Who has come?"""
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


def lend(place: Place, patience: float = 300.0) -> int:
    """Wait for the end of this host's local rank 0, which leads the learner of this rank too; its exit status.

    Raises:
        UserError: it does not begin within `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
            try:
                waiting.connect(_slot_name(place))
            except OSError:
                if time.monotonic() > deadline:
                    rank = place.ranks[place.local_rank]
                    raise UserError(
                        f"rank {rank}: rank {place.ranks[0]}, which is to lead the learners of this host, did not "
                        f"start within {patience:.0f} s."
                    ) from None
                time.sleep(0.1)
                continue
            return (waiting.recv(1) or b"\1")[0]


# The launcher ---------------------------------------------------------------------------------------------------------


def launch(learners: int, command: Sequence[str], say: Callable[[str], None]) -> int:
    """Run `command` as so many learners on this host, and wait for all of them.

    A Python script is run by this Python; `say` is told who failed. A learner that ends, well or badly, does not end
    the others: whether they can go on is for their strategy to say. Signals are passed on to all of them, each in a
    process group of its own.

    Returns:
        0, or the exit status of the first that failed (128 plus the signal, if one killed it).
    """
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise UserError("launch needs a command: roundelay launch -n 2 script.py --its-options")
    if learners < 1:
        raise UserError(f"-n is {learners}: at least one learner is needed.")
    ended = os.memfd_create("roundelay-ended", os.MFD_CLOEXEC)
    environment = {**os.environ, ENDED: f"/proc/{os.getpid()}/fd/{ended}"}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // learners)))
    wait_politely(environment)
    keep_freed_in(environment)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    arguments = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    processes: list[subprocess.Popen[bytes]] = []
    told: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        told.append(number)
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in FORWARDED}
    try:
        for rank in range(learners):
            who = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": learners, "LOCAL_WORLD_SIZE": learners}
            mine = {**environment, **meeting, **{name: str(value) for name, value in who.items()}}
            processes.append(_start(arguments, mine))
        return _wait(processes, told, ended, say)
    finally:
        for process in processes:  # whatever went wrong, nobody stays behind
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(ended)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(arguments: list[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    libc, parent = ctypes.CDLL(None), os.getpid()

    def die_with_launcher() -> None:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    try:
        return subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=die_with_launcher,  # noqa: PLW1509 the launcher has no threads
        )
    except OSError as error:
        raise UserError(f"{arguments[0]}: cannot be started ({error.strerror}).") from error


def _wait(
    processes: Sequence["subprocess.Popen[bytes]"], told: Sequence[int], ended: int, say: Callable[[str], None]
) -> int:
    """Until all have ended; those told to end by a signal get some time to do so."""
    running, first, deadline = dict(enumerate(processes)), 0, 0.0
    while running:
        for rank, process in list(running.items()):
            status = process.poll()
            if status is None:
                continue
            del running[rank]
            status = 128 - status if status < 0 else status
            os.write(ended, (json.dumps([rank, status]) + "\n").encode())
            if status and not told:
                say(f"learner {rank} ended with status {status}.")
            first = first or status
        if set(told) & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}:
            deadline = deadline or time.monotonic() + GRACE_SECONDS
            if time.monotonic() > deadline:
                break
        if running:
            time.sleep(0.05)
    return first or (128 + told[0] if told and running else 0)
