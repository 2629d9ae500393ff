"""Learners and hosts as the environment describes them, where a launcher starts them.

This is the only place that reads the environment for it. There are two sets of names for the same variables: those of
`torchrun` (RANK, WORLD_SIZE, ...), and the same with ROUNDELAY_ before them, which `roundelay launch` sets and which
count where both are set. Under the second alone a script, and a framework it uses, sees no process group to join.
Nothing here imports torch: the launcher must start at once.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from roundelay.core.errors import UserError
from roundelay.core.extras import need
from roundelay.runtime.launch.addresses import (
    PEERS,
    Address,
    listening,
    own_address,
    port_among,
    read_peers,
    read_relay,
)

OURS = "ROUNDELAY_"
"""Prefix of Roundelay's own names of the variables."""
ENDED_VARIABLE = "ROUNDELAY_ENDED"
"""Variable with a file in which the launcher notes learners that have ended, so that none waits for them at the start.
"""
ENDED_NAME = "roundelay-ended"
ENDED_BYTES = 1 << 20
PLACES = "ROUNDELAY_PLACES"
"""Variable with the number of learners there may ever be; those beyond WORLD_SIZE may join a running session."""
LIVE = "ROUNDELAY_LIVE"
"""Variable with the folder in which attached sessions write their state, for `roundelay status`."""
REPORT = "ROUNDELAY_REPORT"
"""Variable with the folder in which an attached session keeps the held-out losses that its script reports."""
LISTEN = "ROUNDELAY_LISTEN"
"""Variable with the address where this host listens, as `listen` of `read_place`."""
REPLAY = "ROUNDELAY_REPLAY"
"""Variable with a record that a script's sessions are to repeat."""
REPLAYED = "ROUNDELAY_REPLAYED"
"""Variable with a file in which learners that repeat a record write the results."""
STRAGGLERS = "ROUNDELAY_STRAGGLERS"
"""Variable with the learners of a script that are to be slow, as `1:3x`, with commas."""
GROUP = "ROUNDELAY_GROUP"
"""Variable with the number of processes of each learner that `roundelay launch --group` has started."""
JOB = "ROUNDELAY_JOB"
"""Variable with a random key that `roundelay launch` makes for its learners, in hexadecimal digits."""


@dataclass(frozen=True)
class World:
    """The rank of this process among the learners, and where they meet."""

    rank: int = 0
    learners: int = 1
    address: str = ""
    port: int = 0
    ended_file: str = ""
    attempt: str = ""  # of this launch, where the launcher starts learners again at the same address
    secret: bytes = field(default=b"", repr=False)  # known to the learners of this job only; may be empty
    place: "HostPlace | None" = None  # of this host among several; None: there is one
    begin: int = 0  # so many of the learners begin, others may join later; 0: all begin

    @property
    def first(self) -> tuple[int, ...]:
        """Ranks of the learners that begin the session."""
        return tuple(range(self.begin or self.learners))

    @property
    def here(self) -> tuple[int, ...]:
        """Ranks of the learners on this host."""
        return tuple(range(self.learners)) if self.place is None else self.place.ranks

    def ended(self) -> dict[int, int]:
        """Return the exit status, by rank, of learners that the launcher knows to have ended."""
        try:
            descriptor = os.open(self.ended_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return {}
        with open(descriptor, "rb") as file:
            if not _is_memory_file(descriptor, ENDED_NAME):
                raise UserError(
                    f"{ENDED_VARIABLE} is {self.ended_file!r}, which is no file of `roundelay launch`: unset it."
                )
            lines = file.read(ENDED_BYTES).split(b"\n")[:-1]
        return {rank: status for rank, status in map(json.loads, lines) if 0 <= rank < self.learners}


def _is_memory_file(descriptor: int, name: str) -> bool:
    """Return True if `descriptor` is an anonymous memory file of this user with this name."""
    link = os.readlink(f"/proc/self/fd/{descriptor}")
    return link == f"/memfd:{name} (deleted)" and os.fstat(descriptor).st_uid == os.geteuid()


@dataclass(frozen=True)
class _Variables:
    """The values of RANK, WORLD_SIZE and the like in an environment, by either set of names."""

    environment: Mapping[str, str]

    @property
    def prefix(self) -> str:
        return OURS if OURS + "WORLD_SIZE" in self.environment else ""

    def name(self, variable: str) -> str:
        return self.prefix + variable

    def text(self, variable: str) -> str | None:
        return self.environment.get(self.name(variable))

    def number(self, variable: str) -> int:
        """Return the number in a variable.

        Raises:
            UserError: the variable is not set, or is no number.
        """
        text = self.text(variable)
        if text is None:
            raise UserError(
                f"{self.name('WORLD_SIZE')} is set but {self.name(variable)} is not: start the learners with "
                f"`roundelay launch` or `torchrun`, which set both, or unset {self.name('WORLD_SIZE')}."
            )
        try:
            return int(text)
        except ValueError:
            raise UserError(f"{self.name(variable)} is {text!r}: it must be a whole number.") from None

    @property
    def hosted(self) -> bool:
        """True if the launcher is `torchrun` and has a store at MASTER_ADDR."""
        return not self.prefix and self.environment.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)

    @property
    def attempt(self) -> str:
        """Text that distinguishes this start of `torchrun` from others at the same address."""
        names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
        return "" if self.prefix else " ".join(self.environment[name] for name in names if name in self.environment)

    def rank_and_learners(self) -> tuple[int, int, int]:
        """Return this process's rank, the number of learners there may ever be, and how many of them begin (0: all).

        Raises:
            UserError: the rank is not among the learners.
        """
        begin, rank = self.number("WORLD_SIZE"), self.number("RANK")
        places, among = self.environment.get(PLACES, ""), "WORLD_SIZE"
        if places:
            if not places.isdigit() or int(places) < begin:
                raise UserError(f"{PLACES} is {places!r}: give a whole number, WORLD_SIZE ({begin}) or more.")
            among = PLACES
        learners = int(places or begin)
        if not 0 <= rank < learners:
            join = f" A learner that is to join the {learners} while they train needs {PLACES}, the same on all."
            raise UserError(
                f"{self.name('RANK')} is {rank} and {self.name(among) if not places else PLACES} is {learners}: ranks "
                f"go from 0 to {among} - 1.{'' if places else join}"
            )
        return rank, learners, begin if places else 0

    def job_key(self) -> bytes:
        """Return the key that `roundelay launch` has made; empty if there is none."""
        text = self.environment.get(JOB, "") if self.prefix else ""
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise UserError(f"{JOB} is no key of `roundelay launch`: unset it.") from None


def read_world(environment: Mapping[str, str] = os.environ, listen: str | None = None) -> World:
    """Read the world that `torchrun` or `roundelay launch` has set up; without a launcher it has one learner.

    Where fewer learners are on this host than in the world, there are several hosts. Without LOCAL_WORLD_SIZE, each
    process is a host if there is a secret for hosts and MASTER_ADDR is no loopback address.

    Args:
        listen: as for `read_place`, for the first learner of one of several hosts.

    Raises:
        UserError: a variable is missing or no number, or several hosts have no secret.
    """
    given = _Variables(environment)
    if given.text("WORLD_SIZE") is None:
        return World()
    rank, learners, begin = given.rank_and_learners()
    if learners == 1:
        return World()
    place = read_place(listen, environment) if _several_hosts(given, learners) else None
    if key := given.job_key():
        ended = environment.get(ENDED_VARIABLE, "")
        return World(rank, learners, ended_file=ended, secret=key, place=place, begin=begin)
    address = given.text("MASTER_ADDR")
    if not address:
        raise UserError(
            f"rank {rank}: {given.name('WORLD_SIZE')} is {learners} but {given.name('MASTER_ADDR')} is not set: where "
            "do learners meet?"
        )
    secret = _read_secret(environment, rank) if has_secret(environment) else b""
    port = given.number("MASTER_PORT")
    return World(rank, learners, address, port, "", given.attempt, secret, place, begin)


def group_environment(place: int, size: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables for a process of a learner that is a group: as if only the processes with the same place in
    their groups existed.

    Args:
        place: place of this process in its group, from 0 on.
        size: number of processes of a group. `roundelay launch --group` numbers learners; other launchers number
            processes, those of a group one after the other.

    Raises:
        UserError: processes cannot be divided into groups of that size, or the launcher has made other groups.
    """
    given, found = _Variables(environment), dict(environment)
    if given.text("WORLD_SIZE") is None:
        return found
    launched = environment.get(GROUP)
    if launched is not None and launched != str(size):
        raise UserError(
            f"the module is that of {size} processes, and `roundelay launch --group {launched}` has started groups "
            f"of {launched}: give it --group {size}, or fully_shard or DistributedDataParallel all of a group."
        )
    if launched is None:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            if given.text(name) is None:
                continue
            number = given.number(name)
            if name.endswith("WORLD_SIZE") and number % size:
                raise UserError(f"{given.name(name)} is {number}, which is no multiple of the {size} of a group.")
            found[OURS + name] = str(number // size)
    if given.text("MASTER_ADDR"):  # between hosts, and at torchrun's meeting point, each place has a port of its own
        found[OURS + "MASTER_ADDR"] = given.text("MASTER_ADDR") or ""
        found[OURS + "MASTER_PORT"] = str(given.number("MASTER_PORT") + 1 + place)
    if key := given.job_key():
        found[JOB] = hashlib.blake2b(b"place %d" % place, key=key).hexdigest()
    return found


def launched_group(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes that `roundelay launch --group` has given each learner; 1 without it."""
    return int(environment.get(GROUP, "1"))


def _several_hosts(given: _Variables, learners: int) -> bool:
    """Return True if the learners are on several hosts."""
    if given.text("LOCAL_WORLD_SIZE") is not None:
        return given.number("LOCAL_WORLD_SIZE") != learners
    return each_a_host(given.environment)


def each_a_host(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if each of several processes is a host with one learner, as a pod is. The environment then has no
    local ranks, but a secret, and a meeting place on another host."""
    given = _Variables(environment)
    address = given.text("MASTER_ADDR") or ""
    near = address in ("", "localhost", "::1") or address.startswith("127.")
    local = [given.text(name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if given.text(name) is not None]
    several = learners(environment) > 1 or environment.get(PLACES, "1") != "1"
    return several and not local and not near and has_secret(environment)


def rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return the rank of this process among the learners that `roundelay launch` or `torchrun` has started; 0 if
    neither."""
    return _number_or("RANK", 0, environment)


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of this process among the learners of its host, from 0: for the choice of a GPU."""
    return _number_or("LOCAL_RANK", 0, environment)


def learners(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of learners that have been started; 1 if no launcher has started several."""
    return _number_or("WORLD_SIZE", 1, environment)


def _number_or(variable: str, otherwise: int, environment: Mapping[str, str]) -> int:
    given = _Variables(environment)
    return otherwise if given.text(variable) is None else given.number(variable)


# Hosts ----------------------------------------------------------------------------------------------------------------

SECRET, SECRET_FILE = "ROUNDELAY_SECRET", "ROUNDELAY_SECRET_FILE"
SECRET_BYTES = 16
"""Fewest bytes of a secret."""


@dataclass(frozen=True)
class HostPlace:
    """The place of this host among those that train together: its number, learners, addresses and secret."""

    ranks: tuple[int, ...]  # of its learners
    learners: int  # on all hosts
    local_rank: int = 0  # of this process; only 0 does anything
    address: str = ""  # where the first host is to be found
    port: int = 0
    hosted: bool = False  # the launcher has a store there, which knows; else the first host itself is there
    listen: tuple[str, int] = ("", 0)
    secret: bytes = field(default=b"", repr=False)
    job: bytes = field(default=b"", repr=False)  # the key of `roundelay launch`, if that has started this process
    begin: int = 0  # so many of the learners begin, others may join later; 0: all begin
    peers: tuple[Address, ...] = ()  # hosts that may lead when the first is lost
    relay: Address | None = None  # passes on connections to this host; ("", 0): the first host does

    @property
    def first(self) -> tuple[int, ...]:
        """Ranks of the learners that begin the run."""
        return tuple(range(self.begin or self.learners))

    @property
    def alone(self) -> bool:
        """True if all learners are on this host."""
        return len(self.ranks) == self.learners

    @property
    def conducts(self) -> bool:
        """True if this host leads the others."""
        return self.ranks[0] == 0


def read_place(listen: str | None = None, environment: Mapping[str, str] = os.environ) -> HostPlace | None:
    """Read this host's place from the variables of `torchrun` or Roundelay; None if there are none.

    LOCAL_RANK and LOCAL_WORLD_SIZE may both be missing: then each process is a host with one learner.

    Args:
        listen: ADDRESS or ADDRESS:PORT to listen at; `relay` if no other host can connect to this one, so that the
            first host passes connections on to it, or `relay=ADDRESS:PORT` if another does. None: the value of LISTEN,
            or the address of this host on the way to MASTER_ADDR.

    Raises:
        UserError: a variable is missing or no number, several hosts have no secret, or the address is not this host's.
    """
    given = _Variables(environment)
    if given.text("WORLD_SIZE") is None or (given.text("WORLD_SIZE") == "1" and not environment.get(PLACES)):
        return None
    rank, learners, begin = given.rank_and_learners()
    begin = 0 if begin == learners else begin
    local = {name: given.text(name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    if None in local.values() and set(local.values()) != {None}:
        raise UserError(f"rank {rank}: only one of LOCAL_RANK and LOCAL_WORLD_SIZE is set; set both, or neither.")
    several = local["LOCAL_RANK"] is not None
    local_rank = given.number("LOCAL_RANK") if several else 0
    local_size = given.number("LOCAL_WORLD_SIZE") if several else 1
    first = rank - local_rank
    if not 0 <= local_rank < local_size or not 0 <= first <= learners - local_size:
        raise UserError(
            f"rank {rank} of {learners} is learner {local_rank} of {local_size} on its host: ranks of a host follow "
            "each other, and LOCAL_RANK goes from 0 to LOCAL_WORLD_SIZE - 1."
        )
    ranks = tuple(range(first, first + local_size))
    address = given.text("MASTER_ADDR") or ""
    if local_size == learners:
        port = 0 if given.text("MASTER_PORT") is None else given.number("MASTER_PORT")
        return HostPlace(ranks, learners, local_rank, address, port, job=given.job_key())
    if not address:
        raise UserError(f"rank {rank}: WORLD_SIZE is {learners} but MASTER_ADDR is not set: where do hosts meet?")
    port, hosted = given.number("MASTER_PORT"), given.hosted
    if local_rank:
        return HostPlace(ranks, learners, local_rank, address, port, begin=begin)
    secret, peers = _read_secret(environment, rank), read_peers(environment.get(PEERS, ""), port, hosted)
    listen = listen or environment.get(LISTEN)
    relay = read_relay(listen, rank, address)
    own = "" if listen else own_address([address, *(host for host, _ in peers)], rank)
    default_port = port if rank == 0 and not hosted else port_among(peers, own)
    at = listening(listen, default_port) if listen and relay is None else (own, default_port)
    return HostPlace(ranks, learners, 0, address, port, hosted, at, secret, begin=begin, peers=peers, relay=relay)


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
    need("hosts", f"rank {rank}: training on several hosts")
    if not secret:
        raise UserError(f"rank {rank}: several hosts need a secret that keeps strangers out: {how}")
    if len(secret) < SECRET_BYTES:
        raise UserError(
            f"rank {rank}: the secret has {len(secret)} characters, and {SECRET_BYTES} are the least: {how}"
        )
    return secret


def has_secret(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if the environment has a secret, or names a file of one."""
    return bool(environment.get(SECRET_FILE) or environment.get(SECRET, "").strip())


def secret_file(environment: Mapping[str, str] = os.environ) -> str:
    """Return the file that the run's secret is read from; "" if the secret is in the environment itself."""
    return environment.get(SECRET_FILE, "")


def read_by_hand(
    listen: str | None, others: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> tuple[Address, list[Address], bytes, Address | None]:
    """Return, for a command that is given hosts by options, the address to listen at, those of `others`, the secret,
    and, if `listen` asks for a relay, its address (the first of `others` if it names none).

    Raises:
        UserError: the environment has no secret, or an address is missing or invalid.
    """
    secret, there = _read_secret(environment, 0), [listening(text, 0) for text in others]
    for text, (_, port) in zip(others, there, strict=True):
        if not port:
            raise UserError(f"{text!r}: write ADDRESS:PORT, as the host that listens there names it.")
    if listen is None and not there:
        raise UserError("say by --listen ADDRESS where to listen.")
    relay = read_relay(listen, 1, "")
    if relay is not None:
        if not relay[0] and not there:
            raise UserError("--listen relay: write relay=ADDRESS:PORT of a host whose doctor listens there.")
        return ("", 0), there, secret, relay if relay[0] else there[0]
    return listening(listen, 0) if listen is not None else (own_address([there[0][0]], 0), 0), there, secret, None


def path_in(variable: str) -> str:
    """Return the path in a variable (LIVE, REPORT, REPLAY, REPLAYED); "" if it is not set."""
    return os.environ.get(variable, "")


def stragglers(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the learners that are to be slowed down, each in words as `1:3x`, from the environment."""
    return [text for text in environment.get(STRAGGLERS, "").split(",") if text]


def environment_at(place: HostPlace, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of this host for learners that meet at the port of `place`, which may differ from the
    environment's."""
    given, found = _Variables(environment), dict(environment)
    found[given.name("MASTER_PORT")] = str(place.port)
    if environment.get(LISTEN) and place.relay is None:
        found[LISTEN] = place.listen[0]
    return found


def environment_alone(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment without the variables that make this host one of several."""
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    ours = {OURS + name for name in names} | {PEERS, PLACES, LISTEN}
    return {name: value for name, value in environment.items() if name not in names | ours}


def launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if `torchrun`, or anything else that sets its variables, has started this process."""
    return _Variables(environment).text("WORLD_SIZE") is not None
