"""Succession: which host leads when the first one is lost.

Every other host notices that its link is gone, and asks at the leader's address which process listens there. None, or
another: the leader has ended, and the lowest host that lives is the next one. The same process: only the link was cut,
and this host is lost. No answer at all: no host can say whether the leader lives, and two leaders would be two runs.

A session of attached learners goes on as it is (`may_be_led_by_another`): the others come to the next host, which
leads if more than half of the hosts come to it, and not before the leader has given up (lease.py, leading.py). A
centre, which was with the leader, is made again on the next (attached/hosts/taking_over.py), and gatherings at it begin
anew. Learners that wait for each other lose their leader only where they go on without the dead: other sessions end
with it. A run of `roundelay train` begins anew from its last checkpoint, as a smaller run (`led_by_another`), and
only when the leader has surely ended; the next host has a copy of that checkpoint (copies.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import final

from roundelay.runtime.hosts.control.finding import PeerState, ask_all, inquire
from roundelay.runtime.hosts.control.lease import Voter
from roundelay.runtime.hosts.terms import HostTerms
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import Address
from roundelay.strategies.base import Strategy


@final
@dataclass(frozen=True)
class KnownHosts:
    """The hosts of a run or session, as the leader has last told them."""

    own: int = -1  # number of this host
    leader: int = 0  # number of the one that leads
    first: int = 0  # its lowest rank
    ranks: Sequence[Sequence[int]] = ()  # of each host
    addresses: Sequence[Address] = ()  # at which they listen; ("", 0) where one is lost
    life: str = ""  # of the leader's process
    let_in: Collection[int] = ()  # hosts that were; others have come back and wait. None: all were.

    def after(self) -> list[int]:
        """Hosts that may lead next, the first one first."""
        left = [host for host, address in enumerate(self.addresses) if address[1] and host != self.leader]
        return sorted(left, key=lambda host: turn(self.let_in, host, self.addresses[host]))


def turn(let_in: Collection[int], host: int, address: Address) -> tuple[bool, bool, int]:
    """Return a sort key of `host` in the order in which hosts lead next. Hosts behind a relay come late, since the
    relay may be gone; hosts that have come back and wait to be let in come last, since no learner trains there."""
    return bool(let_in) and host not in let_in, "@" in address[0], host


def look_for(voter: Voter, place: HostPlace, terms: HostTerms) -> PeerState:
    """Return the state of the process of `voter`; it has ended also if its host was started again, at any address."""
    found = inquire(voter.address, place, terms, {"first": voter.rank, "life": voter.life})
    if found is PeerState.SILENT and place.peers:
        hellos, _ = ask_all(place, terms, "")
        if any(hello.first == voter.rank and hello.life != voter.life for hello in hellos):
            return PeerState.ENDED
    return found


def may_be_led_by_another(strategy: Strategy, goes_on: bool) -> bool:
    """Return True if a session can outlive the process of its first host; where learners wait for each other, only if a
    learner `goes_on` without others that die."""
    traits = strategy.traits
    return (goes_on or not traits.synchronous) and (traits.model != "centre" or bool(traits.rebuilt_from))


class LedByAnother(Exception):
    """The first host has ended, and the run goes on from its last checkpoint without it.

    Attributes:
        place: the new place of this host.
        former: the old ranks of all learners that are left, in the order of their new ranks.
    """

    def __init__(self, place: HostPlace, former: Sequence[int]) -> None:
        super().__init__(f"learners {', '.join(map(str, place.ranks))} of {place.learners}")
        self.place, self.former = place, tuple(former)


def led_by_another(place: HostPlace, hosts: KnownHosts) -> LedByAnother | None:
    """Return the place of this host in a run once the one that leads has ended: those that are left lead each other in
    the order in which they were, with ranks that follow each other, and the lowest of them is the first. None: there is
    none, since no option says that another may lead, or this host does not take part."""
    left = hosts.after()
    if hosts.own not in left or not place.peers or place.begin or "@" in hosts.addresses[left[0]][0]:
        return None
    former, leads = [rank for number in left for rank in hosts.ranks[number]], hosts.addresses[left[0]]
    then = replace(
        place,
        ranks=tuple(map(former.index, hosts.ranks[hosts.own])),
        learners=len(former),
        address=leads[0],
        port=leads[1],
        listen=leads if hosts.own == left[0] else (place.listen[0], 0),
    )
    return LedByAnother(then, former)
