"""The link by which a host joins a run: to the first host, or to another that leads in its place."""

from roundelay.core.errors import UserError
from roundelay.runtime.base import wall_clock
from roundelay.runtime.clocks import pause
from roundelay.runtime.hosts.terms import CONTROL, HostTerms, identity
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Address, Link, LinkError, LinkOptions, LinkTimeout
from roundelay.runtime.launch.rendezvous import Rendezvous
from roundelay.runtime.launch.world import HostPlace

LEADS_AGAIN_SECONDS = 0.2
"""Interval at which a host is asked again whether it leads."""


def find_coordinator(
    place: HostPlace,
    terms: HostTerms,
    listener: Listener,
    seconds: float,
    session: int = 0,
    other: tuple[Address, int] | None = None,
    stays: bool = False,
) -> MonitoredLink:
    """A link to the first host, sought for so many seconds, on which this host has said what it is.

    Args:
        listener: this host's.
        session: that it comes to; see `PendingJoins`.
        other: address and lowest rank of another host that leads in its place.
        stays: it has taken part already.

    Raises:
        LinkTimeout: it does not answer.
        UserError: somebody else does.
    """
    deadline = wall_clock() + seconds
    hello = {
        "what": CONTROL,
        "ranks": [place.ranks[0], len(place.ranks)],
        "learners": place.learners,
        "agreement": terms.agreement,
        "address": listener.address,
        "life": listener.hello.get("life", ""),
        "session": session,
        "stays": stays,
    }
    while True:
        left = deadline - wall_clock()
        address = _coordinator(place, left) if other is None else other[0]
        try:
            # It may have moved, where a store says where it is: ask again now and then.
            link = Link.connect(
                address,
                place.secret,
                hello,
                min(left, 2.0) if place.hosted else left,
                options=LinkOptions(terms.encrypt),
                expected=identity(0 if other is None else other[1]),
            )
        except LinkTimeout:
            if wall_clock() < deadline:
                continue
            raise
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
