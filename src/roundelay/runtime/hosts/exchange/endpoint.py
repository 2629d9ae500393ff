"""A host's exchanges with rows of other hosts: its client, and its server."""

import threading
from collections.abc import Iterator, Mapping, Sequence

import torch

from roundelay.runtime.hosts.exchange.carrier import RowLeases
from roundelay.runtime.hosts.exchange.client import CpuBudget, ExchangeClient
from roundelay.runtime.hosts.exchange.links import HostNetwork
from roundelay.runtime.hosts.exchange.notes import NO_NOTES, ExchangeNotes
from roundelay.runtime.hosts.exchange.row_format import RowFormat
from roundelay.runtime.hosts.exchange.server import ExchangeServer
from roundelay.runtime.hosts.terms import EXCHANGE, HostTerms
from roundelay.runtime.hosts.transport.heartbeat import Router
from roundelay.runtime.hosts.transport.wire import Address, Reading
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.procs.memory.arena import Arena
from roundelay.runtime.procs.memory.publish import publish
from roundelay.runtime.procs.memory.views import NONE
from roundelay.strategies.base import Strategy

HERE, SOMEWHERE = 0, 1
"""Numbers of hosts until all have come and have numbers."""
NOWHERE = -1
"""The host of a learner that has not joined yet."""


class ExchangeEndpoint:
    """Client and server of one host for exchanges; opened before learners start, closed after they have ended."""

    def __init__(self, place: HostPlace, terms: HostTerms, router: Router, strategy: Strategy) -> None:
        self._place, self._terms, self._router, self._strategy = place, terms, router, strategy
        self._client: ExchangeClient | None = None
        self.server: ExchangeServer | None = None
        """Once it is open."""

    def open(self, arena: Arena, notes: ExchangeNotes = NO_NOTES) -> Mapping[int, str]:
        """Start client and server for the rows in `arena`; return, by rank, the path of the pipe that wakes each
        learner's channel. `notes` note each sending and change of rows of this host."""
        _one_thread_each()
        for rank in self._place.ranks:
            if (asked := notes.so_far(rank)[0]) > arena.requests.asked[rank]:
                arena.requests.asked[rank] = arena.requests.done[rank] = asked
        arena = arena.with_copies()
        place, terms, rejected = self._place, self._terms, self._router.listener.rejected
        homes = [HERE if rank in place.ranks else SOMEWHERE for rank in range(place.learners)]
        # The learner that asks is more patient than its client, which is more patient than the one that is asked.
        patience, centre = terms.patience_seconds / 2, arena.requests.centre
        network = HostNetwork(HERE, homes, place.secret, {}, patience, rejected, terms.encrypt, centre)
        row_format = RowFormat.of(terms, self._strategy.traits.paced_by_links)
        self._client = client = ExchangeClient(
            arena, network, RowLeases(), row_format, CpuBudget(terms.exchange_share), notes
        )
        self.server = ExchangeServer(client, terms.patience_seconds / 4, self._strategy)
        self._router.give(EXCHANGE, self.server.serve)
        client.start()
        return client.wake

    def settle(self, host: int, hosts: Sequence[Sequence[int]]) -> None:
        """Fix the numbers of hosts once all have come: this one is number `host` of `hosts`, each the ranks of a host.
        Call it before any exchange."""
        if self._client is not None:
            network = self._client.network
            network.host, network.homes = host, self._homes(hosts)

    def _homes(self, hosts: Sequence[Sequence[int]]) -> tuple[int, ...]:
        home = {rank: number for number, ranks in enumerate(hosts) for rank in ranks}
        return tuple(home.get(rank, NOWHERE) for rank in range(self._place.learners))

    def peers(self, addresses: Sequence[Address], hosts: Sequence[Sequence[int]]) -> None:
        """Note the addresses of the hosts, by number, and the ranks of each; hosts that are gone have port 0. Call it
        after the arena was told which learners live."""
        if self._client is not None:
            self._client.network.homes = self._homes(hosts)
            own = self._client.network.host
            self._client.peers_changed({n: where for n, where in enumerate(addresses) if where[1] and n != own})
            self._client.living_changed()
        if self.server is not None:
            self.server.living_changed()

    def lose_centre(self) -> None:
        """End all requests to the centre without a result, since its host is lost."""
        if self._client is not None:
            network = self._client.network
            lost = network.home(self._place.learners)
            publish(network.centre, 0, NONE)
            self._client.peers_changed({host: at for host, at in network.addresses.items() if host != lost})
            self._client.living_changed()

    @property
    def error(self) -> str:
        """Traceback of an unexpected error; "" if there was none."""
        return next((side.error for side in (self._client, self.server) if side is not None and side.error), "")

    def readings(self) -> Iterator[Reading]:
        """Yield the traffic reading of each other host, for exchanges asked here and asked there."""
        for side in (self._client, self.server):
            for host, traffic in side.traffic().items() if side is not None else ():
                yield host, traffic.sent_bytes, traffic.received_bytes, traffic.waited_s

    def forms(self) -> Mapping[int, str]:
        """Return the form of rows on the link to each host, in words."""
        return {} if self._client is None else self._client.forms()

    def close(self) -> None:
        """Close: requests under way come to nothing. Safe to call twice."""
        if self._client is not None:
            self._client.close()
        if self.server is not None:
            self.server.close()


def _one_thread_each() -> None:
    """Let torch use one thread in each Python thread that begins from now on: there are many, with small operations.
    The calling thread, which evaluates models, keeps its number of torch threads."""
    torch.get_num_threads()  # from now on its number is its own
    thread = threading.Thread(target=torch.set_num_threads, args=(1,))
    thread.start()
    thread.join()
