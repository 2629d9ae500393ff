"""Search for other hosts: which process listens at an address, which host leads, and has one that led ended?

A host that starts asks all hosts that it knows of. Each host that takes part names the leader in its listener's hello,
to all that prove that they know the secret. So one that lives is enough to find the others. Where two hosts differ, the
later leader counts.

Hosts that come to the one that leads are kept until it looks at them (`PendingJoins`).
"""

import math
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.control.lease import Voter
from roundelay.runtime.hosts.control.messages import HostRefused
from roundelay.runtime.hosts.terms import CONTROL, NO_SESSION, ROLES, HostHello, HostTerms, JoinHello, identity
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink, Router
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.relay import BehindRelay, Relay
from roundelay.runtime.hosts.transport.wire import (
    RELAY,
    Address,
    Link,
    LinkError,
    LinkOptions,
    LinkTimeout,
    UnknownPeer,
)
from roundelay.runtime.launch.rendezvous import first_address, say_address
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import InvalidMessage, read

ASK_SECONDS = 1.0
"""Seconds for an answer of one host."""
LOOKS, PAUSE_SECONDS = 8, 0.25
"""Number of attempts to find a process that has just closed its link and may be ending, and the pause between them."""
ASK_AGAIN_SECONDS = 0.2
"""Interval at which hosts are asked again for the leader."""
NOTICE_SECONDS = 2.0
"""Seconds that a host waits for others at its start before it says so."""


@final
class PeerState(Enum):
    """State of a process whose link is gone, as far as this host knows."""

    ENDED = 0
    LIVES = 1
    SILENT = 2


def ask(
    address: Address,
    place: HostPlace,
    terms: HostTerms,
    within: float = ASK_SECONDS,
    expected: Mapping[str, Any] | None = None,
) -> HostHello:
    """Return the hello of the host that listens at `address`, which is asked for at most `within` seconds.

    Raises:
        LinkError: no process answers, or one that does not know the secret, or whose hello is not as `expected`.
    """
    hello, options = {"what": CONTROL, "session": NO_SESSION}, LinkOptions(terms.encrypt)
    wanted = {"what": "host", **(expected or {})}
    link = Link.connect(address, place.secret, hello, terms.host_patience, options, within, wanted)
    link.close()
    return HostHello.of(link)


def inquire(address: Address, place: HostPlace, terms: HostTerms, expected: Mapping[str, Any]) -> PeerState:
    """Ask at `address` for the process whose hello has all that is `expected`, and return the state of that process."""
    found = PeerState.SILENT
    for _ in range(LOOKS):
        try:
            ask(address, place, terms, PAUSE_SECONDS, expected)
            found = PeerState.LIVES
        except UnknownPeer:  # it was started again
            return PeerState.ENDED
        except LinkTimeout as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                return PeerState.ENDED
        except LinkError:
            return PeerState.LIVES
        time.sleep(PAUSE_SECONDS)
    return found


@final
class StartWait:
    """A host's wait for others at its start; the user is told once what it waits for, and for how long at most.

    Args:
        rank: the lowest rank of the host.
        seconds: how long it waits at most.
        stop: called again and again; raises an error to end the wait.
        told: True if the user knows already.
    """

    def __init__(
        self, rank: int, seconds: float, stop: Callable[[], object] = lambda: None, told: bool = False
    ) -> None:
        self._rank, self._seconds, self._stop = rank, seconds, stop
        self._due = math.inf if told else time.monotonic() + NOTICE_SECONDS
        self._refused = told

    def look(self, what: str, refused: str = "") -> None:
        """Tell the user that the host waits for `what`, if `NOTICE_SECONDS` have passed, or at once if a connection was
        `refused`, with the reason."""
        self._stop()
        if refused and not self._refused:
            self._refused = True
            sys.stderr.write(f"roundelay: rank {self._rank} has refused a connection: {refused}\n")
        if time.monotonic() >= self._due:
            self._due = math.inf
            sys.stderr.write(f"roundelay: rank {self._rank} waits for {what}, {self._seconds:g} s at most\n")


def boot_clock() -> float:
    """Return the seconds since this machine started, including those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say_who_leads(listener: Listener, session: int, leader: Voter, term: int) -> None:
    """Name the leader of session number `session` in the hello of this host; `term` is how many led before."""
    listener.say(leader=(session, term, leader.rank, leader.life, leader.address))


def ask_all(place: HostPlace, terms: HostTerms, own: str) -> tuple[list[HostHello], bool]:
    """Return the hellos of all known hosts that answer, except that of this process, whose life is `own`; and whether
    some are silent, so that they may live: where no process listens, it is refused."""

    def one(address: Address) -> HostHello | bool:
        try:
            return ask(address, place, terms)
        except LinkTimeout as error:
            return not isinstance(error.__cause__, ConnectionRefusedError)
        except LinkError:
            return False

    everybody = dict.fromkeys([(place.address, place.port), *place.peers])
    with ThreadPoolExecutor(len(everybody)) as pool:
        said = list(pool.map(one, everybody))
    return [hello for hello in said if not isinstance(hello, bool) and hello.life != own], True in said


@final
class Search:
    """One host's search for the leader of a session.

    Args:
        session: number of the session.
        own: the life of this host's process.
    """

    def __init__(self, place: HostPlace, terms: HostTerms, session: int, own: str) -> None:
        self._place, self._terms, self._session, self._own = place, terms, session, own
        self._silent = False  # were there hosts, when all were asked last, that neither answered nor refused?

    def leader(self) -> Voter | None:
        """Return the leader that the other hosts name; None if they name none.

        Raises:
            UserError: no host names a leader, and the session has ended on one of them.
        """
        hellos, self._silent = ask_all(self._place, self._terms, self._own)
        found = leader_of(hellos, self._session)
        over = [hello.first for hello in hellos if hello.ended >= self._session]
        if found is None and over:
            raise UserError(
                f"rank {self._place.ranks[0]}: session {self._session} has ended: the host of learner {over[0]} has "
                "left it, and no host leads it. If its training is not complete, end all hosts and start them again."
            )
        return found

    def wait(self, seconds: float, lasts: StartWait) -> Voter | None:
        """Return the leader, if any host names another host within `seconds`; else None. `lasts` tells the user."""
        deadline = time.monotonic() + seconds
        asked = ", ".join(f"{host}:{port}" for host, port in self._place.peers)
        while True:
            found = self.leader()
            if found is not None and found.rank != self._place.ranks[0]:
                return found
            lasts.look(f"a host that says who leads; asked are {asked}")
            if time.monotonic() > deadline:
                return None
            time.sleep(ASK_AGAIN_SECONDS)

    def another_leads(self) -> bool:
        """Return True if another host leads the session that the first one would begin. A host that is silent counts as
        one that follows no host, after `host_patience`.

        Raises:
            UserError: the session has ended; or the other hosts still follow another process of this host.
        """
        begun = time.monotonic()
        while (found := self.leader()) is not None or self._silent:
            if found is not None and found.rank != self._place.ranks[0]:
                return True
            waited = time.monotonic() - begun
            if found is None and waited > self._terms.host_patience:
                break
            if found is not None and waited > self._terms.patience_seconds:
                raise UserError(
                    f"rank {found.rank}: other hosts follow another process of this host, at "
                    f"{found.address[0]}:{found.address[1]}, since {self._terms.patience_seconds:g} s. Has it been "
                    "started twice?"
                )
            time.sleep(ASK_AGAIN_SECONDS)
        return False


def leader_of(hellos: Sequence[HostHello], session: int) -> Voter | None:
    """Return the latest leader of session number `session` that any of `hellos` names; None if none does."""
    found = [leader[1:] for hello in hellos if (leader := hello.leader) is not None and leader[0] == session]
    return Voter(*max(found)[1:]) if found else None


WAY_SECONDS = 10.0
"""Seconds in which a host that has come must answer at its address."""


def open_router(place: HostPlace, terms: HostTerms) -> Router:
    """Listen at the address of this host, tell the other hosts which it is, and return the router of accepted links.

    Raises:
        UserError: the address is not one of this host, or is in use.
    """
    life = secrets.token_hex(8)  # tells this process from a later one
    hello, options = {**identity(place.ranks[0]), "life": life}, LinkOptions(terms.encrypt)
    at: Address | BehindRelay = place.listen
    if place.relay is not None:
        relay = place.relay if place.relay[0] else first_address(place, terms.patience_seconds)
        name, moves = f"{place.ranks[0]}-{life}", not place.relay[0]
        at = BehindRelay(relay, name, place.secret, terms.host_patience, options, moves)
        ranks = ", ".join(map(str, place.ranks))
        sys.stderr.write(f"roundelay: others reach learners {ranks} by the relay at {relay[0]} port {relay[1]}\n")
    try:
        listener = Listener(at, place.secret, hello, terms.host_patience, options=options)
    except OSError as error:
        host, port = place.listen
        raise UserError(
            f"rank {place.ranks[0]}: cannot listen at {host} port {port} ({error.strerror}). Give an address of this "
            "host by --listen ADDRESS[:PORT], and another MASTER_PORT if that one is taken."
        ) from error
    if place.conducts:
        say_address(place, terms.patience_seconds, listener.address)
    router = Router(listener, (*ROLES, RELAY), terms.patience_seconds)
    Relay(router, terms.host_patience)
    return router


class PendingJoins:
    """Hosts that have come and have not been looked at yet. They hear heartbeats, since the coordinator may be busy."""

    def __init__(self, router: Router, place: HostPlace, terms: HostTerms) -> None:
        self._place, self._terms, self.listener = place, terms, router.listener
        self._monitored: SimpleQueue[MonitoredLink] = SimpleQueue()
        self._early: list[MonitoredLink] = []  # for another session
        self.session = 0
        """Number, among several of one process, of that to which hosts may come now: their hello says which they want,
        0 where it says nothing. Others are kept."""
        router.give(CONTROL, self._take)

    def _take(self, link: Link) -> None:
        if link.hello.get("session") == NO_SESSION:
            link.close()
            return
        monitored = MonitoredLink(link, self._terms.host_patience)
        monitored.beat()
        threading.Thread(target=self._warn_unless_reached, args=(link,), daemon=True, name="way back").start()
        self._monitored.put(monitored)

    def _warn_unless_reached(self, link: Link) -> None:
        """Warn if the host at the other end cannot be connected to: others' exchanges with it would come to nothing."""
        with suppress(InvalidMessage):  # the coordinator says so
            hello = read(JoinHello, link.hello)
            host, port = hello.address
            try:
                ask(hello.address, self._place, self._terms, WAY_SECONDS, {"first": hello.ranks[0]})
            except LinkTimeout as error:
                if not link.closed:
                    ranks = ", ".join(map(str, range(hello.ranks[0], sum(hello.ranks))))
                    sys.stderr.write(
                        f"roundelay: learners {ranks} have come, and cannot be reached from here at {host} port {port} "
                        f"({error.__cause__}). Let connections through to there; or, where that host is behind a "
                        f"router, set ROUNDELAY_LISTEN=relay on it (docs/hosts.md).\n"
                    )
            except LinkError:  # it is there
                pass

    def next(self, seconds: float = 0.0) -> MonitoredLink | None:
        """Return the link to the next host that has come, if one comes within `seconds`; else None."""
        with suppress(Empty):
            self._early.append(self._monitored.get(timeout=seconds) if seconds else self._monitored.get_nowait())
        for number, monitored in enumerate(self._early):
            wanted = monitored.link.hello.get("session", 0)
            if wanted == self.session:
                return self._early.pop(number)
            if isinstance(wanted, int) and wanted < self.session:
                self._early.pop(number)
                with suppress(LinkError):
                    monitored.say(HostRefused(f"session {wanted} has ended here, and session {self.session} has begun"))
                break
        return None
