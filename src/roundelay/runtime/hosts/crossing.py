"""A host's exchanges with rows of other hosts: its ferry, and the server of the others' ferries, behind one door."""

import threading
from collections.abc import Iterator, Mapping, Sequence

import torch

from roundelay.runtime.hosts.cargo import Carriage
from roundelay.runtime.hosts.ferry import Ferry
from roundelay.runtime.hosts.ferry_server import FerryServer
from roundelay.runtime.hosts.flights import Flights
from roundelay.runtime.hosts.lines import Door
from roundelay.runtime.hosts.meter import Reading
from roundelay.runtime.hosts.pace import Pace
from roundelay.runtime.hosts.terms import FERRY, Terms
from roundelay.runtime.hosts.wire import Address
from roundelay.runtime.procs.arena import Layout
from roundelay.runtime.procs.world import Place

HERE, SOMEWHERE = 0, 1
"""Numbers of hosts until all have come and have numbers."""


class Crossing:
    """Opened before learners start, closed after they have ended."""

    def __init__(self, place: Place, terms: Terms, door: Door) -> None:
        self._place, self._terms, self._door = place, terms, door
        self._ferry: Ferry | None = None
        self._server: FerryServer | None = None

    def open(self, arena: str, layout: Layout) -> Mapping[int, str]:
        """Begin, for the arena at that path; what each learner here is told of its ferry, by rank."""
        _one_thread_each()
        place, terms, tally = self._place, self._terms, self._door.listener.tally
        homes = [HERE if rank in place.ranks else SOMEWHERE for rank in range(place.learners)]
        # The learner that asks is more patient than its ferry, which is more patient than the one that is asked.
        flights, pace = Flights(), Pace(terms.exchange_share)
        self._ferry = ferry = Ferry(
            arena, layout, HERE, homes, {}, place.secret, flights, Carriage(terms.wire, terms.fragments),
            terms.patience_seconds / 2, tally, pace, terms.encrypts,
        )  # fmt: skip
        self._server = FerryServer(arena, layout, place.ranks, flights, terms.patience_seconds / 4, tally, pace)
        self._door.give(FERRY, self._server.serve)
        ferry.start()
        return ferry.wake

    def settle(self, host: int, hosts: Sequence[Sequence[int]]) -> None:
        """All have come: this is number `host` of `hosts`, which have these learners. Nothing has been asked yet."""
        if self._ferry is not None:
            home = {rank: number for number, ranks in enumerate(hosts) for rank in ranks}
            self._ferry.host, self._ferry.homes = host, tuple(home[rank] for rank in sorted(home))

    def peers(self, addresses: Sequence[Address]) -> None:
        """Where the hosts are now, by number; those that are nowhere have port 0. Who lives is in the arena by now."""
        if self._server is not None:
            self._server.living_changed()
        if self._ferry is not None:
            own = self._ferry.host
            self._ferry.peers_changed({n: where for n, where in enumerate(addresses) if where[1] and n != own})

    @property
    def error(self) -> str:
        """The traceback of what should not have happened, if something did."""
        return next((side.error for side in (self._ferry, self._server) if side is not None and side.error), "")

    def readings(self) -> Iterator[Reading]:
        """Of each host that was asked, or asks."""
        for side in (self._ferry, self._server):
            for host, traffic in side.traffic().items() if side is not None else ():
                yield host, traffic.sent_bytes, traffic.received_bytes, traffic.waited_s

    def close(self) -> None:
        """Requests under way come to nothing. Safe to call twice."""
        if self._ferry is not None:
            self._ferry.close()
        if self._server is not None:
            self._server.close()


def _one_thread_each() -> None:
    """Let torch use one thread in each thread that begins from now on: there are many, with small operations. This one
    keeps what it has, which evaluates models."""
    torch.get_num_threads()  # from now on its number is its own
    thread = threading.Thread(target=torch.set_num_threads, args=(1,))
    thread.start()
    thread.join()
