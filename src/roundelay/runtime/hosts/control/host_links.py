"""Links of a host to the others for the work that learners do together: exchanges, means and mixes."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

from roundelay.runtime.base import wall_clock
from roundelay.runtime.clocks import pause
from roundelay.runtime.hosts.exchange.endpoint import ExchangeEndpoint
from roundelay.runtime.hosts.mean_transports.chain import ChainEnds
from roundelay.runtime.hosts.mean_transports.group import GroupOptions, check_library
from roundelay.runtime.hosts.means import HostMeans, MeanLinks
from roundelay.runtime.hosts.terms import ALL_HOSTS, CHAIN, MIX, ChainNumber, HostTerms, PeerHello, identity
from roundelay.runtime.hosts.transport.heartbeat import Router, until
from roundelay.runtime.hosts.transport.wire import Address, Link, LinkError, LinkOptions, LinkTimeout, Reading
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.messages import Dialect, Message
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.strategies.base import Strategy

DIAL_SECONDS = 1.0
"""Interval at which a host that dials looks whether the other is still there, or the link still needed."""


class Placed(Message):
    """Message that a link for mixes is in use at the sender's end."""


class PeerLinks:
    """This host's links under a synchronous strategy: a chain for means, and, where that is asked for, a link between
    any two for mixes. Those to hosts before it are dialled, those to hosts after it are accepted by the router. A host
    that was lost and comes back dials all others, for mixes; other chains are made where hosts are lost anyway.

    Args:
        hosts: the ranks of each host, in rank order; this one is number `host` of them.
        patience: seconds of silence after which a host counts as dead; these links wait longer, and never decide that.
        largest: bytes of a vector.
        mixes: True for a link to every other host.
        encrypts: True to encrypt the traffic on the links.
        session: number of the session: links of an earlier one, at the same router, may come late.
    """

    def __init__(
        self,
        router: Router,
        hosts: Sequence[Sequence[int]],
        host: int,
        patience: float,
        largest: int,
        mixes: bool = True,
        encrypts: bool = True,
        session: int = 0,
    ) -> None:
        self.hosts, self.host, self._patience, self.mixes, self._session = hosts, host, 2 * patience, mixes, session
        self._largest, self._encrypts = largest, encrypts
        self.mix_links: dict[int, Link] = {}
        """By host: all others, or none."""
        self._chains: dict[int, tuple[ChainNumber, Link]] = {}  # by host, that of the newest chain with it
        self._past: list[Reading] = []  # of links that are no more
        self._secret, self._seconds = b"", 0.0
        self.addresses: Sequence[Address] = ()
        """Addresses at which hosts listen, as was heard last; ("", 0) where one is lost."""
        self._lock = threading.Lock()
        for role in (CHAIN, MIX):
            router.give(role, self._take)

    @property
    def chain(self) -> Mapping[int, Link]:
        """Links by host: to the hosts before and after this one in the chain of all hosts."""
        return {host: link for host, (number, link) in self._chains.items() if number == ALL_HOSTS}

    def _take(self, link: Link) -> None:
        hello, later = PeerHello.of(link), range(self.host + 1, len(self.hosts))
        others = {*range(len(self.hosts))} - {self.host} if self.mixes else ()
        in_chain = later[:1] if hello.number == ALL_HOSTS else later
        if hello.host not in (others if hello.what == MIX else in_chain) or hello.session != self._session:
            what = f"{hello.what!r} of session {hello.session} as host {hello.host}"
            link.blame(f"comes for {what}, which is not expected here")
            return
        self._place(hello, hello.host, link)
        if hello.what == MIX:
            link.say(Placed())

    def _place(self, hello: PeerHello, host: int, link: Link) -> None:
        """Use `link` to `host` in the place of an earlier one; drop a late link for an earlier chain."""
        link.patience, link.largest = self._patience, self._largest
        with self._lock:
            newest, old = self._chains.get(host, (hello.number, None))
            if hello.what == MIX:
                old, self.mix_links[host] = self.mix_links.get(host), link
            elif newest <= hello.number:
                self._chains[host] = hello.number, link
            else:
                old = link
            if old is not None:
                self._past.append((host, old.sent_bytes, old.received_bytes, 0.0))
                old.close()

    def dial(self, addresses: Sequence[Address], secret: bytes, seconds: float, again: bool = False) -> None:
        """Connect to the hosts before this one, and wait for links from those after it.

        Args:
            addresses: of all hosts; port 0 where a host is lost.
            again: True if this host was lost: it connects to all hosts that have an address, except those lost since.

        Raises:
            LinkError: a host that this one connects to lives and does not answer.
            TimeoutError: a host after this one did not connect within `seconds`; says which.
        """
        self._secret, self._seconds = secret, seconds
        self.addresses = (again and self.addresses) or addresses
        for host in range(len(addresses) if again else self.host * self.mixes):
            if self.addresses[host] == addresses[host]:
                self._reach(MIX, ALL_HOSTS, host, DIAL_SECONDS if again else seconds)
        if again:
            return
        if self.host:
            self._reach(CHAIN, ALL_HOSTS, self.host - 1, seconds)
        later = {*range(self.host + 1, len(addresses))}

        def missing() -> list[int]:
            mixing = later - {*self.mix_links} if self.mixes else set[int]()
            return sorted(({self.host + 1} & later) - {*self.chain} | mixing)

        if not until(lambda: not missing(), seconds):
            raise TimeoutError(f"host {self.host} has waited {seconds:.0f} s for links from hosts {missing()}")

    def _reach(
        self, role: str, number: ChainNumber, host: int, each: float, check: Callable[[], None] = lambda: None
    ) -> Link | None:
        """Connect to `host`, and return the link, which is in use from then on; None: the host is lost meanwhile.
        `check` is called before each attempt, which takes at most `each` seconds.

        Raises:
            LinkError: the host lives and does not answer; errors of `check` are raised, too.
        """
        hello = PeerHello(role, self.host, number, self._session)
        address, deadline = self.addresses[host], wall_clock() + self._seconds
        link: Link | None = None  # one that is slow to get its place is waited for: another might get it before
        while address[1] and self.addresses[host] == address:
            check()
            try:
                link = link or Link.connect(
                    address,
                    self._secret,
                    hello.said,
                    self._patience,
                    options=LinkOptions(self._encrypts),
                    within=each,
                    expected=identity(self.hosts[host][0]),
                )
                if hello.what == MIX:
                    link.hear(Dialect(Placed), DIAL_SECONDS)  # from the next part on it is used there
                self._place(hello, host, link)
                return link
            except LinkError as error:
                if wall_clock() > deadline:
                    raise
                if not isinstance(error, LinkTimeout):
                    link = None
                    pause(DIAL_SECONDS / 10)
        if link is not None:
            link.close()
        return None

    def open_chain(self, ends: ChainEnds) -> tuple[Link | None, Link | None]:
        """Return links to the hosts before and after this one in a chain of some hosts; None at an end.

        Raises:
            LinkError: the host before does not answer, or is lost.
            TimeoutError: the host after does not connect in time.
        """
        before: Link | None = None
        if ends.before is not None:
            before = self._reach(CHAIN, ends.number, ends.before, DIAL_SECONDS, ends.check)
            if before is None:
                raise LinkError(f"host {ends.before} is lost")

        def come() -> bool:
            ends.check()
            return ends.after is None or self._chains.get(ends.after, (None, None))[0] == ends.number

        if not until(come, self._seconds):
            raise TimeoutError(f"host {self.host} has waited {self._seconds:.0f} s for the link of host {ends.after}")
        return before, None if ends.after is None else self._chains[ends.after][1]

    def readings(self) -> Iterator[Reading]:
        """Yield the traffic reading of each link."""
        with self._lock:
            yield from [*self._past, *((host, one.sent_bytes, one.received_bytes, 0.0) for host, one in self._links())]

    def _links(self) -> list[tuple[int, Link]]:
        return [*self.mix_links.items(), *((host, link) for host, (_, link) in self._chains.items())]

    def close(self) -> None:
        """Close all links. Safe to call twice."""
        for _, link in self._links():
            link.close()


@final
class HostLinks:
    """Links of one host for exchanges, means and mixes. Exchanges are open to others once `endpoint` is; links for
    means and mixes, under a synchronous strategy, once the hosts have met.

    Raises:
        UserError: the library that is to take means is not on this host.
    """

    def __init__(self, place: HostPlace, terms: HostTerms, router: Router, strategy: Strategy) -> None:
        synchronous = strategy.traits.synchronous
        library = terms.library(terms.on_gpus)
        if synchronous and library is not None:
            check_library(library, place.ranks[0])
        self._place, self._terms, self._router, self._synchronous = place, terms, router, synchronous
        # Hosts agree on the members of means over the links for mixes (agreement.py).
        self._all_to_all = strategy.mixes or library is not None or terms.on_death == "go-on"
        self.leader = 0
        """Number of the host that leads; one that is lost as long as no other does."""
        self.endpoint = ExchangeEndpoint(place, terms, router, strategy)
        self._peers: PeerLinks | None = None
        self._means: HostMeans | None = None  # of the part that runs
        self._trouble: tuple[float, str] | None = None  # the first with a link in this part of a segment, and when

    def settle(self, host: int, hosts: Sequence[Sequence[int]], parameters: int) -> None:
        """Fix the numbers of hosts once all have come: this one is number `host` of `hosts`, each the ranks of a host;
        a row has so many `parameters`."""
        self.endpoint.settle(host, hosts)
        if self._synchronous:
            terms, largest = self._terms, 4 * parameters
            own = terms.host_patience, largest, self._all_to_all, terms.encrypt, terms.session
            self._peers = PeerLinks(self._router, hosts, host, *own)

    def meet(self, addresses: Sequence[Address], again: bool = False) -> None:
        """Connect to all other hosts, under a synchronous strategy; `again`: they met before, and this one was lost.

        Raises:
            LinkError, TimeoutError: a host cannot be reached, or does not connect in time.
        """
        if self._peers is not None:
            self._peers.dial(addresses, self._place.secret, self._terms.patience_seconds, again)

    def peers(self, addresses: Sequence[Address], hosts: Sequence[Sequence[int]]) -> None:
        """Note addresses and ranks of hosts, as `ExchangeEndpoint.peers`."""
        if self._peers is not None:
            self._peers.addresses = addresses
        self.endpoint.peers(addresses, hosts)

    def begin_part(self, arena: Arena, part: int) -> None:
        """Begin part number `part` of a segment, before any learner of this host does: under a synchronous strategy
        they take means with those of other hosts. A part that still runs ends first. No two parts have the same
        number."""
        self.end_part()
        arena.sequences.begin_part()
        self._trouble, links = None, self._peers
        if links is None:
            return
        goes_on = self._terms.on_death == "go-on"
        opens = links.open_chain if goes_on and links.mix_links else None
        mix_links = dict(links.mix_links)  # to hosts that take part: one that comes back meanwhile is in a later part
        by = MeanLinks(links.hosts, links.host, links.chain, mix_links, opens, lambda: self.leader)
        codec, seconds = self._terms.codec, self._terms.patience_seconds
        self._means = HostMeans(arena, by, part, self._note_trouble, codec, self._group(links), seconds)
        self._means.start()

    def end_part(self) -> None:
        """End the part of a segment, once the learners of this host have ended it. Safe to call twice."""
        if self._means is not None:
            self._means.stop()
            self._means = None

    def _group(self, links: PeerLinks) -> GroupOptions | None:
        """Return options of means by a process group, which listens where the links do; None: means go another way."""
        library, others = self._terms.library(self._terms.on_gpus), list(links.mix_links.values())
        if library is None or not others:
            return None
        return GroupOptions(library, others[0].here, self._terms.patience_seconds)

    def _note_trouble(self, reason: str) -> None:
        self._trouble = self._trouble or (wall_clock(), reason)

    def check(self) -> None:
        """Check that hosts can still work together.

        A host whose link is gone may be dead, which is for its link to the coordinator to say, a little later: trouble
        matters only if it lasts.

        Raises:
            RuntimeError: an exchange has failed by an unexpected error.
            TimeoutError: hosts cannot reach each other; says the reason.
        """
        if self.endpoint.error:
            raise RuntimeError(f"an exchange with another host failed:\n{self.endpoint.error}")
        if self._trouble is not None and wall_clock() - self._trouble[0] > 2 * self._terms.host_patience:
            raise TimeoutError(f"hosts cannot reach each other ({self._trouble[1]})")

    def readings(self) -> Iterator[Reading]:
        """Yield the traffic readings of the links for means, mixes and exchanges."""
        yield from self.endpoint.readings()
        if self._peers is not None:
            yield from self._peers.readings()

    def close(self) -> None:
        """Close all links of this host: no more means, mixes or exchanges. Safe to call twice."""
        self.end_part()
        if self._peers is not None:
            self._peers.close()
