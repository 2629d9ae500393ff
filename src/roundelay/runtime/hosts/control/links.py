"""Links between all hosts of a synchronous run: a chain for means, and a link between any two for mixes."""

import threading
from collections.abc import Iterator, Mapping, Sequence

from roundelay.runtime.hosts.terms import CHAIN, MIX, identity
from roundelay.runtime.hosts.transport.heartbeat import Router, until
from roundelay.runtime.hosts.transport.traffic import Reading
from roundelay.runtime.hosts.transport.wire import Address, Link, LinkOptions


class PeerLinks:
    """This host's links: those to hosts before it are dialled, those to hosts after it are accepted by the router.

    Args:
        hosts: the ranks of each, in rank order; this one is number `host` of them.
        patience: how long hosts are; links are more patient, for it is not for them to say who is dead.
        largest: bytes of a vector.
        encrypts: is what goes over the links hidden?
    """

    def __init__(
        self,
        router: Router,
        hosts: Sequence[Sequence[int]],
        host: int,
        patience: float,
        largest: int,
        encrypts: bool = True,
    ) -> None:
        self.hosts, self.host, self._patience = hosts, host, 2 * patience
        self._largest, self._encrypts = largest, encrypts
        self._links: dict[str, dict[int, Link]] = {CHAIN: {}, MIX: {}}
        self._lock = threading.Lock()
        for role in self._links:
            router.give(role, self._take)

    @property
    def chain(self) -> Mapping[int, Link]:
        """By host: the one before, the one after."""
        return self._links[CHAIN]

    @property
    def mix_links(self) -> Mapping[int, Link]:
        """By host: all others."""
        return self._links[MIX]

    def _take(self, link: Link) -> None:
        role, host = str(link.hello["what"]), link.hello.get("host")
        later = range(self.host + 1, len(self.hosts))
        if type(host) is not int or host not in (later[:1] if role == CHAIN else later):
            link.blame(f"comes for {role!r} as host {host!r}, which is not expected here")
            return
        self._add(role, host, link)

    def _add(self, role: str, host: int, link: Link) -> None:
        link.patience, link.largest = self._patience, self._largest
        with self._lock:
            old, self._links[role][host] = self._links[role].get(host), link
        if old is not None:
            old.close()

    def dial(self, addresses: Sequence[Address], secret: bytes, seconds: float) -> None:
        """Connect to the hosts before this one, and wait for those after it.

        Raises:
            LinkError: one of those does not answer.
            TimeoutError: one of these did not come within `seconds`; says which.
        """
        for host in range(self.host):
            for role in (CHAIN, MIX) if host == self.host - 1 else (MIX,):
                link = Link.connect(
                    addresses[host],
                    secret,
                    {"what": role, "host": self.host},
                    seconds,
                    options=LinkOptions(self._encrypts),
                    expected=identity(self.hosts[host][0]),
                )
                self._add(role, host, link)
        later = range(self.host + 1, len(addresses))
        if not until(lambda: not set(later) - set(self.mix_links) and not set(later[:1]) - set(self.chain), seconds):
            missing = sorted(set(later) - set(self.mix_links)) or [self.host + 1]
            raise TimeoutError(f"host {self.host} has waited {seconds:.0f} s for links from hosts {missing}")

    def readings(self) -> Iterator[Reading]:
        """Of each link."""
        for links in self._links.values():
            for host, link in list(links.items()):
                yield host, link.sent_bytes, link.received_bytes, 0.0

    def close(self) -> None:
        """All links. Safe to call twice."""
        for links in self._links.values():
            for link in list(links.values()):
                link.close()
