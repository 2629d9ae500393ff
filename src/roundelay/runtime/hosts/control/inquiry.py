"""Inquiries at other hosts: who listens there, and has the process that did ended?"""

import time
from collections.abc import Mapping
from enum import Enum
from typing import Any, final

from roundelay.runtime.hosts.terms import CONTROL, NO_SESSION, HostHello, HostTerms
from roundelay.runtime.hosts.transport.wire import Address, Link, LinkError, LinkOptions, LinkTimeout, UnknownPeer
from roundelay.runtime.launch.world import HostPlace

ASK_SECONDS = 1.0
"""Seconds for an answer of one host."""
LOOKS, PAUSE_SECONDS = 8, 0.25
"""Number of times that a process is asked for which has just closed its link, for it may be about to end."""


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
    """The hello of the host that listens there, asked for so many seconds.

    Raises:
        LinkError: nobody answers, or not one of ours, or not as is `expected`.
    """
    hello, options = {"what": CONTROL, "session": NO_SESSION}, LinkOptions(terms.encrypt)
    wanted = {"what": "host", **(expected or {})}
    link = Link.connect(address, place.secret, hello, terms.host_patience, options, within, wanted)
    link.close()
    return HostHello.of(link)


def inquire(address: Address, place: HostPlace, terms: HostTerms, expected: Mapping[str, Any]) -> PeerState:
    """Ask there for the process that says what is `expected` of itself."""
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
