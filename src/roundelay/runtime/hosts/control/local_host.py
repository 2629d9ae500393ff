"""This host of several, with its learners and links: the same on the coordinator's and on every agent's.

Learners of the host run as on a host alone. A thread beside them serves their needs of others: means and mixes of a
synchronous strategy, or leases of minibatches.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from roundelay.learner.base import Task
from roundelay.runtime.base import Cluster, SegmentPlan, Watch
from roundelay.runtime.hosts.control.finding import open_router
from roundelay.runtime.hosts.control.host_links import HostLinks
from roundelay.runtime.hosts.control.leases import PrefetchedLeases
from roundelay.runtime.hosts.exchange.notes import NO_NOTES, RecordedExchanges
from roundelay.runtime.hosts.terms import HostTerms
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.procs.driver import HostShare, ProcsRuntime
from roundelay.runtime.procs.memory.publish import prepare_publishing
from roundelay.runtime.procs.memory.views import BellTable, HostMeanSequences
from roundelay.runtime.procs.processes import Deaths


@final
class LocalHost:
    """This host of a run, which listens from now on, and has learners after `start`.

    Args:
        ask: asks the coordinator for a number of leases of minibatches, for `prefetch`.
    """

    def __init__(self, cluster: Cluster, place: HostPlace, terms: HostTerms, ask: Callable[[int], None]) -> None:
        prepare_publishing()
        self._cluster, self._place, self._terms, self._ask = cluster, place, terms, ask
        self.router = open_router(place, terms)
        self.links = HostLinks(place, terms, self.router, cluster.strategy)
        self.prefetch: PrefetchedLeases | None = None
        """The leases of the part that runs, or ran last."""
        self.runtime: ProcsRuntime
        """Leads the learners of this host, once they are started."""

    def start(self, task: Task) -> None:
        """Start the learners of this host for `task`, which may have begun elsewhere."""
        trace = self._terms.trace
        notes = NO_NOTES if trace is None else RecordedExchanges(trace, goes_on=True)
        open_endpoint = partial(self.links.endpoint.open, notes=notes)
        self.runtime = ProcsRuntime(
            dataclasses.replace(self._cluster, task=task),
            self._terms.patience_seconds,
            self._terms.threads,
            trace,
            deaths=Deaths(self._terms.on_death),
            share=HostShare(self._place.ranks, (HostMeanSequences, BellTable), open_endpoint),
        )

    def train(self, plan: SegmentPlan, number: int, living: Sequence[int], watch: Watch) -> None:
        """Run part `number` (counted over the run) of a segment; the caller ends the part of the links.

        Args:
            living: ranks, on all hosts, that take part.
            watch: looks at the learners of this host while they run.

        Raises:
            LearnerDied, TimeoutError, RuntimeError: the part cannot go on.
        """
        arena, prefetch = self.runtime.arena, None
        if not self._cluster.strategy.traits.synchronous:
            prefetch = self.prefetch = PrefetchedLeases(arena, self.runtime.here, self._ask)

        def begin() -> None:
            self.links.begin_part(arena, number)
            if prefetch is not None:
                prefetch.start()

        try:
            self.runtime.part(plan, watch, living, begin, number)
        finally:
            if prefetch is not None:
                prefetch.stop()

    def hold(self) -> int:
        """Let no learner of a synchronous segment begin a round; return the round the furthest has begun."""
        arena = self.runtime.arena
        with arena.queue_lock:
            arena.queue.hold[0] = 1
            return max(int(arena.queue.rounds[rank]) for rank in self.runtime.here)

    def let_go(self, stop: int) -> None:
        """Let the learners that `hold` has stopped go on up to round `stop`."""
        arena = self.runtime.arena
        with arena.queue_lock:
            arena.queue.stop_round[0] = min(int(arena.queue.stop_round[0]), stop)
            arena.queue.hold[0] = 0

    def close(self) -> None:
        """Close links, and end all processes and threads of this host. Safe to call twice."""
        self.router.close()
        self.links.close()
        if hasattr(self, "runtime"):
            self.runtime.close()
        self.links.endpoint.close()
