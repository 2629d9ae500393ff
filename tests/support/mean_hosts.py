"""Hosts that take means together, all in this process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from roundelay.runtime.hosts.means import HostMeans, MeanLinks
from roundelay.runtime.hosts.transport.listener import Listener
from roundelay.runtime.hosts.transport.wire import Link
from roundelay.runtime.procs.coordination.means import Means
from roundelay.runtime.procs.memory.arena import Arena, Layout, create_file
from roundelay.runtime.procs.memory.locks import Patience
from roundelay.runtime.procs.memory.views import BellTable, HostMeanSequences
from support.until import together

SECRET = b"of these tests"


@dataclass(frozen=True)
class MeanHost:
    """A host that takes means with others in this process, with the means of its learners by rank."""

    arena: Arena
    means: dict[int, Means]
    host: HostMeans
    failures: list[str]

    @property
    def mean(self) -> Tensor:
        return self.arena.vector("mean", next(iter(self.means)))

    @property
    def complete(self) -> int:
        """Number of the last mean that is complete."""
        return int(self.arena.view(HostMeanSequences).global_seq[0])


def mean_host(
    size: int, links: MeanLinks, *, patience: float = 60, goes_on: bool = False, part: int = 0, **options: Any
) -> MeanHost:
    """Return a host whose vectors have `size` elements, at the beginning of a part of a segment."""
    ranks, learners = links.hosts[links.host], sum(map(len, links.hosts))
    layout = Layout(learners, size, views=(HostMeanSequences, BellTable))
    arena, failures = Arena(create_file(layout), layout, Patience(ranks[0], patience)), list[str]()
    arena.liveness.mark(range(learners), True)
    host = HostMeans(arena, links, part, failures.append, **options)
    forwards = bool(links.mix_links)
    means = {rank: Means(arena, rank, Patience(rank, patience), ranks, forwards, goes_on) for rank in ranks}
    host.start()
    return MeanHost(arena, means, host, failures)


def end(hosts: Sequence[MeanHost]) -> None:
    together(*(one.host.stop for one in hosts))
    for one in hosts:
        one.arena.close()


@contextmanager
def linked(pairs: Sequence[tuple[int, int]]) -> Iterator[dict[int, dict[int, Link]]]:
    """Yield links between pairs of hosts, by host and by the host at the other end."""
    listener = Listener(("127.0.0.1", 0), SECRET)
    links: dict[int, dict[int, Link]] = {host: {} for pair in pairs for host in pair}
    for low, high in pairs:
        links[high][low] = Link.connect(listener.address, SECRET, {}, 60.0)
        answered = listener.accept(60)
        assert answered is not None
        links[low][high] = answered
    try:
        yield links
    finally:
        for link in [link for ends in links.values() for link in ends.values()]:
            link.close()
        listener.close()
