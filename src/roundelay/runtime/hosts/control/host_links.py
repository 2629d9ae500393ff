"""Links of a host to the others for what its learners do together: exchanges, means and mixes."""

from collections.abc import Iterator, Sequence
from typing import final

from roundelay.algorithms.codecs import codec_named
from roundelay.runtime.base import wall_clock
from roundelay.runtime.hosts.control.links import PeerLinks
from roundelay.runtime.hosts.exchange.endpoint import ExchangeEndpoint
from roundelay.runtime.hosts.mean_transports.group import GroupOptions
from roundelay.runtime.hosts.mean_transports.libraries import check_library
from roundelay.runtime.hosts.means import HostMeans, MeanLinks
from roundelay.runtime.hosts.terms import HostTerms
from roundelay.runtime.hosts.transport.heartbeat import Router
from roundelay.runtime.hosts.transport.traffic import Reading
from roundelay.runtime.hosts.transport.wire import Address
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.strategies.base import Strategy


@final
class HostLinks:
    """Of one host. Exchanges are open to others once `endpoint` is; links for means and mixes, under a synchronous
    strategy, once the hosts have met.

    Raises:
        UserError: means are to be taken by a library that is not here.
    """

    def __init__(self, place: HostPlace, terms: HostTerms, router: Router, strategy: Strategy) -> None:
        synchronous = strategy.traits.synchronous
        library = terms.library(terms.on_gpus)
        if synchronous and library is not None:
            check_library(library, place.ranks[0])
        self._place, self._terms, self._router, self._synchronous = place, terms, router, synchronous
        # Hosts that agree on who takes part in means do so over the links for mixes (agreement.py).
        self._all_to_all = strategy.mixes or library is not None or terms.on_death == "go-on"
        self.endpoint = ExchangeEndpoint(place, terms, router, strategy)
        self._peers: PeerLinks | None = None
        self._trouble: tuple[float, str] | None = None  # the first with a link in this part of a segment, and when

    def settle(self, host: int, hosts: Sequence[Sequence[int]], parameters: int) -> None:
        """All have come: this is number `host` of `hosts`, which have these learners."""
        self.endpoint.settle(host, hosts)
        if self._synchronous:
            patience, largest = self._terms.host_patience, 4 * parameters
            self._peers = PeerLinks(self._router, hosts, host, patience, largest, self._all_to_all, self._terms.encrypt)

    def meet(self, addresses: Sequence[Address]) -> None:
        """Connect to all other hosts, under a synchronous strategy.

        Raises:
            LinkError, TimeoutError: one cannot be reached, or does not come.
        """
        if self._peers is not None:
            self._peers.dial(addresses, self._place.secret, self._terms.patience_seconds)

    def means(self, arena: Arena, part: int) -> HostMeans | None:
        """This host's share of the means of a part of a segment, whose number no other part has, under a synchronous
        strategy."""
        self._trouble, links = None, self._peers
        if links is None:
            return None
        goes_on = self._terms.on_death == "go-on"
        opens = links.open_chain if goes_on and links.mix_links else None
        by = MeanLinks(links.hosts, links.host, links.chain, links.mix_links, opens)
        codec, seconds = codec_named(self._terms.wire, "--wire"), self._terms.patience_seconds
        return HostMeans(arena, by, part, self._note_trouble, codec, self._group(links), seconds)

    def _group(self, links: PeerLinks) -> GroupOptions | None:
        """Options of means by a process group, if that is what takes them. The library listens where the links are."""
        library, others = self._terms.library(self._terms.on_gpus), list(links.mix_links.values())
        if library is None or not others:
            return None
        return GroupOptions(library, others[0].here, self._terms.patience_seconds)

    def _note_trouble(self, reason: str) -> None:
        self._trouble = self._trouble or (wall_clock(), reason)

    def check(self) -> None:
        """Can hosts still work together?

        A host whose link is gone may be dead, which is for its link to the coordinator to say, a little later: trouble
        matters only if it lasts.

        Raises:
            RuntimeError: an exchange has failed.
            TimeoutError: hosts cannot reach each other; says the reason.
        """
        if self.endpoint.error:
            raise RuntimeError(f"an exchange with another host failed:\n{self.endpoint.error}")
        if self._trouble is not None and wall_clock() - self._trouble[0] > 2 * self._terms.host_patience:
            raise TimeoutError(f"hosts cannot reach each other ({self._trouble[1]})")

    def readings(self) -> Iterator[Reading]:
        """Of the links for means and exchanges."""
        yield from self.endpoint.readings()
        if self._peers is not None:
            yield from self._peers.readings()

    def close(self) -> None:
        """No means, and no mixes, any more. Safe to call twice."""
        if self._peers is not None:
            self._peers.close()
