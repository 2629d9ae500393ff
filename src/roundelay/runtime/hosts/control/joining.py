"""The link by which a host joins a run: to the first host, or to another that leads in its place."""

from collections.abc import Callable

from roundelay.core.errors import UserError
from roundelay.runtime.base import wall_clock
from roundelay.runtime.clocks import pause
from roundelay.runtime.hosts.terms import HostTerms, JoinHello, identity
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Address, Link, LinkError, LinkOptions, LinkTimeout
from roundelay.runtime.launch.rendezvous import Rendezvous
from roundelay.runtime.launch.world import HostPlace

ASKED_SECONDS = 2.0
"""Seconds after which it is asked again where the first host is, and whether to look for it any longer."""
LEADS_AGAIN_SECONDS = 0.2
"""Interval at which a host is asked again whether it leads."""


def hello_of(
    place: HostPlace, terms: HostTerms, listener: Listener, session: int = 0, stays: bool = False
) -> JoinHello:
    """Return the words of this host about itself.

    Args:
        listener: this host's.
        session: to which it comes (`PendingJoins`).
        stays: it has taken part in that before.
    """
    ranks, life = (place.ranks[0], len(place.ranks)), str(listener.hello.get("life", ""))
    return JoinHello(ranks, place.learners, dict(terms.agreement), listener.address, life, session, stays)


def find_coordinator(
    place: HostPlace,
    terms: HostTerms,
    hello: JoinHello,
    seconds: float,
    other: tuple[Address, int] | None = None,
    stop: Callable[[], object] = lambda: None,
) -> MonitoredLink:
    """A link to the first host, sought for so many seconds, on which this host has said what it is.

    Args:
        hello: what this host says of itself (`hello_of`).
        other: address and lowest rank of another host that leads in its place.
        stop: called every other second; raises where the first host is to be sought no longer.

    Raises:
        LinkTimeout: it does not answer.
        UserError: somebody else does.
    """
    deadline = wall_clock() + seconds
    while True:
        stop()
        left = max(0.01, deadline - wall_clock())
        address = _coordinator(place, left) if other is None else other[0]
        try:
            # It may have moved, where a store says where it is: ask again now and then.
            link = Link.connect(
                address,
                place.secret,
                hello.said,
                min(left, ASKED_SECONDS),
                options=LinkOptions(terms.encrypt),
                expected=identity(0 if other is None else other[1]),
            )
        except LinkTimeout as error:
            if wall_clock() < deadline:
                continue
            where = f"{address[0]}:{address[1]}"
            raise LinkTimeout(f"nobody answers at {where} within {seconds:.3g} s ({error.__cause__})") from error
        except LinkError as error:
            if place.peers and other is None and wall_clock() < deadline:  # it may be about to lead
                pause(LEADS_AGAIN_SECONDS)
                continue
            where = f"{address[0]}:{address[1]}"
            raise UserError(f"rank {place.ranks[0]}: {error}. Is {where} the first host?") from error
        link.patience = terms.host_patience
        return MonitoredLink(link, terms.host_patience)


def _coordinator(place: HostPlace, seconds: float) -> Address:
    if not place.hosted:
        return place.address, place.port
    return Rendezvous(place.world, max(1.0, seconds)).hear_address("coordinator")
