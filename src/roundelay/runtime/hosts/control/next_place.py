"""Places of hosts in a run that goes on without its first one."""

from collections.abc import Sequence
from dataclasses import replace

from roundelay.runtime.hosts.transport.wire import Address
from roundelay.runtime.launch.world import HostPlace


class LedByAnother(Exception):
    """The first host has ended, and the run goes on from its last checkpoint without it.

    Attributes:
        place: of this host then.
        former: the ranks so far of all learners that are left, in the order of their new ones.
    """

    def __init__(self, place: HostPlace, former: Sequence[int]) -> None:
        super().__init__(f"learners {', '.join(map(str, place.ranks))} of {place.learners}")
        self.place, self.former = place, tuple(former)


def led_by_another(
    place: HostPlace, own: int, hosts: Sequence[Sequence[int]], addresses: Sequence[Address]
) -> LedByAnother | None:
    """Return the place of this host once host 0 has ended: those that are left lead each other in the order in which
    they were, with ranks that follow each other, and the lowest of them is the first. None: there is none, since nobody
    has said that another may lead, or this host does not take part.

    Args:
        own: number of this host.
        hosts: ranks of each.
        addresses: at which they listen; port 0 where one is lost.
    """
    left = [number for number, address in enumerate(addresses) if address[1] and number]
    if own not in left or not place.peers or place.begin:
        return None
    former, leads = [rank for number in left for rank in hosts[number]], addresses[left[0]]
    then = replace(
        place,
        ranks=tuple(map(former.index, hosts[own])),
        learners=len(former),
        address=leads[0],
        port=leads[1],
        listen=leads if own == left[0] else (place.listen[0], 0),
    )
    return LedByAnother(then, former)
