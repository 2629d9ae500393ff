"""A part of a segment on one host: the same on the coordinator's and on every agent's.

Learners of the host run as on a host alone. A thread beside them serves what they need of others: means and mixes of a
synchronous strategy, or leases of minibatches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from roundelay.algorithms.codecs import codec_named
from roundelay.runtime.base import Cluster, SegmentPlan, Watch, wall_clock
from roundelay.runtime.hosts.control.leases import PrefetchedLeases
from roundelay.runtime.hosts.control.links import PeerLinks
from roundelay.runtime.hosts.exchange.endpoint import ExchangeEndpoint
from roundelay.runtime.hosts.means import HostMeans, MeanLinks
from roundelay.runtime.hosts.terms import HostTerms
from roundelay.runtime.launch.world import HostPlace
from roundelay.runtime.procs.driver import HostShare, ProcsRuntime
from roundelay.runtime.procs.memory.views.host_mean_sequences import HostMeanSequences
from roundelay.runtime.procs.processes import Deaths


@final
@dataclass(frozen=True)
class SegmentPart:
    """A part of a segment, as it is ordered.

    Args:
        number: of this part, counted over the run.
        living: ranks of all hosts that take part.
        watch: looks at the learners of this host while they run.
    """

    plan: SegmentPlan
    number: int
    living: Sequence[int]
    watch: Watch


@final
class LinkTrouble:
    """The first trouble with a link to another host in a part of a segment. That host may be dead, which is for its
    link to the coordinator to say, a little later: it matters only if it lasts.

    Args:
        patience: seconds after which it has lasted too long.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._first: tuple[float, str] | None = None

    def clear(self) -> None:
        """Forget it: a part begins."""
        self._first = None

    def note(self, reason: str) -> None:
        """A link is gone."""
        self._first = self._first or (wall_clock(), reason)

    def check(self) -> None:
        """Has it lasted too long?

        Raises:
            TimeoutError: it has; says the reason.
        """
        if self._first is not None and wall_clock() - self._first[0] > self._patience:
            raise TimeoutError(f"hosts cannot reach each other ({self._first[1]})")


def start_learners(cluster: Cluster, place: HostPlace, terms: HostTerms, endpoint: ExchangeEndpoint) -> ProcsRuntime:
    """Start the learners of this host, one among several."""
    return ProcsRuntime(
        cluster,
        terms.patience_seconds,
        terms.threads,
        deaths=Deaths(terms.on_death),
        share=HostShare(place.ranks, (HostMeanSequences,), endpoint.open),
    )


def train_with_means(
    local_runtime: ProcsRuntime, part: SegmentPart, links: PeerLinks, wire: str, failed: Callable[[str], None]
) -> None:
    """Run a part of a synchronous segment, with means and mixes over `links`.

    Args:
        wire: name of the codec by which gradients go into a mean.
        failed: told why, when a link is gone.

    Raises:
        LearnerDied, TimeoutError, RuntimeError: it cannot go on.
    """
    codec = codec_named(wire, "--wire")
    by = MeanLinks(links.hosts, links.host, links.chain, links.mix_links)
    means = HostMeans(local_runtime.arena, by, part.number, failed, codec)
    train_beside(local_runtime, part, means)


def train_beside(local_runtime: ProcsRuntime, part: SegmentPart, beside: HostMeans | PrefetchedLeases) -> None:
    """Run a part of a segment beside threads that bring means, or of minibatches that are leased ahead.

    Raises:
        LearnerDied, TimeoutError, RuntimeError: it cannot go on.
    """
    try:
        local_runtime.part(part.plan, part.watch, part.living, beside.start)
    finally:
        beside.stop()


def hold(local_runtime: ProcsRuntime) -> int:
    """Let no learner of a synchronous segment begin a round; the round the furthest has begun."""
    with local_runtime.arena.queue_lock:
        local_runtime.arena.queue.hold[0] = 1
        return max(int(local_runtime.arena.queue.rounds[rank]) for rank in local_runtime.here)


def let_go(local_runtime: ProcsRuntime, stop: int) -> None:
    """Let them go on up to round `stop`."""
    with local_runtime.arena.queue_lock:
        local_runtime.arena.queue.stop_round[0] = min(int(local_runtime.arena.queue.stop_round[0]), stop)
        local_runtime.arena.queue.hold[0] = 0
