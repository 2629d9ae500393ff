"""Listens to other hosts, and keeps those that want to join until somebody looks at them."""

import secrets
import sys
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.control.finding import ask
from roundelay.runtime.hosts.terms import CONTROL, NO_SESSION, ROLES, HostTerms, JoinHello, identity
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink, Router
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.relay import BehindRelay, Relay
from roundelay.runtime.hosts.transport.wire import RELAY, Address, Link, LinkError, LinkOptions, LinkTimeout
from roundelay.runtime.launch.rendezvous import Rendezvous
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import InvalidMessage, read

WAY_SECONDS = 10.0
"""In which a host that has come must answer at its address."""


def open_router(place: HostPlace, terms: HostTerms) -> Router:
    """Listen, and let the others know where.

    Raises:
        UserError: the address is not one of this host, or taken.
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
    if place.conducts and place.hosted:
        host, port = listener.address
        Rendezvous(place.world, terms.patience_seconds).say("coordinator", {"host": host, "port": port})
    router = Router(listener, (*ROLES, RELAY), terms.patience_seconds)
    Relay(router, terms.host_patience)
    return router


class PendingJoins:
    """Hosts that have come and have not been looked at yet. They hear that somebody is there, who may be busy."""

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
        """Say so where the host at the other end cannot be connected to: others' exchanges with it would come to
        nothing."""
        with suppress(InvalidMessage):  # the one who looks at it says so
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
        """Return the next, if there is one within so many seconds."""
        with suppress(Empty):
            self._early.append(self._monitored.get(timeout=seconds) if seconds else self._monitored.get_nowait())
        for number, monitored in enumerate(self._early):
            if monitored.link.hello.get("session", 0) == self.session:
                return self._early.pop(number)
        return None


def first_address(place: HostPlace, seconds: float) -> Address:
    """Return the address of the first host, as the environment says, or the store of its launcher."""
    if not place.hosted:
        return place.address, place.port
    return Rendezvous(place.world, max(1.0, seconds)).hear_address("coordinator")
