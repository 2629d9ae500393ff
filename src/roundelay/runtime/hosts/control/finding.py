"""Search for other hosts: who listens there, who leads, and has a process that did ended?

Whoever starts asks all hosts that it knows of. Each host that takes part says who leads, to any who prove that they
know the secret, in its listener's hello. So one that lives is enough to find the others. Where two hosts differ, the
leader who came later counts.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from typing import Any, final

from roundelay.core.errors import UserError
from roundelay.runtime.hosts.control.lease import Voter
from roundelay.runtime.hosts.terms import CONTROL, NO_SESSION, HostHello, HostTerms
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Address, Link, LinkError, LinkOptions, LinkTimeout, UnknownPeer
from roundelay.runtime.launch.world import HostPlace

ASK_SECONDS = 1.0
"""Seconds for an answer of one host."""
LOOKS, PAUSE_SECONDS = 8, 0.25
"""Number of times that a process is asked for which has just closed its link, for it may be about to end."""
ASK_AGAIN_SECONDS = 0.2
"""Interval at which hosts are asked again who leads."""


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
    """Return the hello of the host that listens there, asked for so many seconds.

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


def boot_clock() -> float:
    """Return seconds since this machine started, those of its sleep among them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say_who_leads(listener: Listener, session: int, leader: Voter | None, term: int) -> None:
    """Tell whoever asks this host; `term`: how many led before. None: nobody leads any more."""
    said = None if leader is None else (session, term, leader.rank, leader.life, leader.address)
    listener.say(leader=said)


def ask_all(place: HostPlace, terms: HostTerms, own: str) -> list[HostHello]:
    """Return hellos of the hosts that this one knows of and that answer, but for its own, whose life is `own`."""

    def one(address: Address) -> HostHello | None:
        with suppress(LinkError):
            return ask(address, place, terms)
        return None

    everybody = dict.fromkeys([(place.address, place.port), *place.peers])
    with ThreadPoolExecutor(len(everybody)) as pool:
        return [hello for hello in pool.map(one, everybody) if hello is not None and hello.life != own]


@final
class Search:
    """Search of one host for the leader of a session.

    Args:
        own: the life of its process.
    """

    def __init__(self, place: HostPlace, terms: HostTerms, session: int, own: str) -> None:
        self._place, self._terms, self._session, self._own = place, terms, session, own

    def leader(self) -> Voter | None:
        """Return the leader, as far as anybody knows."""
        return leader_of(ask_all(self._place, self._terms, self._own), self._session)

    def wait(self, seconds: float) -> Voter | None:
        """Return the leader, if anybody says who it is within so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.leader()
            if found is not None and found.rank != self._place.ranks[0]:
                return found
            if time.monotonic() > deadline:
                return None
            time.sleep(ASK_AGAIN_SECONDS)

    def another_leads(self) -> bool:
        """Return True if another host leads the session that the first one would begin.

        Raises:
            UserError: the others take a process of this host that has ended for their leader, and do not miss it.
        """
        deadline = time.monotonic() + self._terms.patience_seconds
        while (found := self.leader()) is not None:
            if found.rank != self._place.ranks[0]:
                return True
            if time.monotonic() > deadline:
                raise UserError(
                    f"rank {found.rank}: other hosts follow another process of this host, at "
                    f"{found.address[0]}:{found.address[1]}, since {self._terms.patience_seconds:g} s. Has it been "
                    "started twice?"
                )
            time.sleep(ASK_AGAIN_SECONDS)
        return False


def leader_of(hellos: Sequence[HostHello], session: int) -> Voter | None:
    """Return the last leader of a session that these hosts name."""
    found = [leader[1:] for hello in hellos if (leader := hello.leader) is not None and leader[0] == session]
    return Voter(*max(found)[1:]) if found else None
