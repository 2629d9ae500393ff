"""What the environment says of learners that somebody else starts, and of hosts.

This is the only place that reads the environment for it. The variables are those of `torchrun`, so the same script runs
under either. Nothing here imports torch: the launcher must start at once.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from roundelay.core.errors import UserError

ENDED = "ROUNDELAY_ENDED"
"""Names a file in which the launcher notes learners that have ended, so that nobody waits for them at the start."""


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
