"""The link by which a host joins a run: to the first host, or to another that leads in its place."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from roundelay.core.errors import UserError
from roundelay.runtime.base import wall_clock
from roundelay.runtime.clocks import pause
from roundelay.runtime.hosts.terms import CONTROL, HostTerms, identity
from roundelay.runtime.hosts.transport.heartbeat import MonitoredLink
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Address, Link, LinkError, LinkOptions, LinkTimeout
from roundelay.runtime.launch.rendezvous import Rendezvous
from roundelay.runtime.launch.world import HostPlace

ASKED_SECONDS = 2.0
"""Seconds after which it is asked again where the first host is, and whether to look for it any longer."""
LEADS_AGAIN_SECONDS = 0.2
"""Interval at which a host is asked again whether it leads."""


def find_coordinator(
    place: HostPlace,
    terms: HostTerms,
    listener: Listener,
    seconds: float,
    other: tuple[Address, int] | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
    stop: Callable[[], object] = lambda: None,
) -> MonitoredLink:
    """A link to the first host, sought for so many seconds, on which this host has said what it is.

    Args:
        listener: this host's.
        other: address and lowest rank of another host that leads in its place.
        more: said by this host of itself: the `session` that it comes to (`PendingJoins`), whether it `stays` in it.
        stop: called every other second; raises where the first host is to be sought no longer.

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
        "session": 0,
        "stays": False,
        **more,
    }
    while True:
        stop()
        left = max(0.01, deadline - wall_clock())
        address = _coordinator(place, left) if other is None else other[0]
        try:
            # It may have moved, where a store says where it is: ask again now and then.
            link = Link.connect(
                address,
                place.secret,
                hello,
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
