"""This host of several, with its learners and links: the same on the coordinator's and on every agent's.

Learners of the host run as on a host alone. A thread beside them serves what they need of others: means and mixes of a
synchronous strategy, or leases of minibatches.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import final

from roundelay.algorithms.codecs import codec_named
from roundelay.learner.base import Task
from roundelay.runtime.base import Cluster, SegmentPlan, Watch, wall_clock
from roundelay.runtime.hosts.control.arrivals import open_router
from roundelay.runtime.hosts.control.leases import PrefetchedLeases
from roundelay.runtime.hosts.control.links import PeerLinks
from roundelay.runtime.hosts.exchange.endpoint import ExchangeEndpoint
from roundelay.runtime.hosts.means import HostMeans, MeanLinks
from roundelay.runtime.hosts.terms import HostTerms
from roundelay.runtime.hosts.transport.traffic import Reading
from roundelay.runtime.hosts.transport.wire import Address
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.procs.driver import HostShare, ProcsRuntime
from roundelay.runtime.procs.memory.publish import prepare_publishing
from roundelay.runtime.procs.memory.views.host_mean_sequences import HostMeanSequences
from roundelay.runtime.procs.processes import Deaths


@final
class LocalHost:
    """The host, which listens from now on, and has learners after `start`.

    Args:
        ask: asks the coordinator for so many leases, for `prefetch`.
    """

    def __init__(self, cluster: Cluster, place: HostPlace, terms: HostTerms, ask: Callable[[int], None]) -> None:
        prepare_publishing()
        self.synchronous = cluster.strategy.traits.synchronous
        self._cluster, self._place, self._terms, self._ask = cluster, place, terms, ask
        self.router = open_router(place, terms)
        self._endpoint = ExchangeEndpoint(place, terms, self.router)
        self._peer_links: PeerLinks | None = None
        self._trouble: tuple[float, str] | None = None  # the first with a link in this part of a segment, and when
        self.prefetch: PrefetchedLeases | None = None
        """The leases of the part that runs, or ran last."""
        self.runtime: ProcsRuntime
        """Leads the learners of this host, once they are started."""

    def start(self, task: Task) -> None:
        """Start the learners of a task, which may have begun elsewhere."""
        self.runtime = ProcsRuntime(
            dataclasses.replace(self._cluster, task=task),
            self._terms.patience_seconds,
            self._terms.threads,
            deaths=Deaths(self._terms.on_death),
            share=HostShare(self._place.ranks, (HostMeanSequences,), self._endpoint.open),
        )

    def settle(self, host: int, hosts: Sequence[Sequence[int]]) -> None:
        """All have come: this is number `host` of `hosts`, which have these learners."""
        self._endpoint.settle(host, hosts)
        if self.synchronous:
            patience, largest = self._terms.host_patience, 4 * self.runtime.parameters
            self._peer_links = PeerLinks(self.router, hosts, host, patience, largest, self._terms.encrypt)

    def meet(self, addresses: Sequence[Address]) -> None:
        """Connect to all other hosts, under a synchronous strategy.

        Raises:
            LinkError, TimeoutError: one cannot be reached, or does not come.
        """
        if self._peer_links is not None:
            self._peer_links.dial(addresses, self._place.secret, self._terms.patience_seconds)

    def peers(self, addresses: Sequence[Address]) -> None:
        """These are the addresses of the hosts now; the arena says who lives."""
        self._endpoint.peers(addresses)

    def train(self, plan: SegmentPlan, number: int, living: Sequence[int], watch: Watch) -> None:
        """Run part `number` (counted over the run) of a segment.

        Args:
            living: ranks of all hosts that take part.
            watch: looks at the learners of this host while they run.

        Raises:
            LearnerDied, TimeoutError, RuntimeError: it cannot go on.
        """
        self._trouble, arena, links = None, self.runtime.arena, self._peer_links
        beside: HostMeans | PrefetchedLeases
        if links is not None:
            by = MeanLinks(links.hosts, links.host, links.chain, links.mix_links)
            beside = HostMeans(arena, by, number, self._note_trouble, codec_named(self._terms.wire, "--wire"))
        else:
            beside = self.prefetch = PrefetchedLeases(arena, self.runtime.here, self._ask)
        try:
            self.runtime.part(plan, watch, living, beside.start)
        finally:
            beside.stop()

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
        if self._endpoint.error:
            raise RuntimeError(f"an exchange with another host failed:\n{self._endpoint.error}")
        if self._trouble is not None and wall_clock() - self._trouble[0] > 2 * self._terms.host_patience:
            raise TimeoutError(f"hosts cannot reach each other ({self._trouble[1]})")

    def hold(self) -> int:
        """Let no learner of a synchronous segment begin a round; the round the furthest has begun."""
        arena = self.runtime.arena
        with arena.queue_lock:
            arena.queue.hold[0] = 1
            return max(int(arena.queue.rounds[rank]) for rank in self.runtime.here)

    def let_go(self, stop: int) -> None:
        """Let them go on up to round `stop`."""
        arena = self.runtime.arena
        with arena.queue_lock:
            arena.queue.stop_round[0] = min(int(arena.queue.stop_round[0]), stop)
            arena.queue.hold[0] = 0

    def readings(self) -> Iterator[Reading]:
        """Of the links for means and exchanges."""
        yield from self._endpoint.readings()
        if self._peer_links is not None:
            yield from self._peer_links.readings()

    def close(self) -> None:
        """Nothing is left running here. Safe to call twice."""
        self.router.close()
        if self._peer_links is not None:
            self._peer_links.close()
        if hasattr(self, "runtime"):
            self.runtime.close()
        self._endpoint.close()
